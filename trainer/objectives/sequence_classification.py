"""Sequence classification: one label per text, or per pair of texts.

    {"text": "I am still waiting on my card?", "label": "card_arrival"}

With `text_pair_column`, a pair such as premise and hypothesis is read together.

The labels are the sorted labels of the train split. The loss is the mean negative log-likelihood per row, in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trainer.objectives.advice.base import AdvisedValue
from trainer.objectives.advice.pairs import TEXT_FLAGS, TextOrPairAdvice
from trainer.objectives.bases.labels.one_label import OneLabel
from trainer.objectives.bases.objective import Row
from trainer.objectives.bases.texts.pairs import TextOrPairOptions


class Options(TextOrPairOptions):
    """Keys of the recipe's `objective` section."""

    label_column: str = "label"
    """The column with the label, text or integer."""


class _Advice(TextOrPairAdvice):
    meaning = "one label per text"
    columns: ClassVar[Mapping[str, str]] = {**TEXT_FLAGS, "label": "label_column"}
    place = 2
    gates_on_best_metric = True

    def best_metric(self, labels: Mapping[str, int]) -> AdvisedValue:
        label = max(labels, key=labels.__getitem__)
        share = labels[label] / sum(labels.values())
        if share <= 0.5 or len(labels) < 2:
            return AdvisedValue("accuracy", "no label has most of the rows")
        return AdvisedValue(
            "macro_f1", f"{share:.0%} of the rows have the label {label!r}: accuracy would hide the others"
        )


class SequenceClassification(OneLabel[Options]):
    """One label per text or pair of texts."""

    options_class = Options
    advice = _Advice()
    example_rows: ClassVar[tuple[Row, ...]] = (
        {"text": "I am still waiting on my card?", "label": "card_arrival"},
        {"text": "How do I reset my passcode?", "label": "passcode_forgotten"},
        {"text": "Can I track my card while it is in the process of delivery?", "label": "card_arrival"},
    )
