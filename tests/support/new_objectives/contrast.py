"""Contrast: embeddings of two texts that belong together, against all other pairs of the global batch.

{"first": "a cat sees a bird", "second": "what the cat sees"}
"""

from __future__ import annotations

from params.sections.base import Section
from trainer.objectives.bases.metrics.metric import Metric, named, ratio
from trainer.objectives.bases.objective import EncodedRow, Objective
from trainer.objectives.bases.texts.padding import concatenate_texts_along_batch
from trainer.objectives.bases.texts.tokenizing import tokenize_texts_truncated


class Options(Section):
    """Keys of the recipe's `objective` section."""

    first_column: str = "first"
    """The column with one text."""
    second_column: str = "second"
    """The column with the text that belongs to it."""
    temperature: float = 0.1
    """Cosines are divided by it."""


class Contrast(Objective[Options]):
    """Each text has to tell its own partner from those of all other rows (van den Oord et al. 2018)."""

    options_class = Options
    trainer_class = "trainer.loop.global_batch_trainer:GlobalBatchTrainer"
    metrics = named(Metric("cosine", "max", ratio("cosine", "rows")))
    main_metric = "cosine"
    auto_class = "AutoModel"
    pipeline_tag = "sentence-similarity"
    example_rows = (
        {"first": "a cat sees a bird", "second": "what the cat sees"},
        {"first": "the rain", "second": "it will rain, again"},
    )

    def columns(self):
        return {self.options.first_column: "string", self.options.second_column: "string"}

    def texts(self, row):
        return row[self.options.first_column], row[self.options.second_column]

    def text(self, row):
        return "\n".join(self.texts(row))

    def encode(self, rows, tokenizer, max_length, state):
        texts = zip(*map(self.texts, rows), strict=True)
        both = [tokenize_texts_truncated(list(own), tokenizer, max_length) for own in texts]
        return [
            EncodedRow([{"row_id": row["row_id"], "input_ids": first, "other_input_ids": second}], cut or other_cut)
            for row, (first, cut), (second, other_cut) in zip(rows, *both, strict=True)
        ]

    def embed(self, model, batch):
        """One vector of length 1 for each of the two texts of B rows, (B, 2, D)."""
        import torch
        import torch.nn.functional as F

        inputs = concatenate_texts_along_batch(batch, model)
        mask = inputs["attention_mask"][..., None]
        states = model(**inputs).last_hidden_state.float()
        return torch.stack(F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1).chunk(2), 1)

    def global_loss(self, embeddings, labels):
        import torch
        import torch.nn.functional as F

        first, second = embeddings.unbind(1)
        return F.cross_entropy(
            first @ second.T / self.options.temperature, torch.arange(len(first), device=first.device)
        )

    def score_names(self, state):
        return ("cosine",)

    def score_batch(self, model, batch, tokenizer):
        return self.embed(model, batch).prod(1).sum(1, keepdim=True).double()

    def row_error(self, scores):
        return -scores["cosine"]
