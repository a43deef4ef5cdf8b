"""Reversal: the labels of a text are its own tokens, from the last to the first."""

from __future__ import annotations

from params.sections.base import Section
from trainer.objectives.bases.likelihood import TOKEN_ACCURACY, TOKEN_LOSS, Likelihood, sum_token_scores
from trainer.objectives.bases.metrics.metric import named
from trainer.objectives.bases.objective import EncodedRow


class Options(Section):
    """Keys of the recipe's `objective` section."""

    sentence_column: str = "sentence"
    """The column with the text."""


class Reversal(Likelihood[Options]):
    """Each place is to tell the token that stands as far from the end."""

    options_class = Options
    metrics = named(TOKEN_LOSS, TOKEN_ACCURACY)
    main_metric = "token_accuracy"
    auto_class = "AutoModelForTokenClassification"
    pipeline_tag = "token-classification"
    example_rows = ({"sentence": "abc"}, {"sentence": "the rain"})

    def columns(self):
        return {self.options.sentence_column: "string"}

    def text(self, row):
        return row[self.options.sentence_column]

    def encode(self, rows, tokenizer, max_length, state):
        texts = [self.text(row) for row in rows]
        encoded = []
        for row, ids in zip(rows, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
            kept = ids[:max_length]
            example = {"row_id": row["row_id"], "input_ids": kept, "labels": kept[::-1]}
            encoded.append(EncodedRow([example], is_truncated=len(ids) > max_length))
        return encoded

    def model_config(self, state):
        return {"num_labels": 300}

    def score_names(self, state):
        return ("nll", "tokens", "correct")

    def score_logits(self, logits, labels):
        return sum_token_scores(logits, labels)
