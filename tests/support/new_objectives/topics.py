"""Topics: any number of labels per text.

    {"text": "the train was late, and there was no tea", "topics": ["food", "travel"]}

Each label has a probability of its own. The loss is the sum of their negative log-likelihoods, in nats per row.
"""

from __future__ import annotations

from params.sections.base import Section
from trainer.objectives.advice.base import AdvisedValue, ClassifierNewRecipeAdvice, ObjectiveFit
from trainer.objectives.bases.labels.sets import list_labels_in
from trainer.objectives.bases.likelihood import ClassifierObjective, without_labels
from trainer.objectives.bases.loss import BatchLoss
from trainer.objectives.bases.metrics.metric import Metric, named, ratio
from trainer.objectives.bases.objective import EncodedRow
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    topics_column: str = "topics"
    """The column with the list of labels, which may be empty."""


class _Advice(ClassifierNewRecipeAdvice):
    meaning = "any number of labels per text"
    columns = {"text": "text_column", "label": "topics_column"}

    def fit(self, seen):
        return ObjectiveFit.NOT

    def best_metric(self, labels):
        return AdvisedValue("micro_f1", "over all labels")


def _micro_f1(sums):
    return 2 * sums["right"] / sums["labels"].clip(min=1)


def _rows_with_labels(sums):
    return [float(sums["labels"]) / 2]


class Topics(ClassifierObjective[Options]):
    """A sigmoid for each label."""

    options_class = Options
    advice = _Advice()
    metrics = named(
        Metric("loss", "min", ratio("nll", "rows")),
        Metric("micro_f1", "max", _micro_f1, share_of=_rows_with_labels),
    )
    main_metric = "micro_f1"
    cut_texts_are_easier = False
    smooths_labels = False
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    example_rows = (
        {"text": "the train was late, and there was no tea", "topics": ["travel", "food"]},
        {"text": "rain and wind", "topics": ["weather"]},
        {"text": "it is what it is", "topics": []},
    )

    def columns(self):
        return {self.options.text_column: "string", self.options.topics_column: "labels"}

    def text(self, row):
        return row[self.options.text_column]

    def row_labels(self, row):
        return list(list_labels_in(row[self.options.topics_column]))

    def state_of(self, labels):
        return {"labels": sorted(labels)}

    def encode(self, rows, tokenizer, max_length, state):
        encoded = tokenize_texts_truncated([self.text(row) for row in rows], tokenizer, max_length)
        return [
            EncodedRow([{"row_id": row["row_id"], "input_ids": ids, "labels": self._marks(row, state)}], is_truncated)
            for row, (ids, is_truncated) in zip(rows, encoded, strict=True)
        ]

    def _marks(self, row, state):
        own = set(self.row_labels(row))
        return [float(label in own) for label in state["labels"]]

    def model_config(self, state):
        return {**super().model_config(state), "problem_type": "multi_label_classification"}

    def remap_labels(self, model, state):
        """A label that the model does not know gets the logit of a blind guess; one that only it knows does not count."""
        import torch

        known = [str(model.config.id2label[i]) for i in range(model.config.num_labels)]
        places = [known.index(label) if label in known else -1 for label in state["labels"]]

        def rearrange(_, __, outputs):
            outputs.logits = torch.cat([outputs.logits, torch.zeros_like(outputs.logits[..., :1])], -1)[..., places]
            return outputs

        if known != state["labels"]:
            model.register_forward_hook(rearrange)
        return model

    def losses(self, logits, labels):
        import torch.nn.functional as F

        return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")

    def batch_loss(self, model, batch, share):
        outputs = model(**without_labels(batch))
        return BatchLoss(self.losses(outputs.logits, batch["labels"]).sum() / share.items * share.processes, outputs)

    def score_names(self, state):
        return ("nll", *(f"{what} {label}" for what in ("given", "predicted") for label in state["labels"]))

    def score_logits(self, logits, labels):
        import torch

        nll = self.losses(logits, labels).double().sum(1, keepdim=True)
        return torch.cat([nll, labels.double(), (logits > 0).double()], 1)

    def statistics(self, scores, state):
        import numpy as np

        given, predicted = (
            np.stack([scores[f"{what} {label}"] for label in state["labels"]], 1) for what in ("given", "predicted")
        )
        both = given.sum(1) + predicted.sum(1)
        return {"rows": np.ones(len(both)), "nll": scores["nll"], "right": (given * predicted).sum(1), "labels": both}

    def describe_scores(self, scores, state):
        named = {w: [n for n in state["labels"] if scores[f"{w} {n}"]] for w in ("given", "predicted")}
        return {what: ", ".join(found) or "none" for what, found in named.items()}

    @property
    def call_arguments(self):
        return {"truncation": True, "top_k": None}

    def reader_input(self, row):
        return self.text(row)
