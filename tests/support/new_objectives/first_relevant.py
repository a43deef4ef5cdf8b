"""First relevant: which of a query's documents are relevant.

    {"query": "rain", "document": "it will rain", "relevant": 1}

The model reads a query with one document. A metric looks at all documents of a query: 1 / the rank of the first relevant one. Rows of
a query belong into one split: set `data.group_by` to the query's column.
"""

from __future__ import annotations

from params.sections.base import Section
from trainer.objectives.advice.base import NewRecipeAdvice, ObjectiveFit
from trainer.objectives.bases.loss import BatchLoss
from trainer.objectives.bases.metrics.metric import Metric, is_positive, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Objective
from trainer.objectives.bases.rows import group_statistics, hash_group_value
from trainer.objectives.bases.texts.padding import pad_batch
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """Keys of the recipe's `objective` section."""

    query_column: str = "query"
    """The column with the query."""
    document_column: str = "document"
    """The column with a document."""
    relevant_column: str = "relevant"
    """The column with 1 for relevant documents, and 0 for others."""


class _Advice(NewRecipeAdvice):
    meaning = "which documents are relevant for a query"
    columns = {"prompt": "query_column", "completion": "document_column", "label": "relevant_column"}
    models = ("encoder",)

    def fit(self, seen):
        return ObjectiveFit.NOT


class FirstRelevant(Objective[Options]):
    """A score for a query with a document."""

    options_class = Options
    advice = _Advice()
    metrics = named(
        Metric("loss", "min", ratio("nll", "rows")),
        Metric(
            "reciprocal_rank",
            "max",
            lambda sums: sums["reciprocal ranks"] / sums["queries"].clip(min=1),
            share_of=lambda sums: [float(sums["queries"])],
            about=is_positive("queries"),
        ),
    )
    main_metric = "reciprocal_rank"
    group_score = "query"
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"
    example_rows = (
        {"query": "rain", "document": "it will rain", "relevant": 1},
        {"query": "rain", "document": "a king", "relevant": 0},
        {"query": "bird", "document": "a bird, again and again", "relevant": 1},
    )

    def columns(self):
        o = self.options
        return {o.query_column: "string", o.document_column: "string", o.relevant_column: "number"}

    def text(self, row):
        return f"{row[self.options.query_column]}: {row[self.options.document_column]}"

    def encode(self, rows, tokenizer, max_length, state):
        encoded = tokenize_texts_truncated([self.text(row) for row in rows], tokenizer, max_length)
        return [
            EncodedRow([self._example(row, ids)], is_truncated)
            for row, (ids, is_truncated) in zip(rows, encoded, strict=True)
        ]

    def _example(self, row, ids):
        query, label = hash_group_value(row[self.options.query_column]), float(row[self.options.relevant_column])
        return {"row_id": row["row_id"], "input_ids": ids, "labels": label, "query": query}

    def collate(self, examples, tokenizer):
        import torch

        return pad_batch(examples, tokenizer) | {"query": torch.tensor([e["query"] for e in examples])}

    def model_config(self, state):
        return {"num_labels": 1}

    def _losses(self, model, batch):
        import torch.nn.functional as F

        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0].float()
        return F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none"), logits

    def batch_loss(self, model, batch, share):
        return BatchLoss(self._losses(model, batch)[0].sum() / share.items * share.processes)

    def score_names(self, state):
        return ("nll", "score", "relevant", "query")

    def score_batch(self, model, batch, tokenizer):
        import torch

        losses, logits = self._losses(model, batch)
        return torch.stack([value.double() for value in (losses, logits, batch["labels"], batch["query"])], 1)

    def statistics(self, scores, state):
        queries, ranks = group_statistics(scores, "query", self._reciprocal_rank).T
        return {**super().statistics(scores, state), "queries": queries, "reciprocal ranks": ranks}

    def _reciprocal_rank(self, scores):
        """One, and the reciprocal rank, of a query; none without a relevant document."""
        import numpy as np

        ordered = scores["relevant"][np.argsort(-scores["score"], kind="stable")]
        return [1.0, 1 / (1 + np.argmax(ordered))] if ordered.any() else [0.0, 0.0]

    def reader_input(self, row):
        return self.text(row)
