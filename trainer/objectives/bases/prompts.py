"""What the objectives share whose rows are prompts: the model writes the completions, and rewards judge them."""

from __future__ import annotations

import json
import statistics
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from params import ModelError, Problem, RecipeError
from params.distribution import distribution
from params.schema import Direction, Launch, Model, Training
from trainer.objectives.bases.likelihood import IGNORED, pad_batch
from trainer.objectives.bases.objective import Example, Kind, Objective, Row, Scores, State
from trainer.objectives.bases.sampling import GenerationOptions, _fields
from trainer.rewards import Rewards

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.rollout import Rollout, TrainingSample


OptionsT = TypeVar("OptionsT", bound=GenerationOptions)


class GenerativeObjective(Objective[OptionsT]):
    """An objective that learns from completions which the model itself has written; trainer.loop.rollout_trainer trains it."""

    metrics: ClassVar[Mapping[str, Direction]] = {
        "reward": "max",
        "completion_length": "min",
        "terminated": "max",
    }
    main_metric = "reward"
    per_token = frozenset({"completion_length"})
    score_names = ("reward", "completion_length", "terminated")
    pipeline_tag = "text-generation"
    examples: ClassVar[tuple[Row, ...]] = (
        {"prompt": "What is 3 + 4?", "answer": "7"},
        {"prompt": "Say 12", "answer": "#### 12"},
    )
    logs_rounds: ClassVar[bool] = False
    """Whether each round of completions gets a line of the log, beside the lines of the steps that learn from it."""

    @property
    @abstractmethod
    def round_steps(self) -> int:
        """Optimizer steps that one round of completions serves."""

    @property
    @abstractmethod
    def needs_old_logprobs(self) -> bool:
        """Whether the loss needs the tokens' log-probabilities under the model that sampled them."""

    @property
    @abstractmethod
    def needs_ref_logprobs(self) -> bool:
        """Whether the loss needs the tokens' log-probabilities under the model as it was before training."""

    @abstractmethod
    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        """The sequences to learn from a prompt's completions; none if nothing is to be learned."""

    def figures(self, rollout: Rollout) -> dict[str, float]:
        """What is logged of a prompt's completions."""
        rewards, count = rollout.rewards, len(rollout.rewards)
        return {
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.stdev(rewards) if count > 1 else 0.0,
            "completion_length": sum(map(len, rollout.completions)) / count,
            "terminated": sum(rollout.terminated) / count,
        }

    @abstractmethod
    def share(self, *, sequences: int, tokens: int) -> float:
        """What the sum of losses is divided by, of so many sequences and tokens of a global batch."""

    @abstractmethod
    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(B, T, V) logits of a batch to losses (B, T), 0 where nothing is learned, and figures of the same shape.

        The batch is as `trainer.objectives.bases.generation.training_batch` makes it.
        """

    @cached_property
    def rewards(self) -> Rewards:
        """The recipe's rewards."""
        return Rewards(self.options.rewards, self.options.reward_weights)

    def columns(self) -> Mapping[str, Kind]:
        kinds: dict[str, Kind] = dict.fromkeys(self.options.reference_columns, "label")
        return kinds | dict.fromkeys(_fields(self.options.prompt), "string")

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        options = self.options
        if not options.rewards:
            what = "there is no reward: no completion would be better than another, and nothing would be learned"
            yield Problem(("objective", "rewards"), what, "name one, for example `trainer.rewards:numeric_answer`")
        if options.reward_weights and len(options.reward_weights) != len(options.rewards):
            what = f"{len(options.reward_weights)} weights for {len(options.rewards)} rewards: some would have none"
            yield Problem(("objective", "reward_weights"), what, "give each reward one, or remove the weights")
        for i, call in enumerate(options.rewards):
            try:
                Rewards([call], [])
            except RecipeError as error:
                yield Problem(("objective", "rewards", i), f"{call.name}: {error.what}", error.fix)
        yield from _training_conflicts(training)
        longest = (model.config or {}).get("max_position_embeddings", (model.config or {}).get("n_positions"))
        if isinstance(longest, int) and options.max_new_tokens >= longest:
            what = f"completions of {options.max_new_tokens} tokens leave no room for a prompt in {longest} positions"
            yield Problem(("objective", "max_new_tokens"), what, "lower it, or use a model with more positions")
        if (kind := distribution(launch)) != "data parallelism":
            what = f"it asks for {kind}: no process has whole weights, so none could write completions"
            yield Problem(("launch", "accelerate_config"), what, "remove it: processes then have a copy each")

    def text(self, row: Row) -> str:
        return self.options.prompt.format_map({name: str(row[name]) for name in _fields(self.options.prompt)})

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        """The prompt's tokens, without what ends a text, and what rewards see; of too long a prompt, its end."""
        text = self.text(row)
        if self.options.chat:
            if not tokenizer.chat_template:
                raise ModelError("tokenization.tokenizer", "has no chat template", "set objective.chat to false")
            turns = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = list(tokenizer(text, add_special_tokens=not self.options.chat, verbose=False)["input_ids"])
        if ids and ids[-1] == tokenizer.eos_token_id and not self.options.chat:  # some tokenizers end every text
            ids.pop()
        if not ids:
            return []
        ids = ids[-max_length:]
        seen = {"row_id": row["row_id"], "prompt": text} | {name: row[name] for name in self.options.reference_columns}
        shown = json.dumps(seen, ensure_ascii=False)
        return [{"row_id": row["row_id"], "input_ids": ids, "labels": [IGNORED] * len(ids), "seen": shown}]

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Prompts, padded on the right; `seen` is what rewards see of each."""
        return {**pad_batch(examples, tokenizer), "seen": [json.loads(example["seen"]) for example in examples]}

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM  # type: ignore[no-any-return]

    def measure(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor:
        """Reward, tokens and whether it ended by itself, of each prompt's likeliest completion, (B, 3)."""
        import torch

        from trainer.objectives.bases.generation import sample

        lengths = batch["attention_mask"].sum(1).tolist()
        prompts = [ids[:length] for ids, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        completions, terminated = sample(model, prompts, tokenizer=tokenizer, sampling=self.options, keys=None)
        rewards = self.rewards(spelled(completions, tokenizer), batch["seen"])
        scores = [(r, len(c), e) for r, c, e in zip(rewards, completions, terminated, strict=True)]
        return torch.tensor(scores, dtype=torch.float64, device=batch["input_ids"].device)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """One, and the scores, (N, 4)."""
        import numpy as np

        return np.stack([np.ones_like(scores["reward"]), *(scores[name] for name in self.score_names)], axis=1)

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """The mean of each score."""
        return {name: totals[..., 1 + i] / totals[..., 0] for i, name in enumerate(self.score_names)}

    def row_error(self, scores: Scores) -> NDArray[np.float64]:
        return -scores["reward"]


def spelled(completions: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Completions as text, without special tokens."""
    texts: list[str] = tokenizer.batch_decode([list(ids) for ids in completions], skip_special_tokens=True)
    return texts


def _training_conflicts(training: Training) -> Iterator[Problem]:
    if training.streaming:
        what = "a round of completions needs the prompts of steps to come, which a stream does not know"
        yield Problem(("training", "streaming"), what, "set it to false: prompts are few tokens")
    if training.loss:
        what = (
            "the loss is the objective's own: it is not computed from labels, and this function would never be called"
        )
        yield Problem(("training", "loss"), what, "remove it, or use another objective")
    if training.arguments.get("label_smoothing_factor"):
        what = "there are no labels to be smoothed: it would do nothing"
        yield Problem(("training", "arguments", "label_smoothing_factor"), what, "remove it")
    if training.precision == "fp16":
        what = "fp16 rounds log-probabilities so much that equal models seem to differ"
        yield Problem(("training", "precision"), what, "use bf16 or fp32")
