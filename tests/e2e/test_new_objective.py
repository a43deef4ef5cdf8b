"""A new objective is one file and one recipe: it goes through all six stages, with no edit elsewhere."""

from __future__ import annotations

import json

from tests.support.project import item

OBJECTIVE = '''
"""Reversal: the labels of a text are its own tokens, from the last to the first."""

from __future__ import annotations

from trainer.objectives.bases.likelihood import Likelihood, label_losses, token_metrics, token_scores, token_statistics
from trainer.objectives.bases.objective import EncodedRow
from trainer.objectives.bases.padding import pad_batch
from params.schema import Section


class Options(Section):
    """Keys of the recipe's `objective` section."""

    sentence_column: str = "sentence"
    """The column with the text."""


class Reversal(Likelihood[Options]):
    """Each place is to tell the token that stands as far from the end."""

    options_class = Options
    metrics = {"loss": "min", "perplexity": "min", "token_accuracy": "max"}
    main_metric = "token_accuracy"
    score_names = ("nll", "tokens", "correct")
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

    def collate(self, examples, tokenizer):
        return pad_batch(examples, tokenizer)

    def model_class(self):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification

    def model_config(self, state):
        return {"num_labels": 300}

    def losses(self, logits, labels):
        return label_losses(logits, labels)

    def score_logits(self, logits, labels):
        return token_scores(logits, labels)

    def additive_statistics(self, scores, state):
        return token_statistics(scores)

    def compute_metrics(self, totals, state):
        return token_metrics(totals)
'''


def test_one_file_and_one_recipe_are_enough(project) -> None:
    recipe = (project.root / "params/tiny.yaml").read_text()
    for old, new in {
        "{name: causal_lm, text_column: text}": "{name: reversal, sentence_column: text}",
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
        "tests/tiny": "tests/reversal",
        "max_steps: 20": "max_steps: 60",
        "eval_steps: 10": "eval_steps: 60\n  best_metric: token_accuracy",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "trainer/objectives/reversal.py").write_text(OBJECTIVE)
    (project.root / "params/reversal.yaml").write_text(recipe)
    project.edit("recipes.yaml", item("tiny"), item("tiny") + item("reversal", objective="reversal"))
    project.run("git", "add", ".")
    project.run("git", "commit", "-qm", "a new objective")

    assert (
        project.run("python", "-m", "tasks", "check", "params/reversal.yaml")
        == "check: params/reversal.yaml is sound\n"
    )
    project.stages("params/reversal.yaml")

    report = json.loads((project.root / "runs/reversal/evaluation/metrics.json").read_text())
    assert report["model"]["loss"] < 0.8 * report["untrained"]["loss"]
    assert json.loads((project.root / "runs/reversal/release/receipt.json").read_text())["status"] == "published"
    assert "nll" in project.run("python", "-m", "tasks", "trace", "params/reversal.yaml", "--row", "3")
    changed = project.run("git", "status", "--porcelain", "params", "trainer", "tasks", "flows")
    assert changed == ""
