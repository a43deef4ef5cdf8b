"""Similarity: how alike two texts are, from 0 to 1.

    {"first": "a cat sees a bird", "second": "a cat hears a bird", "similarity": 0.8}

The model embeds each text by itself; the cosine of the embeddings is the prediction, and the loss its squared error. Spearman's rank
correlation is of all rows at once.
"""

from __future__ import annotations

from params.sections.base import Section
from trainer.objectives.advice.base import NewRecipeAdvice, ObjectiveFit
from trainer.objectives.bases.loss import BatchLoss
from trainer.objectives.bases.metrics.metric import Metric, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Objective
from trainer.objectives.bases.scored_batch import ScoredBatch
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """Keys of the recipe's `objective` section."""

    first_column: str = "first"
    """The column with one text."""
    second_column: str = "second"
    """The column with the other."""
    similarity_column: str = "similarity"
    """The column with the number."""


class _Advice(NewRecipeAdvice):
    meaning = "how alike two texts are"
    columns = {"prompt": "first_column", "completion": "second_column", "label": "similarity_column"}
    models = ("encoder",)

    def fit(self, seen):
        return ObjectiveFit.NOT


def _rank_correlation(scores):
    import numpy as np
    from scipy.stats import rankdata

    ranks = [rankdata(scores[name]) for name in ("predicted", "given")]
    spread = [np.std(own) for own in ranks]
    if not all(spread):
        return 0.0
    first, second = ((own - own.mean()) / std for own, std in zip(ranks, spread, strict=True))
    return float((first * second).mean())


class Similarity(Objective[Options]):
    """A number for two texts."""

    options_class = Options
    advice = _Advice()
    metrics = named(
        Metric("loss", "min", ratio("error", "rows")), Metric("rank_correlation", "max", value_of_all=_rank_correlation)
    )
    main_metric = "rank_correlation"
    auto_class = "AutoModel"
    pipeline_tag = "sentence-similarity"
    example_rows = (
        {"first": "a cat sees a bird", "second": "a cat hears a bird", "similarity": 0.8},
        {"first": "the rain", "second": "my friend likes the king of the birds", "similarity": 0},
    )

    def columns(self):
        o = self.options
        return {o.first_column: "string", o.second_column: "string", o.similarity_column: "number"}

    def texts(self, row):
        return row[self.options.first_column], row[self.options.second_column]

    def text(self, row):
        return "\n".join(self.texts(row))

    def encode(self, rows, tokenizer, max_length, state):
        texts = zip(*map(self.texts, rows), strict=True)
        both = [tokenize_texts_truncated(list(own), tokenizer, max_length) for own in texts]
        return [
            EncodedRow([self._example(row, first, second)], cut or other_cut)
            for row, (first, cut), (second, other_cut) in zip(rows, *both, strict=True)
        ]

    def _example(self, row, first, second):
        label = float(row[self.options.similarity_column])
        return {"row_id": row["row_id"], "input_ids": first, "other_input_ids": second, "labels": label}

    def _cosines(self, model, batch):
        import torch

        inputs = concatenate_texts_along_batch(batch, model)
        mask = inputs["attention_mask"][..., None]
        states = model(**inputs).last_hidden_state.float()
        first, second = ((states * mask).sum(1) / mask.sum(1)).chunk(2)
        return torch.cosine_similarity(first, second)

    def batch_loss(self, model, batch, share):
        errors = (self._cosines(model, batch) - batch["labels"]) ** 2
        return BatchLoss(errors.sum() / share.items * share.processes)

    def score_names(self, state):
        return ("error", "predicted", "given")

    def score_outputs(self, model, batch, tokenizer):
        import torch

        predicted, given = self._cosines(model, batch).double(), batch["labels"].double()
        scores = torch.stack([(predicted - given) ** 2, predicted, given], 1)
        return ScoredBatch(scores, predicted, given)
