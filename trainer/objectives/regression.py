"""Regression: a number for a text, or for a pair of texts; or several numbers.

    {"text": "The battery died after two days.", "label": 1.5}

The model learns the numbers less their mean and divided by their standard deviation, both of the train split, and answers in their own
units. The loss is the mean squared error of the standardized numbers, or Huber's (1964, https://doi.org/10.1214/aoms/1177703732).
`mae` is the mean absolute error in units; `pearson` and `spearman` are the correlations of numbers, and of their ranks, with what the model
predicts, 0 if it predicts the same for all. With several numbers, each metric is the mean over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat

from params import DataError, Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from trainer.objectives.advice.pairs import TEXT_FLAGS, TextOrPairAdvice
from trainer.objectives.bases.labels.names import are_unnamed, match_labels, require_problem_type
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import compute_logits, without_labels
from trainer.objectives.bases.loss import BatchLoss, MicroBatchShare
from trainer.objectives.bases.metrics.metric import Metric, Sums, named, ratio
from trainer.objectives.bases.metrics.rank_correlation import spearman
from trainer.objectives.bases.network import standardization
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, Example, ObjectiveState, Row, ScoreColumns
from trainer.objectives.bases.rows import RowBreakdown, cut_into_tenths
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.pairs import TextOrPairObjective, TextOrPairOptions
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.objectives.bases.vectors.sentence_transformers_files import set_activation

_NO_SPREAD = 1e-12
"""A variance of standardized numbers that is only rounding."""


class Options(TextOrPairOptions):
    """Keys of the recipe's `objective` section."""

    label_column: str | list[str] = "label"
    """The column with the number, or a list of columns with a number each."""
    loss: Literal["mse", "huber"] = "mse"
    """The squared error, or Huber's loss, which single numbers that are far off move less."""
    huber_delta: PositiveFloat = 1.0
    """How many standard deviations an error has from which on Huber's loss grows no faster than the error."""


class _Advice(TextOrPairAdvice):
    meaning = "a number for each text"
    columns: ClassVar[Mapping[str, str]] = {**TEXT_FLAGS, "score": "label_column"}
    place = 3


def _mean_absolute_error(sums: Sums) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error: NDArray[np.float64] = (sums["error"] / sums["rows"][..., None]).mean(-1)
        return error


def _pearson(sums: Sums) -> NDArray[np.float64]:
    """The correlation of predicted (p) and given (g) numbers, from their moments; of several numbers the mean."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        p, g, pp, gg, pg = (sums[name] / sums["rows"][..., None] for name in ("p", "g", "pp", "gg", "pg"))  # (..., T)
        spread = np.clip(pp - p * p, 0, None) * np.clip(gg - g * g, 0, None)
        pearson = np.where(spread > _NO_SPREAD**2, (pg - p * g) / np.sqrt(np.maximum(spread, _NO_SPREAD**2)), 0.0)
        mean: NDArray[np.float64] = pearson.mean(-1)
        return mean


def _spearman(scores: ScoreColumns) -> float:
    """Spearman's rank correlation, equal numbers having the mean of their ranks; of several numbers the mean."""
    pairs = list(zip(*(values.T for values in _columns(scores)), strict=True))
    return sum(spearman(predicted, given) for predicted, given in pairs) / len(pairs)


def _numbers_differ(sums: Sums) -> bool:
    """Whether the rows have different numbers: without, there is no correlation."""
    g, gg = (sums[name] / np.maximum(sums["rows"], 1) for name in ("g", "gg"))
    return bool((gg - g * g > _NO_SPREAD).all())


def _columns(scores: ScoreColumns) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is predicted and what is given, (N, T) each."""
    names = [name.removeprefix("given ") for name in scores if name.startswith("given ")]
    predicted, given = (np.stack([scores[f"{what} {name}"] for name in names], 1) for what in ("predicted", "given"))
    return predicted, given


class Regression(TextOrPairObjective[Options]):
    """One or several numbers."""

    options_class = Options
    defaults = ObjectiveDefaults(5e-5, 4.0, 32, 32, group_by_length=True)
    advice = _Advice()
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("loss", "rows")),
        Metric("mae", "min", _mean_absolute_error),
        Metric("pearson", "max", _pearson, exists=_numbers_differ),
        Metric("spearman", "max", value_of_all=_spearman, exists=_numbers_differ),
    )
    main_metric = "mae"
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "The battery died after two days.", "label": 1.5},
        {"text": "It does what it should, and the battery lasts for a week.", "label": 4},
        {"text": "Fine.", "label": 3.25},
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        named = options.label_column
        self.names = (named,) if isinstance(named, str) else tuple(named)
        """The columns of the T numbers."""
        self.served_scores = tuple(f"predicted {name}" for name in self.names)

    def columns(self) -> Mapping[str, ColumnKind]:
        return {**self.text_columns(), **dict.fromkeys(self.names, "number")}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        if not self.names or len(set(self.names)) < len(self.names):
            what = "names no column" if not self.names else "names a column twice"
            yield Problem(("objective", "label_column"), what, "name each column with a number once")
        if "huber_delta" in self.options.model_fields_set and self.options.loss != "huber":
            yield Problem(("objective", "huber_delta"), "has no effect on this loss", "remove it, or set `loss: huber`")
        yield from super().conflicts(model=model, training=training, launch=launch)

    def summarize(self, rows: Iterable[Row]) -> standardization.Moments:
        values = [self._numbers(row) for row in rows]
        return standardization.measure_moments(np.array(values, float).reshape(-1, len(self.names)))

    def state_of_summaries(self, summaries: Iterable[standardization.Moments]) -> ObjectiveState:
        means, deviations = standardization.standardization_of(summaries)
        for name, mean, deviation in zip(self.names, means, deviations, strict=True):
            if not deviation:
                what = f"every row of the train split has the number {mean:g}, so there is nothing to learn"
                raise DataError(name, what, "add rows with other numbers, or name another column")
            if not standardization.FINEST * abs(mean) <= deviation < math.inf:
                what = f"numbers around {mean:g} that vary by {deviation:g} cannot be told apart in single precision"
                raise DataError(name, what, "subtract about their mean from them, or write them in another unit")
        return {"numbers": list(self.names), "mean": means, "std": deviations}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        encoded = self.encode_inputs(rows, tokenizer, max_length)
        return [
            EncodedRow([example | {"labels": self._numbers(row)}], is_truncated)
            for row, (example, is_truncated) in zip(rows, encoded, strict=True)
        ]

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        names = dict(enumerate(state["numbers"]))
        label2id = {name: i for i, name in names.items()}
        return {"num_labels": len(names), "id2label": names, "label2id": label2id, "problem_type": "regression"}

    def prepare_model(
        self, model: PreTrainedModel, tokenizer: Tokenizer, state: ObjectiveState, new: Collection[str]
    ) -> None:
        standardization.standardize_head(model, state["mean"], state["std"], new)
        set_activation(model.config, "linear.Identity")

    def batch_loss(self, model: Any, batch: Mapping[str, Any], share: MicroBatchShare) -> BatchLoss:
        outputs = model(**without_labels(batch))
        errors = (outputs.logits - batch["labels"]) / standardization.read_standard_deviation(model)
        return BatchLoss(self._losses(errors).sum().float() / share.items * share.processes, outputs)

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        """Return a model whose logits are this run's numbers, by their names; ValueError if it does not predict one of them."""
        config, wanted = model.config, state["numbers"]
        require_problem_type(config, "regression")
        known = [str(config.id2label[i]) for i in range(config.num_labels)]
        if known == wanted or (len(known) == len(wanted) and (len(wanted) == 1 or are_unnamed(known))):
            return model
        places = match_labels(known, wanted)
        if lacking := [name for name, place in zip(wanted, places, strict=True) if place is None]:
            raise ValueError(f"it does not predict {lacking[0]!r}")

        def rearrange(_: Any, __: Any, outputs: Any) -> Any:
            outputs.logits = outputs.logits[..., places]
            return outputs

        model.register_forward_hook(rearrange)
        return model

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        return {**other, **{name: example[name] for name in ("row_id", "labels")}}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return [f"{what} {name}" for what in ("predicted", "given") for name in self.names]

    def score_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: Tokenizer) -> ScoredBatch:
        """What is predicted and given for each number, in units, (B, T) each; the scores are both, (B, 2 T)."""
        predicted, given = compute_logits(model, batch), batch["labels"]
        scores = torch.cat([predicted.double(), given.double()], 1)
        return ScoredBatch(scores, predicted, given)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """One and the loss; for each number the absolute error in units, and, standardized: p, g, p², g² and p g, (N, T) each."""
        predicted, given = _columns(scores)
        with np.errstate(invalid="ignore", over="ignore"):  # a model that has diverged
            p, g = ((values - state["mean"]) / state["std"] for values in (predicted, given))
            return {
                "rows": np.ones(len(p)),
                "loss": self._losses(torch.from_numpy(p - g)).numpy(),
                "error": np.abs(predicted - given),
                "p": p,
                "g": g,
                "pp": p * p,
                "gg": g * g,
                "pg": p * g,
            }

    def row_error(self, scores: ScoreColumns) -> NDArray[np.float64]:
        predicted, given = _columns(scores)
        error: NDArray[np.float64] = np.abs(predicted - given).mean(1)
        return error

    def breakdowns(self, scores: ScoreColumns) -> Sequence[RowBreakdown]:
        """The error by tenths of the true number, in units: its size, and its mean, positive where the model predicts too much."""
        found = []
        for name, predicted, given in zip(self.names, *(values.T for values in _columns(scores)), strict=True):
            error = predicted - given
            values = {"mean absolute error": np.abs(error), "mean error": error}
            found.append(RowBreakdown(f"true {name}", *cut_into_tenths(given), values))
        return found

    @property
    def call_arguments(self) -> Mapping[str, Any]:
        several = {"top_k": None} if len(self.names) > 1 else {}
        return {**super().call_arguments, "function_to_apply": "none", **several}

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        answers = ask(self.reader_input(row), top_k=None)
        return {f"predicted {one['label']}": float(one["score"]) for one in answers}

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        def listed(what: str) -> str:
            return ", ".join(f"{scores[f'{what} {name}']:.6g}" for name in self.names)

        return {"expected": listed("given"), "predicted": listed("predicted")}

    def prediction_lines(
        self, row: Row, model: PreTrainedModel, tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[str]:
        ((example,), _), *_ = self.encode([row], tokenizer, max_length, state)
        numbers = compute_logits(model, self.collate([example], tokenizer))[0].tolist()
        return [f"{name}: {number:.6g}" for name, number in zip(self.names, numbers, strict=True)]

    def _numbers(self, row: Row) -> list[float]:
        return [float(row[name]) for name in self.names]

    def _losses(self, errors: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, (B,), of errors in standard deviations, (B, T)."""
        if self.options.loss == "mse":
            return (errors**2).mean(-1)
        return F.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=self.options.huber_delta).mean(-1)
