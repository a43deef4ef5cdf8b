"""Sequence classification: one label per text.

    {"text": "I am still waiting on my card?", "label": "card_arrival"}

The labels are those of the train split, in sorted order. The loss is the mean negative log-likelihood per row, in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from params.schema import Direction, Expectation, Section, Training
from trainer.objectives.bases.likelihood import Likelihood, label_loss, label_names, pad_batch, relabelled
from trainer.objectives.bases.objective import Example, Kind, Row, Scores, State

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BINS = 15
"""Of confidence, each of the same width."""


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    label_column: str = "label"
    """The column with the label, text or integer."""


class SequenceClassification(Likelihood[Options]):
    """One label per text."""

    options_class = Options
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "accuracy": "max",
        "macro_f1": "max",
        "calibration_error": "min",
    }
    main_metric = "accuracy"
    score_names = ("nll", "label", "prediction", "confidence")
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
        """(B, C) logits and (B,) labels to negative log-likelihood, label, prediction and its probability, (B, 4)."""
        import torch

        confidence, prediction = logits.double().softmax(-1).max(-1)
        return torch.stack([self.losses(logits, labels).double(), labels.double(), prediction.double(), confidence], 1)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """Loss, one, whether right; per label how often right, predicted, there; per bin rows, confidence, right.

        (N, 3 + 3 C + 3 bins). A prediction that is none of the labels is counted as wrong only.
        """
        import numpy as np

        right = scores["label"] == scores["prediction"]
        classes = np.arange(len(state["labels"]))
        there, told = (scores[name][:, None] == classes for name in ("label", "prediction"))  # (N, C)
        place = (np.nan_to_num(scores["confidence"]) * _BINS).astype(int)  # the loss says that it is no number
        bins = np.minimum(place, _BINS - 1)[:, None] == np.arange(_BINS)
        sure = bins * scores["confidence"][:, None]
        alone = np.stack([scores["nll"], np.ones_like(right), right], axis=1)
        return np.concatenate([alone, there & told, told, there, bins, sure, bins & right[:, None]], axis=1).astype(
            float
        )

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        """Loss in nats per row; accuracy over rows; F1 averaged over the labels that occur; expected calibration error.

        The calibration error is the mean distance of confidence and accuracy, over bins of confidence that are weighted by
        their rows (Guo et al. 2017, https://arxiv.org/abs/1706.04599, equation 3), with 15 bins of equal width.
        """
        import numpy as np

        labels = len(state["labels"])
        nll, rows, right = np.moveaxis(totals[..., :3], -1, 0)
        both, told, there = np.split(totals[..., 3 : 3 + 3 * labels], 3, axis=-1)  # (..., C)
        occurs = told + there > 0
        f1 = np.where(occurs, 2 * both / np.maximum(told + there, 1), 0.0).sum(-1) / np.maximum(occurs.sum(-1), 1)
        _, sure, hit = np.split(totals[..., 3 + 3 * labels :], 3, axis=-1)  # (..., bins)
        error = np.abs(sure - hit).sum(-1) / rows
        return {"loss": nll / rows, "accuracy": right / rows, "macro_f1": f1, "calibration_error": error}

    def outcomes(self, metric: str, scores: Scores) -> NDArray[np.bool_] | None:
        return scores["label"] == scores["prediction"] if metric == "accuracy" else None

    def notes(self, scores: Mapping[str, float], state: State) -> dict[str, str]:
        labels = state["labels"]
        told = int(scores["prediction"])
        said = labels[told] if told < len(labels) else "a label of another run"
        return {
            "expected": labels[int(scores["label"])],
            "predicted": said,
            "confidence": f"{scores['confidence']:.3f}",
        }

    def calibration(self, totals: NDArray[np.float64], state: State) -> list[dict[str, float]]:
        bins = totals[3 + 3 * len(state["labels"]) :].reshape(3, -1).T
        return [
            {"confidence": sure / rows, "accuracy": hit / rows, "rows": int(rows)} for rows, sure, hit in bins if rows
        ]

    def remap_labels(self, model: PreTrainedModel, state: State) -> PreTrainedModel:
        return relabelled(model, state["labels"])
