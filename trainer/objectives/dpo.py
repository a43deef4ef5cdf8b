r"""Direct preference optimization: prefer the better of two completions of a prompt, measured against the start model.

    {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"}
    {"chosen": "\n\nHuman: 2 + 2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 5"}
    {"chosen": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "rejected": [...]}

In the second form, `prompt_column` is null, and the prompt is what both completions begin with. In the third form, `chat` is true,
and the tokenizer's chat template renders the messages. A prompt may also be messages of its own.

The reward of a completion is beta times its log-probability minus that under the reference, which is the model as it was
before training (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290). The loss is low where the chosen completion has
the higher reward. Both completions follow the same tokens, those of the prompt alone (trainer.objectives.bases.texts.continuations), and each
ends with the end-of-text token. A pair that is too long loses the beginning of its prompt, down to one token; only then
are completions cut, at their end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from params import Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.base import Direction
from trainer.objectives.advice.base import AdvisedValue, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.advice.pairs import AnswersAdvice
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Example, ObjectiveState, Row, ScoreColumns
from trainer.objectives.bases.preferences.losses import completion_logprobs, preference_losses
from trainer.objectives.bases.preferences.pairs import PairObjective, PairOptions, scored_pairs
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_batch
from trainer.objectives.bases.texts.tokenizing import Tokenizer

_SCORES = ("loss", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob")
_WITH_SMOOTHING = ("sigmoid", "robust", "exo_pair")


class Options(PairOptions):
    """Keys of the recipe's `objective` section."""

    loss_type: Literal["sigmoid", "ipo", "hinge", "robust", "exo_pair", "apo_zero", "apo_down"] = "sigmoid"
    """How the rewards of a pair become a loss; `DPO.losses` cites the source of each."""
    beta: PositiveFloat = 0.1
    """Strength of the penalty for moving away from the reference model; `ipo` calls it tau."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Assumed share of pairs with swapped labels; for sigmoid, robust and exo_pair."""
    reference: Literal["model", "precomputed"] = "model"
    """`model` runs a frozen copy of the start model in every step, whole on each process, or with `model.lora` the model
    without its adapters. `precomputed` runs it once over all pairs before training, so no second model is in memory."""


class _Advice(AnswersAdvice):
    meaning = "the better of two answers"
    needs_pretrained = True
    rates: ClassVar[UpTo] = ((20e6, 1e-4), (200e6, 1e-5), (math.inf, 5e-7))
    lora_rate = 5e-6
    weight_decay: ClassVar[AdvisedValue] = AdvisedValue(0.0, "the loss itself keeps the model near its start")

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        is_named = not seen.named.isdisjoint({"chosen", "rejected"})
        return ObjectiveFit.PREFERENCES if is_named or {"chosen", "rejected"} <= seen.found else ObjectiveFit.NOT


def _mean(name: str, best: Direction) -> Metric:
    """Return the mean of a score over pairs. The reference model reads the same tokens, so it depends on them."""
    return Metric(name, best, ratio(name, "rows"), per_tokenizer=True)


def _reward_margin(sums: Sums) -> NDArray[np.float64]:
    return sums["chosen_reward"] / sums["rows"] - sums["rejected_reward"] / sums["rows"]


class DPO(PairObjective[Options]):
    """Preferences between two completions."""

    options_class = Options
    defaults = ObjectiveDefaults(1e-6, epochs=1.0, micro_batch_size=4)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        _mean("loss", "min"),
        _mean("chosen_reward", "max"),
        _mean("rejected_reward", "min"),
        _mean("chosen_logprob", "max"),
        _mean("rejected_logprob", "min"),
        Metric("reward_accuracy", "max", ratio("correct", "rows"), share_of=every_row, per_tokenizer=True),
        Metric("reward_margin", "max", _reward_margin, per_tokenizer=True),
    )
    main_metric = "reward_accuracy"
    served_scores = ("chosen_logprob", "rejected_logprob")
    trainer_class = "preferences"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
        {"prompt": "A word for a small dog?", "chosen": "puppy", "rejected": "kitten, or cat"},
    )

    reference_logprobs: Callable[[Mapping[str, Any]], torch.Tensor] | None = None
    """From a batch to its `completion_logprobs` (2, B) under the reference; set before any pair is scored."""

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        smoothing, kind = self.options.label_smoothing, self.options.loss_type
        if smoothing and kind not in _WITH_SMOOTHING:
            what = f"has no effect on {kind}"
            yield Problem(("objective", "label_smoothing"), what, f"remove it, or use {', '.join(_WITH_SMOOTHING)}")
        if kind == "exo_pair" and not smoothing:
            what = "is 0, with which the exo_pair loss is infinite"
            yield Problem(("objective", "label_smoothing"), what, "set it above 0, for example to 0.001")
        if training.streaming and self.options.reference == "precomputed":
            what = "`precomputed` reads all pairs before the first step, which streaming is meant to avoid"
            yield Problem(("objective", "reference"), what, "use `model`, or set training.streaming to false")

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """One pair: `input_ids` of the prompt and the chosen completion, and `rejected`, the other completion alone."""
        encoded = []
        for row, found in zip(rows, self.tokenize_answers(rows, tokenizer, max_length), strict=True):
            if found is None:
                encoded.append(EncodedRow([]))
                continue
            chosen, rejected = found.answers
            labels = [IGNORE_INDEX] * len(found.prompt) + chosen
            ids = found.prompt + chosen
            example = {"row_id": row["row_id"], "input_ids": ids, "labels": labels, "rejected": rejected}
            encoded.append(EncodedRow([example], found.is_truncated))
        return encoded

    def length(self, example: Example) -> int:
        """The tokens of the longer one of its two sequences."""
        answer: int = sum(label != IGNORE_INDEX for label in example["labels"])
        return len(example["input_ids"]) + max(0, len(example["rejected"]) - answer)

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """The chosen sequences under the usual names, the rejected ones as `rejected_input_ids` and so on, and `row_id` (B,)."""
        rejected = []
        for example in examples:
            pairs = zip(example["input_ids"], example["labels"], strict=True)
            prompt = [token for token, label in pairs if label == IGNORE_INDEX]
            completion = example["rejected"]
            labels = [IGNORE_INDEX] * len(prompt) + completion
            rejected.append({"input_ids": prompt + completion, "labels": labels})
        renamed = {f"rejected_{name}": value for name, value in pad_batch(rejected, tokenizer).items()}
        return pad_batch(examples, tokenizer) | renamed | {"row_id": torch.tensor([e["row_id"] for e in examples])}

    def set_reference(self, start: Callable[[], PreTrainedModel]) -> None:
        model = cache(lambda device: start().eval().to(device))
        self.reference_logprobs = lambda batch: completion_logprobs(model(batch["input_ids"].device), batch)

    def logprobs(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of chosen and rejected completions, (2, B)."""
        return completion_logprobs(model, batch)

    def losses(self, logratios: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of each pair, (B,), from log-probabilities minus those of the reference and numbers of tokens, (2, B)."""
        o = self.options
        return preference_losses(o.loss_type, logratios, tokens, beta=o.beta, flipped=o.label_smoothing)

    def score_pairs(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss (B,) of each pair, and rewards and log-probabilities (2, B) of its completions."""
        assert self.reference_logprobs is not None, "call set_reference first, or train"
        logprobs = completion_logprobs(model, batch)
        with torch.no_grad():
            reference = self.reference_logprobs(batch)
        logratios = logprobs - reference
        tokens = torch.stack([(batch[name] != IGNORE_INDEX).sum(1) for name in ("labels", "rejected_labels")])
        return self.losses(logratios, tokens), self.options.beta * logratios, logprobs

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The rewards of the chosen and the rejected answer, (B, 2), and as labels the place of the better one, which is 0, (B,)."""
        losses, rewards, logprobs = self.score_pairs(model, batch)
        return scored_pairs(torch.stack([losses, *rewards, *logprobs], dim=1), rewards)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Whether the chosen completion has the higher reward, and the scores; equal rewards count half."""
        margins = scores["chosen_reward"] - scores["rejected_reward"]
        return {
            "rows": np.ones_like(margins),
            "correct": 0.5 * np.sign(margins) + 0.5,
            **{name: scores[name] for name in _SCORES},
        }
