"""The base of objectives whose rows are prompts: the model generates completions, and rewards score them."""

from __future__ import annotations

import json
import logging
import statistics
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from params import EvergreenError, ModelError, Problem, TransientError
from params.distribution import read_parallelism_strategy
from params.schema import Launch, Model, Training
from params.sections.rows import Expectation
from trainer.column_template import parse_prompt_template
from trainer.objectives.bases.conversations.chat import conversation_template
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, every_row, named, ratio
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, Objective, ObjectiveState
from trainer.objectives.bases.rewards.reward_models import PROMPT
from trainer.objectives.bases.rewards.rollout import (
    GenerativeObjectiveOptions,
    Rollout,
    TrainingSample,
    sample_completions,
)
from trainer.objectives.bases.row_content import read_template
from trainer.objectives.bases.rows import PromptForm, Row, ScoreColumns
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_batch
from trainer.objectives.bases.texts.prompt_template import form_around_text
from trainer.objectives.bases.texts.tokenizing import (
    Tokenizer,
    generate_tokens_checking_prompt,
    strip_repeated_special_tokens,
    tokenize_prompts,
    tokenize_texts,
)
from trainer.rewards import WeightedRewardSum

logger = logging.getLogger(__name__)
_SCORES = ("reward", "completion_length", "terminated")

OptionsT = TypeVar("OptionsT", bound=GenerativeObjectiveOptions)


class GenerativeObjective(Objective[OptionsT]):
    """An objective that trains on completions which the model itself generated."""

    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("reward", "max", ratio("reward", "rows")),
        Metric("completion_length", "min", ratio("completion_length", "rows"), per_tokenizer=True),
        Metric("terminated", "max", ratio("terminated", "rows"), share_of=every_row),
    )
    main_metric = "reward"
    own_options = frozenset({"prompt", "chat", "max_new_tokens"})
    advice = "needs a reward, which only you can choose"
    trainer_class: ClassVar[str] = "rollouts"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"prompt": "What is 3 + 4?", "answer": "7"},
        {"prompt": "Say 12", "answer": "#### 12"},
    )
    logs_rounds: ClassVar[bool] = False
    """Whether each round of completions gets a log line, in addition to those of the steps that train on it."""

    @property
    @abstractmethod
    def steps_per_round(self) -> int:
        """Optimizer steps that train on one round of completions."""

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the loss needs the tokens' log-probabilities under the model that sampled them."""
        return False

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether the loss needs the tokens' log-probabilities under the model as it was before training."""
        return False

    @abstractmethod
    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        """Return the sequences to train on from a prompt's completions; none if there is nothing to learn."""

    def rollout_metrics(self, rollout: Rollout) -> dict[str, float]:
        """Return the metrics to log of a prompt's completions."""
        rewards, count = rollout.rewards, len(rollout.rewards)
        return {
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.stdev(rewards) if count > 1 else 0.0,
            "completion_length": sum(map(len, rollout.completions)) / count,
            "terminated": sum(rollout.terminated) / count,
        }

    @abstractmethod
    def loss_denominator(self, *, sequences: int, tokens: int) -> float:
        """Return what the summed losses are divided by, from the numbers of sequences and tokens of a global batch."""

    @abstractmethod
    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss and metrics of each token, (B, T), 0 outside of completions, of a `rollout.collate_training_samples`."""

    @cached_property
    def rewards(self) -> WeightedRewardSum:
        rewards = (
            source.build(f"objective.rewards.{i}", self.options.chat) for i, source in enumerate(self.options.rewards)
        )
        return WeightedRewardSum([*rewards], self.options.reward_weights)

    def models(self) -> Mapping[tuple[str | int, ...], str]:
        sources = enumerate(self.options.rewards)
        return {("objective", "rewards", i, "model"): source.model for i, source in sources if source.model}

    def find_model_problems(self) -> Iterable[Problem]:
        return self._problems_of_rewards({i for i, source in enumerate(self.options.rewards) if source.model})

    def _problems_of_rewards(self, numbers: Collection[int]) -> Iterator[Problem]:
        for i in sorted(numbers):
            reward = self.rewards.rewards[i]
            try:
                reward.check()
            except TransientError as error:
                logger.warning("check: objective.rewards.%d was not checked: %s: %s", i, reward.name, error.what)
            except EvergreenError as error:
                yield Problem(("objective", "rewards", i), f"{reward.name}: {error.what}", error.fix)

    def check_model(self, model: PreTrainedModel) -> None:
        """As the base class; a reward model that cannot be loaded ends a training before its first step."""
        self.rewards.load()

    def columns(self) -> Mapping[str, ColumnKind]:
        kinds: dict[str, ColumnKind] = dict.fromkeys(self.options.reference_columns, "label")
        return {**kinds, **parse_prompt_template(self.options.prompt).columns}

    def content(self, row: Row) -> Mapping[str, Any]:
        return {**super().content(row), **read_template(parse_prompt_template(self.options.prompt), row)}

    def expectations(self, text_columns: Collection[str]) -> list[Expectation]:
        """As the base class; what is blank beside a prompt is no class without a name, but a reference for its reward."""
        return super().expectations(())

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        yield from self._problems_of_reward_options()
        if training.streaming:
            what = "a round of completions needs the prompts of the next steps, which a stream does not know"
            yield Problem(("training", "streaming"), what, "set it to false: prompts take little memory")
        if training.loss:
            what = "the objective computes its own loss, so this function would never be called"
            yield Problem(("training", "loss"), what, "remove it, or use another objective")
        if training.precision == "fp16":
            what = "fp16 rounds log-probabilities so coarsely that equal models seem to differ"
            yield Problem(("training", "precision"), what, "use bf16 or fp32")
        positions = (model.config or {}).get("max_position_embeddings", (model.config or {}).get("n_positions"))
        longest = self.options.max_new_tokens
        if isinstance(positions, int) and longest >= positions:
            what = f"is {longest} and the model has {positions} positions, so a prompt has no room"
            yield Problem(("objective", "max_new_tokens"), what, "lower it, or use a model with more positions")
        if (kind := read_parallelism_strategy(launch)) != "data parallelism":
            what = f"uses {kind}, where no process has the whole weights, which generation needs"
            yield Problem(("launch", "accelerate_config"), what, "remove it: each process then has a copy of the model")

    def _problems_of_reward_options(self) -> Iterator[Problem]:
        rewards, weights = self.options.rewards, self.options.reward_weights
        if not rewards:
            what = "is empty: without a reward all completions are equal, and nothing is learned"
            yield Problem(("objective", "rewards"), what, "name one, for example `trainer.rewards:numeric_answer`")
        if weights and len(weights) != len(rewards):
            what = f"has {len(weights)} weights for {len(rewards)} rewards"
            yield Problem(("objective", "reward_weights"), what, "give one weight per reward, or remove the weights")
        yield from self._problems_of_rewards({i for i, source in enumerate(rewards) if source.name})

    def text(self, row: Row) -> str:
        return parse_prompt_template(self.options.prompt).fill(row)

    def renders_conversations(self) -> bool:
        return self.options.chat

    def reserved_positions(self) -> int:
        return self.options.max_new_tokens

    def input_text(self, row: Row) -> str:
        """Return the values that the prompt is made of."""
        return parse_prompt_template(self.options.prompt).values(row)

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """The prompt's tokens without an end-of-text token, and what rewards get as JSON; a long prompt keeps its end."""
        own_texts = [self.text(row) for row in rows]
        said = [
            text.strip() for text in strip_repeated_special_tokens(own_texts, tokenizer)
        ]  # more than special tokens
        texts = self.prompt_texts(rows, tokenizer)
        tokenized = self.tokenize_prompts(texts, tokenizer)
        encoded = []
        for row, text, ids, own in zip(rows, texts, tokenized, said, strict=True):
            prompt = ids[-max_length:] if own else []
            references = {name: row[name] for name in self.options.reference_columns}
            reward_row = {"row_id": row["row_id"], "prompt": text} | references
            reward_row |= {PROMPT: self.text(row)} if self.models() else {}
            example = {
                "row_id": row["row_id"],
                "input_ids": prompt,
                "labels": [IGNORE_INDEX] * len(prompt),
                "reward_row": json.dumps(reward_row, ensure_ascii=False),
            }
            encoded.append(EncodedRow([example] if prompt else [], is_truncated=len(ids) > max_length))
        return encoded

    def prompt_texts(self, rows: Sequence[Row], tokenizer: Tokenizer) -> list[str]:
        """Return the prompts, rendered by the chat template if the recipe says `chat`; ModelError if the tokenizer has none."""
        texts = [self.text(row) for row in rows]
        if not self.options.chat:
            return texts
        if not conversation_template(tokenizer):
            what = "has no default chat template"
            raise ModelError("tokenization.tokenizer", what, "set objective.chat to false")
        turns = [[{"role": "user", "content": text}] for text in texts]
        return list(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def tokenize_prompts(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Return the tokens of `prompt_texts`; a chat template has written the special tokens."""
        if self.options.chat:
            return tokenize_texts(texts, tokenizer, add_special_tokens=False)
        return tokenize_prompts(texts, tokenizer)

    @classmethod
    def prompt_form(cls, options: Mapping[str, Any]) -> PromptForm:
        return form_around_text(str(options.get("prompt", "")), is_chat=bool(options.get("chat")))

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        return {"max_new_tokens": self.options.max_new_tokens, "do_sample": False}

    def reader_input(self, row: Row) -> Any:
        text = self.text(row)
        return [{"role": "user", "content": text}] if self.options.chat else text

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        given = self.reader_input(row)
        completion = generate_tokens_checking_prompt(ask, given, example, tokenizer, **self.call_arguments)
        text = tokenizer.decode(completion, skip_special_tokens=True)
        (reward,) = self.rewards([str(text)], [json.loads(example["reward_row"])])
        return {"reward": reward, "completion_length": len(completion)}

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, Any]:
        """Prompts, padded on the right, and `reward_rows`: what rewards get of each prompt's row."""
        return pad_batch(examples, tokenizer) | {"reward_rows": [json.loads(e["reward_row"]) for e in examples]}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the loss of a `rollout.collate_training_samples`; `items` is what `loss_denominator` says."""
        outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        losses, metrics = self.losses(outputs.logits, batch)
        tokens = float(batch["completion_mask"].sum())
        sums = {name: (float(values.sum()), tokens) for name, values in metrics.items()}
        return BatchLoss(losses.sum() * share.processes / share.items, outputs, sums)

    instead_of_own_metrics = "write it as a reward function (objective.rewards), which gets the texts and their rows"

    @classmethod
    def why_no_own_metrics(cls) -> str:
        return "scores the texts that the model generates, which have no labels"

    def score_batch(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> torch.Tensor:
        """Reward, tokens, and whether it terminated, of each prompt's greedy completion, (B, 3)."""
        lengths = batch["attention_mask"].sum(1).tolist()
        prompts = [ids[:length] for ids, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        completions, terminated = sample_completions(
            model, prompts, tokenizer=tokenizer, options=self.options, keys=None
        )
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards = self.rewards(texts, batch["reward_rows"], batch["input_ids"].device)
        scores = [(r, len(c), t) for r, c, t in zip(rewards, completions, terminated, strict=True)]
        return torch.tensor(scores, dtype=torch.float64, device=batch["input_ids"].device)

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        return -scores["reward"]
