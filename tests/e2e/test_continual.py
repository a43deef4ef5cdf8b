"""New rows meet the published model: the training starts from its weights, which are pinned, and its labels keep their rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from safetensors.torch import load_file

from tests.support.project import Project

SUBJECTS = {"animal": ["cat", "dog", "cow"], "weather": ["rain", "snow", "fog"], "food": ["bread", "soup", "rice"]}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def rows(labels: Sequence[str], count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts whose label is easily learned."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        label = chance.choice(labels)
        found.append({"text": f"I see the {chance.choice(SUBJECTS[label])}, number {seed}-{number}.", "label": label})
    return found


def use_classes(project: Project, **more: object) -> None:
    """Let the recipe tiny be a classifier that starts from the published model."""
    project.rows("rows", rows(["animal", "weather"], 300))
    changes = {
        "data.source.train": "data/rows.jsonl",
        "objective": {"name": "sequence_classification"},
        "model": {"config": BERT, "start": "champion"},
        "training.best_metric": "accuracy",
        "training.max_steps": 30,
        "evaluation.gate.margin": 0.2,
        "publish.repo_id": "tests/tiny",
        **more,
    }
    project.recipe("tiny", changes)
    project.edit("recipes.yaml", "data/sentences.csv", "data/rows.jsonl")
    project.edit("recipes.yaml", "causal_lm.py", "sequence_classification.py")


def head(project: Project) -> dict[str, torch.Tensor]:
    """The row of the classifier's head for each label."""
    labels = project.json("runs/tiny/model/config.json")["id2label"]
    weights = load_file(project.root / "runs/tiny/model/model.safetensors")["classifier.weight"]
    return {label: weights[int(number)] for number, label in labels.items()}


def test_training_goes_on_from_the_published_model(project: Project) -> None:
    use_classes(project)
    assert project.repro() == ["ingest", "validate", "tokenize", "train", "evaluate", "publish"]
    first = project.json("runs/tiny/release/receipt.json")
    assert first["status"] == "published"
    assert project.json("runs/tiny/validated/start/start.json") is None  # there was no model yet
    before = head(project)
    assert project.repro() == []  # a release makes nothing stale

    project.rows("rows", rows(["animal", "weather"], 300) + rows(["animal", "weather", "food"], 150, seed=1))
    project.repro()
    pinned = project.json("runs/tiny/validated/start/start.json")
    assert (pinned["commit"], pinned["tag"]) == (first["commit"], first["tag"])
    assert project.json("runs/tiny/release/receipt.json")["status"] == "published"
    now = head(project)
    assert set(now) == {"animal", "weather", "food"}
    for label, row in before.items():
        assert torch.cosine_similarity(now[label], row, dim=0) > 0.9
    assert project.repro() == []
