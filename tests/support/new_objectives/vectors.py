"""Vectors: what another model makes of a text, learned from its numbers.

    {"text": "a cat sees a bird", "vector": [0.25, -1.0, 0.5]}

The model learns each number less its mean in the train split, which the loss gets as `share.state`.
"""

from __future__ import annotations

from params import DataError
from params.sections.base import Section
from trainer.objectives.bases.likelihood import compute_logits, without_labels
from trainer.objectives.bases.loss import BatchLoss
from trainer.objectives.bases.metrics.metric import Metric, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Objective
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """Keys of the recipe's `objective` section."""

    text_column: str = "text"
    """The column with the text."""
    vector_column: str = "vector"
    """The column with the list of numbers."""


class Vectors(Objective[Options]):
    """Several numbers of a text, as many in each row."""

    options_class = Options
    metrics = named(Metric("loss", "min", ratio("error", "rows")))
    main_metric = "loss"
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    example_rows = (
        {"text": "a cat sees a bird", "vector": [0.25, -1.0, 0.5]},
        {"text": "the rain", "vector": [0, 2, 1.5]},
    )

    def columns(self):
        return {self.options.text_column: "string", self.options.vector_column: "numbers"}

    def text(self, row):
        return row[self.options.text_column]

    def summarize(self, rows):
        """The number of rows by the size of their vector, and the sum of each number."""
        found = {}
        for vector in (row[self.options.vector_column] for row in rows):
            count, sums = found.get(len(vector), (0, [0.0] * len(vector)))
            found[len(vector)] = count + 1, [a + b for a, b in zip(sums, vector, strict=True)]
        return found

    def state_of_summaries(self, summaries):
        parts = [part for summary in summaries for part in summary.items()]
        sizes = sorted({size for size, _ in parts})
        if len(sizes) != 1:
            what = f"its lists have {' or '.join(map(str, sizes)) or 'no'} numbers"
            raise DataError(self.options.vector_column, what, "give each row as many")
        rows = sum(count for _, (count, _) in parts)
        return {"mean": [sum(values) / rows for values in zip(*(sums for _, (_, sums) in parts), strict=True)]}

    def encode(self, rows, tokenizer, max_length, state):
        encoded = tokenize_texts_truncated([self.text(row) for row in rows], tokenizer, max_length)
        return [
            EncodedRow([{"row_id": row["row_id"], "input_ids": ids, "labels": self._vector(row, state)}], is_cut)
            for row, (ids, is_cut) in zip(rows, encoded, strict=True)
        ]

    def _vector(self, row, state):
        vector = [float(number) for number in row[self.options.vector_column]]
        if len(vector) != len(state["mean"]):
            raise ValueError(f"its {self.options.vector_column} has {len(vector)} numbers, not {len(state['mean'])}")
        return vector

    def model_config(self, state):
        return {"num_labels": len(state["mean"]), "problem_type": "regression"}

    def batch_loss(self, model, batch, share):
        outputs = model(**without_labels(batch))
        wanted = batch["labels"] - outputs.logits.new_tensor(share.state["mean"])
        losses = ((outputs.logits - wanted) ** 2).mean(1)
        return BatchLoss(losses.sum() / share.items * share.processes, outputs)

    def prepare_model(self, model, tokenizer, state, new):
        """Scores need the mean, too, also of a model that is loaded."""
        model.config.vector_mean = list(state["mean"])

    def score_names(self, state):
        return ("error",)

    def score_outputs(self, model, batch, tokenizer):
        mean = getattr(model, "module", model).config.vector_mean
        predicted = compute_logits(model, batch).double()
        predicted = predicted + predicted.new_tensor(mean)
        errors = ((predicted - batch["labels"]) ** 2).mean(1, keepdim=True)
        return ScoredBatch(errors, predicted, batch["labels"])
