"""Sequence classification: one label per text.

    {"text": "I am still waiting on my card?", "label": "card_arrival"}

The labels are those of the train split, in sorted order. The loss is the mean negative log-likelihood per row, in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from params.schema import Expectation, Section, Training
from trainer.likelihood import Likelihood, label_loss, label_names, pad_batch
from trainer.objectives import Example, Kind, Row, State

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    label_column: str = "label"
    """The column with the label, text or integer."""


class SequenceClassification(Likelihood[Options]):
    """One label per text."""

    options_class = Options
    metrics: ClassVar[Mapping[str, Literal["min", "max"]]] = {"loss": "min", "accuracy": "max", "macro_f1": "max"}
    score_names = ("nll", "label", "prediction")
    pipeline_tag = "text-classification"
    examples: ClassVar[tuple[Row, ...]] = (
        {"text": "I am still waiting on my card?", "label": "card_arrival"},
        {"text": "How do I reset my passcode?", "label": "passcode_forgotten"},
        {"text": "Can I track my card while it is in the process of delivery?", "label": "card_arrival"},
    )

    def columns(self) -> Mapping[str, Kind]:
        return {self.options.text_column: "string", self.options.label_column: "label"}

    def expectations(self, train: pd.DataFrame) -> list[Expectation]:
        """A label that training never sees cannot be predicted: it ends the stage."""
        labels = sorted(train[self.options.label_column].dropna().unique().tolist(), key=str)
        seen = Expectation(
            type="expect_column_values_to_be_in_set",
            column=self.options.label_column,
            value_set=labels,
            on_failure="fail",
        )
        return [*super().expectations(train), seen]

    def text(self, row: Row) -> str:
        return str(row[self.options.text_column])

    def fit(self, rows: Iterable[Row]) -> State:
        return {"labels": sorted({str(row[self.options.label_column]) for row in rows})}

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        ids = tokenizer(self.text(row), truncation=True, max_length=max_length)["input_ids"]
        label = state["labels"].index(str(row[self.options.label_column]))
        return [{"row_id": row["row_id"], "input_ids": ids, "labels": label}]

    def collate(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
        return pad_batch(examples, tokenizer)

    def model_class(self) -> type[PreTrainedModel]:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification  # type: ignore[no-any-return]

    def model_config(self, state: State) -> dict[str, Any]:
        return label_names(state["labels"])

    def loss(self, training: Training) -> Callable[..., Any]:
        return label_loss(training)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, C) logits and (B,) labels to (B,)."""
        import torch.nn.functional as F

        return F.cross_entropy(logits.float(), labels, reduction="none")

    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, C) logits and (B,) labels to negative log-likelihood, label and prediction, (B, 3)."""
        import torch

        return torch.stack([self.losses(logits, labels).double(), labels.double(), logits.argmax(-1).double()], dim=1)

    def meter(self, state: State) -> ClassMeter:
        return ClassMeter(len(state["labels"]))


class ClassMeter:
    """Loss, accuracy and macro F1 over any number of rows, from a (C, C) confusion matrix."""

    def __init__(self, num_labels: int) -> None:
        from torchmetrics import MeanMetric, MetricCollection
        from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

        # "disable": a loss that is NaN must be seen, by default it would be left out of the mean
        self._loss = MeanMetric(nan_strategy="disable").set_dtype(_float64())
        self._classes = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(num_labels, average="micro"),
                "macro_f1": MulticlassF1Score(num_labels, average="macro"),
            }
        )

    def update(self, scores: torch.Tensor) -> None:
        """Add (B, 3) scores."""
        nll, label, prediction = scores.cpu().unbind(1)
        self._loss.update(nll)
        self._classes.update(prediction.long(), label.long())

    def compute(self) -> dict[str, float]:
        """Loss in nats per row; accuracy over rows; F1 averaged over labels."""
        return {"loss": float(self._loss.compute()), **{k: float(v) for k, v in self._classes.compute().items()}}


def _float64() -> torch.dtype:
    import torch

    return torch.float64
