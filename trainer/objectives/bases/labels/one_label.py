"""The base of objectives that learn one label per text, or per pair of texts: all of them but what rows, options and advice are called.

class Options(TextOrPairOptions):
tone_column: str = "tone"

class Tone(OneLabel[Options]):
options_class = Options
label_option = "tone_column"
example_rows = ({"text": "well done", "tone": "kind"}, {"text": "not again", "tone": "angry"})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from params import DataError
from params.defaults import ObjectiveDefaults
from trainer.objectives.bases.labels.names import require_problem_type
from trainer.objectives.bases.lazy_imports import F, NDArray, PreTrainedModel, np, torch
from trainer.objectives.bases.likelihood import ClassifierObjective
from trainer.objectives.bases.metrics.calibration import calibration_error, calibration_statistics
from trainer.objectives.bases.metrics.label_results import LabelBeliefs, macro_f1, rows_of_macro_f1
from trainer.objectives.bases.metrics.metric import Metric, Sums, every_row, named, ratio
from trainer.objectives.bases.objective import (
    ColumnKind,
    EncodedRow,
    Example,
    ObjectiveState,
    OptionsT,
    Row,
    ScoreColumns,
)
from trainer.objectives.bases.texts.pairs import TextOrPairObjective
from trainer.objectives.bases.texts.tokenizing import Tokenizer

_KIND = "single_label_classification"
"""The `problem_type` of the model, by which a pipeline answers a softmax."""


def _right_rows(scores: ScoreColumns) -> NDArray[np.bool_]:
    right: NDArray[np.bool_] = scores["label"] == scores["prediction"]
    return right


class OneLabel(TextOrPairObjective[OptionsT], ClassifierObjective[OptionsT]):
    """One label per text or pair of texts. The options name the columns of the texts (`text_options`) and of the label (`label_option`)."""

    label_option: ClassVar[str] = "label_column"
    """The option that names the column of the label."""
    # Devlin et al. 2019 (https://arxiv.org/abs/1810.04805, A.3)
    defaults = ObjectiveDefaults(5e-5, 4.0, 32, 32, best_metric="accuracy", group_by_length=True)
    # Within the rows of one label, accuracy is the label's recall. Macro F1 could not exceed 1 / (labels that are predicted there),
    # and not even a calibrated model is calibrated there.
    metrics: ClassVar[Mapping[str, Metric]] = named(
        Metric("loss", "min", ratio("nll", "rows")),
        Metric("accuracy", "max", ratio("correct", "rows"), share_of=every_row, right=_right_rows),
        Metric("macro_f1", "max", macro_f1, share_of=rows_of_macro_f1, on_slices="accuracy"),
        Metric("calibration_error", "min", calibration_error, share_of=every_row, on_slices="loss"),
    )
    main_metric = "accuracy"
    counts_labels = True
    served_scores = ("nll", "confidence")

    @property
    def label_column(self) -> str:
        """The column of the label."""
        return str(getattr(self.options, self.label_option))

    def columns(self) -> Mapping[str, ColumnKind]:
        return {**self.text_columns(), self.label_column: "label"}

    def row_labels(self, row: Row) -> Iterable[str]:
        return (str(row[self.label_column]),)

    def state_of(self, labels: Collection[str]) -> ObjectiveState:
        return {"labels": sorted({label.strip() for label in labels})}

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        numbers = {label: number for number, label in enumerate(state["labels"])}
        labels = [self._label(row) for row in rows]
        if unknown := next((label for label in labels if label not in numbers), None):
            raise ValueError(f"no training row has the label {unknown!r}")
        encoded = self.encode_inputs(rows, tokenizer, max_length)
        return [
            EncodedRow([example | {"labels": numbers[label]}], is_truncated)
            for label, (example, is_truncated) in zip(labels, encoded, strict=True)
        ]

    def model_config(self, state: ObjectiveState) -> dict[str, Any]:
        """As the base class, for at least two labels: of one, a pipeline takes the sigmoid."""
        if len(state["labels"]) < 2:
            what = f"every row of the train split has the label {', '.join(map(repr, state['labels']))}"
            raise DataError(self.label_column, f"{what}, so there is nothing to learn", "add rows with other labels")
        return {**super().model_config(state), "problem_type": _KIND}

    def remap_labels(self, model: PreTrainedModel, state: ObjectiveState) -> PreTrainedModel:
        """As the base class. ValueError if the model gives a text other than one label."""
        require_problem_type(model.config, _KIND)
        return super().remap_labels(model, state)

    def answer_scores(
        self, ask: Callable[..., Any], row: Row, example: Example, tokenizer: Tokenizer
    ) -> Mapping[str, float]:
        found = {str(one["label"]): float(one["score"]) for one in ask(self.reader_input(row), top_k=None)}
        known = found.get(self._label(row), 0.0)
        return {"nll": -math.log(known) if known else math.inf, "confidence": max(found.values())}

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, C) logits and (B,) labels to losses (B,)."""
        return F.cross_entropy(logits.float(), labels, reduction="none")

    def with_inputs_of(self, example: Example, other: Example) -> Example | None:
        return {**other, **{name: example[name] for name in ("row_id", "labels")}}

    def score_names(self, state: ObjectiveState) -> Sequence[str]:
        return ("nll", "label", "prediction", "confidence")

    def score_logits(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood, label, prediction and its probability, (B, 4)."""
        confidence, prediction = logits.double().softmax(-1).max(-1)
        losses = self.charge_unknown(self.losses(logits, labels), labels)
        return torch.stack([losses.double(), labels.double(), prediction.double(), confidence], 1)

    def statistics(self, scores: ScoreColumns, state: ObjectiveState) -> Sums:
        """Per label true positives, predictions, rows, (N, 3, C). A prediction outside of the labels counts as incorrect, and for no label."""
        correct = _right_rows(scores).astype(float)
        classes = np.arange(len(state["labels"]))
        actual, predicted = (scores[name][:, None] == classes for name in ("label", "prediction"))  # (N, C)
        return {
            "nll": scores["nll"],
            "rows": np.ones_like(scores["nll"]),
            "correct": correct,
            "labels": np.stack([actual & predicted, predicted, actual], axis=1).astype(float),
            "calibration": calibration_statistics(scores["confidence"], correct),
        }

    def confusion_matrix(self, scores: ScoreColumns, state: ObjectiveState) -> NDArray[np.int64]:
        labels = len(state["labels"])
        places = scores["label"] * (labels + 1) + np.minimum(scores["prediction"], labels)
        return np.bincount(places.astype(int), minlength=labels * (labels + 1)).reshape(labels, labels + 1)

    def label_beliefs(self, scores: ScoreColumns, state: ObjectiveState) -> Iterator[LabelBeliefs]:
        given, likeliest = (scores[name].astype(np.int64) for name in ("label", "prediction"))
        yield LabelBeliefs(state["labels"], given, np.exp(-scores["nll"]), likeliest, scores["confidence"])

    def confidence(self, scores: ScoreColumns) -> NDArray[np.float64]:
        return scores["confidence"]

    def describe_scores(self, scores: Mapping[str, float], state: ObjectiveState) -> dict[str, str]:
        labels, prediction = state["labels"], int(scores["prediction"])
        return {
            "expected": labels[int(scores["label"])],
            "predicted": labels[prediction] if prediction < len(labels) else "a label of another run",
            "confidence": f"{scores['confidence']:.3f}",
        }

    def _label(self, row: Row) -> str:
        return str(row[self.label_column]).strip()
