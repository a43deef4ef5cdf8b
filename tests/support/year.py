"""A bank's year: intents of Banking77 that arrive month by month, and a project that retrains on them.

Counts and a change describe a month's rows, so that a year reads as a list of months.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from params.foundation.artifacts import Artifacts
from tasks.hub_client.connection import open_repository
from tasks.releases.rollback import commit_rollback
from tests.support.project import STAGES, Project
from tests.support.sample_data import INTENTS

REPOSITORY = "tests/bank"
RECIPE = """\
seed: 11
data:
  source: {kind: files, train: data/train.csv, test: data/test.csv}
  split: {validation: 0.1}
  group_by: [text]
validation:
  max_quarantined: 0.6
  expectations: [{type: expect_column_values_to_be_unique, column: text}]
tokenization:
  tokenizer: {kind: train, vocab_size: 1000}
  max_length: 40
objective: {name: sequence_classification, text_column: text, label_column: category}
model:
  config:
    model_type: bert
    hidden_size: 64
    intermediate_size: 128
    num_hidden_layers: 1
    num_attention_heads: 2
training:
  max_steps: 160
  global_batch_size: 32
  learning_rate: 3e-3
  warmup_steps: 20
  eval_steps: 80
  save_steps: 160
  logging_steps: 80
  best_metric: accuracy
launch: {num_processes: 1, micro_batch_size: 32, eval_batch_size: 128}
evaluation:
  split: test
  compare_untrained: true
  gate: {floors: {accuracy: 0.4}, resamples: 1000}
publish: {repo_id: tests/bank, endpoint: local}
"""

HELD_OUT = 40
"""Rows per intent."""

Labelled: TypeAlias = list[tuple[str, str]]
"""Texts with their intents."""
Change: TypeAlias = Callable[[Labelled], Labelled]


@dataclass(frozen=True)
class MonthResult:
    """What the gate and the publish stage decided in a month."""

    verdict: str
    """The gate's verdict."""
    why: str
    """The gate's reasons."""
    receipt: dict[str, Any] | None
    """None when the publish stage failed."""
    output: str


class Bank:
    """The project of a bank, which retrains each month on some of the rows in a folder; intents come in the order of INTENTS."""

    def __init__(self, project: Project, rows: Path) -> None:
        self.project, self._rows = project, rows
        self.artifacts = Artifacts("bank", project.root)

    def write_recipe(self, changes: Mapping[str, str]) -> None:
        """Write the recipe, with some texts in it replaced."""
        recipe = RECIPE
        for old, new in changes.items():
            assert old in recipe, old
            recipe = recipe.replace(old, new)
        self.artifacts.recipe_path.write_text(recipe, encoding="utf-8")

    def write_rows(self, intents: int, each: int, change: Change) -> None:
        """Write a month's rows: of so many intents, at most `each` per intent to train on, changed by `change`.

        The held-out rows are never changed and cover all of these intents.
        """
        for split, count in (("train", each), ("test", HELD_OUT)):
            rows = self._known_rows(split, intents, count)
            with (self.project.root / f"data/{split}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("text", "category"), *(change(rows) if split == "train" else rows)])

    def retrain(self, *, is_refused: bool = False) -> MonthResult:
        """Run the six stages; the last one fails if the gate refuses the model."""
        self.artifacts.receipt.unlink(missing_ok=True)
        recipe = f"params/{self.artifacts.recipe_path.name}"
        output = self.project.stages(recipe, STAGES[:5] if is_refused else STAGES)
        if is_refused:
            output += self.project.run("python", "-m", "tasks", "publish", recipe, ok=False)
        blessing = json.loads(self.artifacts.blessing.read_text())
        there = self.artifacts.receipt.exists()
        receipt = json.loads(self.artifacts.receipt.read_text()) if there else None
        return MonthResult(blessing["verdict"], "; ".join(blessing["reasons"]), receipt, output)

    def log(self) -> list[tuple[str, str]]:
        """The commits of main, oldest first: each with its tag or, if it is no release, its title."""
        with open_repository(self.artifacts, repo_id=REPOSITORY, endpoint="local") as repository:
            if not repository.api.repo_exists(REPOSITORY):
                return []
            found = repository.api.list_repo_refs(REPOSITORY)
            assert [branch.name for branch in found.branches] == ["main"]
            tags = {tag.target_commit: tag.name for tag in found.tags}
            assert len(tags) == len(found.tags), "no commit has two tags"
            commits = repository.api.list_repo_commits(REPOSITORY)
            assert tags.keys() <= {commit.commit_id for commit in commits}, "no tag is outside of main"
            return [(commit.commit_id, tags.get(commit.commit_id, commit.title)) for commit in reversed(commits)]

    def roll_back(self, tag: str, *, why: str) -> None:
        """Bring main back to an earlier release."""
        with open_repository(self.artifacts, repo_id=REPOSITORY, endpoint="local", to_write=True) as repository:
            commit_rollback(repository, tag, by="the bank", why=why)

    def accuracy(self, commit: str, intents: int) -> float:
        """Accuracy of a published model on the held-out rows of so many intents, computed as a user would."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = self.project.root / "downloads" / commit
        with open_repository(self.artifacts, repo_id=REPOSITORY, endpoint="local") as repository:
            repository.api.snapshot_download(REPOSITORY, revision=commit, local_dir=folder)
        tokenizer, model = (
            AutoTokenizer.from_pretrained(folder),
            AutoModelForSequenceClassification.from_pretrained(folder),
        )
        rows = self._known_rows("test", intents, HELD_OUT)
        with torch.inference_mode():
            logits = model(
                **tokenizer([text for text, _ in rows], padding=True, truncation=True, return_tensors="pt")
            ).logits
        predicted = [model.config.id2label[i] for i in logits.argmax(-1).tolist()]
        return sum(a == b for a, (_, b) in zip(predicted, rows, strict=True)) / len(rows)

    def _known_rows(self, split: str, intents: int, each: int) -> Labelled:
        """The first rows of each of the first intents."""
        with (self._rows / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
        of = ([row for row in rows if row[1] == intent][:each] for intent in INTENTS[:intents])
        return [row for chosen in of for row in chosen]


def shuffled(share: float) -> Change:
    """Shuffle the labels of a share of the rows."""

    def change(rows: Labelled) -> Labelled:
        chance = random.Random(5)
        chosen = chance.sample(range(len(rows)), round(share * len(rows)))
        labels = [rows[i][1] for i in chosen]
        chance.shuffle(labels)
        spoilt = dict(zip(chosen, labels, strict=True))
        return [(text, spoilt.get(i, label)) for i, (text, label) in enumerate(rows)]

    return change


def rotated(rows: Labelled) -> Labelled:
    """Give each intent the label of the next one, like a column that was joined one line off."""
    labels = list(dict.fromkeys(label for _, label in rows))
    return [(text, labels[(labels.index(label) + 1) % len(labels)]) for text, label in rows]


def doubled(rows: Labelled) -> Labelled:
    """Repeat each row."""
    return [*rows, *rows]


def as_they_are(rows: Labelled) -> Labelled:
    """Change nothing."""
    return rows
