r"""Kahneman-Tversky optimization (KTO): learn from answers that people liked or did not, without pairs.

    {"prompt": "2 + 2 =", "completion": "4", "liked": true}
    {"completion": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}], "liked": false}

In the second form, `chat` is true and `prompt_column` null: the prompt is what stands before the last messages of the assistant. The
feedback is true or false, 1 or 0, or words such as good and bad (trainer.objectives.bases.preferences.feedback).

The reward of an answer is beta times its log-probability minus that under the start model. The loss is low where the reward of a liked
answer is above beta times the KL divergence from the start model, and that of another one below it (Ethayarajh et al. 2024,
https://arxiv.org/abs/2402.01306). trainer.loop.kto_trainer estimates the divergence. The loss of an evaluation takes it as 0, so that
no row's loss depends on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, Final, Literal

from pydantic import PositiveFloat

from params import Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.base import Direction
from trainer.objectives.advice.base import AdvisedValue, ObjectiveFit, SeenColumns, UpTo
from trainer.objectives.advice.pairs import AnswersAdvice
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, Sums, is_positive, named
from trainer.objectives.bases.metrics.rank_correlation import mean_ranks
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, Row, ScoreColumns
from trainer.objectives.bases.preferences.answers import AnswersObjective, AnswersOptions
from trainer.objectives.bases.preferences.feedback import is_good
from trainer.objectives.bases.preferences.losses import sequence_logprobs, unpaired_losses
from trainer.objectives.bases.preferences.pairs import split_conversation, split_text
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_batch
from trainer.objectives.bases.texts.prompt_template import ColumnOrTemplate
from trainer.objectives.bases.texts.tokenizing import Tokenizer

_SCORES = ("loss", "liked", "reward", "logprob")


class Options(AnswersOptions):
    """Keys of the recipe's `objective` section."""

    prompt_column: ColumnOrTemplate | None = "prompt"
    """The column with the prompt, or a template of columns, such as `{instruction} {input}`
    (trainer.objectives.bases.texts.prompt_template); null: the completion begins with it, up to the last messages of the assistant, or up to
    the last `Assistant:` at the beginning of a paragraph."""
    completion_column: str = "completion"
    """The column with the answer, its leading space included."""
    label_column: str = "liked"
    """The column that says whether the answer is good."""
    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """`apo_zero_unpaired` has no KL term (D'Oosterlinck et al. 2024, https://arxiv.org/abs/2408.06266)."""
    beta: PositiveFloat = 0.1
    """Strength of the penalty for moving away from the start model."""
    desirable_weight: PositiveFloat | None = None
    """Weight of the losses of good answers; null: 1.0, or more where fewer rows of the train split are good, so that good and bad ones
    weigh the same."""
    undesirable_weight: PositiveFloat | None = None
    """The same for bad answers."""


class _Advice(AnswersAdvice):
    meaning = "answers that people like"
    columns: ClassVar[Mapping[str, str]] = {
        "prompt": "prompt_column",
        "completion": "completion_column",
        "messages": "completion_column",
        "liked": "label_column",
    }
    conversations = frozenset({"prompt", "completion", "messages"})
    needs_pretrained = True
    rates: ClassVar[UpTo] = ((20e6, 1e-4), (200e6, 1e-5), (math.inf, 1e-6))
    lora_rate = 1e-5
    batch = 32
    weight_decay: ClassVar[AdvisedValue] = AdvisedValue(0.0, "the loss itself keeps the model near its start")

    def fit(self, seen: SeenColumns) -> ObjectiveFit:
        has_answers = seen.has("messages") or (seen.has("prompt") and seen.has("completion"))
        return ObjectiveFit.PREFERENCES if seen.has("liked") and has_answers else ObjectiveFit.NOT

    def asked(self, seen: SeenColumns) -> Sequence[str]:
        is_pair = seen.names_pair or {"prompt", "completion"} <= seen.found
        is_whole = "messages" in seen.named or (seen.has("messages") and not is_pair)
        return ["messages", "liked"] if is_whole else ["prompt", "completion", "liked"]


_KINDS: Final = ("desirable", "undesirable")


def _mean(kind: str, name: str, sums: Sums) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = sums[f"{kind} {name}"] / np.maximum(sums[f"{kind} rows"], 1)
    return mean


def _margin(sums: Sums) -> NDArray[np.float64]:
    return _mean("desirable", "reward", sums) - _mean("undesirable", "reward", sums)


def _has_answers(kinds: Sequence[str], sums: Sums) -> bool:
    return all(bool(sums[f"{kind} rows"]) for kind in kinds)


def _mean_of_answers(kind: str, name: str, best: Direction) -> Metric:
    """Return a mean over the good or the bad answers, in nats."""
    return Metric(
        f"{kind}_{name}",
        best,
        partial(_mean, kind, name),
        about=is_positive(f"{kind} rows"),
        exists=partial(_has_answers, (kind,)),
        per_tokenizer=True,  # the start model reads the same tokens
    )


def _roc_auc(scores: ScoreColumns) -> float:
    """The probability that a good answer has a higher reward than a bad one; equal rewards count half."""
    liked = scores["liked"] > 0
    pairs = int(liked.sum()) * int((~liked).sum())
    ranks = mean_ranks(scores["reward"])[liked].sum() - liked.sum() * (liked.sum() + 1) / 2
    return float(ranks / pairs) if pairs else 0.5


def _loss_of_equal_weights(sums: Sums) -> NDArray[np.float64]:
    return (sums["desirable loss"] + sums["undesirable loss"]) / (sums["desirable rows"] + sums["undesirable rows"])


class KTO(AnswersObjective[Options]):
    """Answers that are good or bad."""

    options_class = Options
    defaults = ObjectiveDefaults(1e-6, epochs=1.0, micro_batch_size=4)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", _loss_of_equal_weights, per_tokenizer=True),
        _mean_of_answers("desirable", "reward", "max"),
        _mean_of_answers("desirable", "logprob", "max"),
        _mean_of_answers("undesirable", "reward", "min"),
        _mean_of_answers("undesirable", "logprob", "min"),
        Metric("reward_margin", "max", _margin, exists=partial(_has_answers, _KINDS), per_tokenizer=True),
        Metric("roc_auc", "max", value_of_all=_roc_auc, exists=partial(_has_answers, _KINDS), per_tokenizer=True),
    )
    main_metric = "roc_auc"
    answer_options = ("completion_column",)
    served_scores = ("logprob",)
    trainer_class = "single_answers"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"prompt": "2 + 2 =", "completion": "4", "liked": True},
        {"prompt": "A word for a small dog?", "completion": "kitten, or cat", "liked": False},
    )

    reference_logprobs: Callable[[Mapping[str, Any]], torch.Tensor] | None = None
    """From a batch to its `logprobs` (B,) under the start model; set before any row is scored."""
    reference_point: torch.Tensor | float = 0.0
    """The KL divergence that training estimated for its global batch, in nats."""
    _weights: tuple[float, float] = (1.0, 1.0)
    """Of good and bad answers in training."""

    @property
    def has_reference_point(self) -> bool:
        """Whether the loss has a KL term."""
        return self.options.loss_type == "kto"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        loss = replace(self.metrics["loss"], value=self._weighted_loss)
        self.metrics = {**self.metrics, "loss": loss}  # type: ignore[misc]

    def weigh(self, liked: int, others: int) -> None:
        """Weight the losses of training by how many rows of the train split have good and bad answers."""
        good, bad = self.weights(np.array(liked), np.array(others))
        self._weights = float(good), float(bad)

    def weights(
        self, liked: NDArray[np.float64], others: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights of good and bad answers, (...), for numbers of rows with them, (...).

        By default the ratio of the summed weights is 1, the lower bound of equation 8 of the paper.
        """
        o = self.options
        is_each = (liked > 0) & (others > 0)
        ratio = np.where(is_each, liked / np.maximum(others, 1), 1.0)
        good = np.maximum(1.0, 1 / np.maximum(ratio, 1e-12)) if o.desirable_weight is None else o.desirable_weight
        bad = np.maximum(1.0, ratio) if o.undesirable_weight is None else o.undesirable_weight
        return np.asarray(good), np.asarray(bad)

    # Rows

    def columns(self) -> Mapping[str, ColumnKind]:
        return {**super().columns(), self.options.label_column: "label"}

    def content(self, row: Row) -> Mapping[str, Any]:
        label = self.options.label_column
        return {**super().content(row), label: is_good(row[label])}

    def parts(self, row: Row) -> tuple[Any, Any]:
        prompt, answer = self.prompt_of(row), row[self.options.completion_column]
        if not self.options.chat:
            return split_text(prompt, str(answer))
        asked, own = split_conversation(prompt, answer)
        return self.with_system(row, asked), own

    def reject_reason(self, row: Row) -> str | None:
        try:
            is_good(row[self.options.label_column])
        except ValueError as error:
            return f"its {self.options.label_column} {error}"
        return super().reject_reason(row)

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.has_reference_point and training.global_batch_size < 2:
            what = "is 1, and the KL term of the loss needs the answers of other rows"
            yield Problem(("training", "global_batch_size"), what, "use at least 2, or loss_type apo_zero_unpaired")

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        """Prompt and answer in one sequence, whether it is liked, and `most`: the tokens that another answer may have behind its prompt."""
        encoded = []
        for row, found in zip(rows, self.tokenize_answers(rows, tokenizer, max_length), strict=True):
            if found is None:
                encoded.append(EncodedRow([]))
                continue
            prompt, (answer,), is_truncated = found
            example = {"row_id": row["row_id"], "input_ids": prompt + answer}
            example |= {"labels": [IGNORE_INDEX] * len(prompt) + answer, "most": max_length - len(prompt)}
            liked = int(is_good(row[self.options.label_column]))
            encoded.append(EncodedRow([example | {"liked": liked}], is_truncated))
        return encoded

    def collate(self, examples: Sequence[Example], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
        """As `pad_batch`, with whether answers are liked (B,), and the limits of other answers (B,)."""
        liked = torch.tensor([bool(example["liked"]) for example in examples])
        return pad_batch(examples, tokenizer) | {"liked": liked, "most": torch.tensor([e["most"] for e in examples])}

    def answers(self, batch: Mapping[str, Any]) -> list[list[int]]:
        return [labels[labels != IGNORE_INDEX].tolist() for labels in batch["labels"].cpu()]

    def with_other_answers(
        self, batch: Mapping[str, Any], answers: Sequence[Sequence[int]], tokenizer: Tokenizer
    ) -> dict[str, torch.Tensor]:
        """Return the prompts of a batch with other answers, cut to what fits."""
        examples = []
        for ids, labels, mask, most, answer in zip(
            *(batch[name].cpu() for name in ("input_ids", "labels", "attention_mask", "most")), answers, strict=True
        ):
            prompt, cut = ids[(labels == IGNORE_INDEX) & (mask == 1)].tolist(), [*answer[: int(most)]]
            examples.append({"input_ids": prompt + cut, "labels": [IGNORE_INDEX] * len(prompt) + cut})
        return pad_batch(examples, tokenizer)

    # Loss, scores and metrics

    def set_reference(self, start: Callable[[], PreTrainedModel]) -> None:
        model = cache(lambda device: start().eval().to(device))
        self.reference_logprobs = lambda batch: self.logprobs(model(batch["input_ids"].device), batch)

    def logprobs(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of the answers of a batch, (B,)."""
        return sequence_logprobs(model, {n: batch[n] for n in ("input_ids", "attention_mask")}, batch["labels"])

    def loss_items(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return torch.tensor(len(batch["input_ids"]))

    def score_answers(
        self, model: Any, batch: Mapping[str, Any], reference_point: torch.Tensor | float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return losses without weights, rewards and log-probabilities of answers, (B,) each."""
        assert self.reference_logprobs is not None, "call set_reference first, or train"
        logprobs = self.logprobs(model, batch)
        with torch.no_grad():
            reference = self.reference_logprobs(batch)
        logratios = logprobs - reference
        losses = unpaired_losses(logratios, batch["liked"], reference_point, beta=self.options.beta)
        return losses, self.options.beta * logratios, logprobs

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        """Return the mean of weighted losses over rows; micro-batches hold equally many."""
        losses, _, _ = self.score_answers(model, batch, self.reference_point)
        weighted = losses * torch.where(batch["liked"], *self._weights)
        return BatchLoss(weighted.mean() / share.micro_batches)

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return _SCORES

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """The reward of each answer, and whether it is good, 1 or 0, (B,)."""
        losses, rewards, logprobs = self.score_answers(model, batch)
        scores = torch.stack([losses, batch["liked"].double(), rewards, logprobs], dim=1)
        return ScoredBatch(scores, rewards, batch["liked"].long(), predictions=rewards)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """One, loss, reward and log-probability of rows with good answers, then of those with bad ones."""
        own = {"rows": np.ones_like(scores["loss"]), **{name: scores[name] for name in ("loss", "reward", "logprob")}}
        liked = scores["liked"] > 0
        return {
            f"{kind} {name}": np.where(is_kind, values, 0.0)
            for kind, is_kind in zip(_KINDS, (liked, ~liked), strict=True)
            for name, values in own.items()
        }

    def _weighted_loss(self, sums: Sums) -> NDArray[np.float64]:
        """The loss per row, weighted as in training."""
        liked, others = (sums[f"{kind} rows"] for kind in _KINDS)
        good, bad = self.weights(liked, others)
        return (good * sums["desirable loss"] + bad * sums["undesirable loss"]) / (liked + others)
