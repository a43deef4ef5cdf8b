"""Sequence classification through all six stages: rows with labels in, a published classifier out that tells them apart."""

from __future__ import annotations

import json
import random

import pytest

from tests.support.project import STAGES

LABELS = {
    "weather": ["rain", "sun", "wind", "snow"],
    "food": ["bread", "soup", "rice", "tea"],
    "travel": ["train", "road"],
}


def write_questions(path, rows: int) -> None:
    chance = random.Random(5)
    lines = ["question,topic"]
    for i in range(rows):
        label = chance.choice(sorted(LABELS))
        lines.append(f"what about the {chance.choice(LABELS[label])} in place {i}?,{label}")
    path.write_text("\n".join(lines))


def test_from_labelled_rows_to_a_published_classifier(project) -> None:
    write_questions(project.root / "data" / "questions.csv", 600)
    recipe = (project.root / "params/tiny.yaml").read_text()
    for old, new in {
        "data/sentences.csv": "data/questions.csv",
        "{name: causal_lm, text_column: text}": (
            "{name: sequence_classification, text_column: question, label_column: topic}"
        ),
        "model_type: llama": "model_type: bert",
        "    num_key_value_heads: 2\n    tie_word_embeddings: true\n": "",
        "max_steps: 20": "max_steps: 60",
        "eval_steps: 10": "eval_steps: 20",
        "logging_steps: 5": "logging_steps: 20\n  best_metric: accuracy\n  group_by_length: true",
        "tests/tiny": "tests/topics",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/topics.yaml").write_text(recipe)

    project.stages("params/topics.yaml")

    metrics = json.loads((project.root / "runs/topics/evaluation/metrics.json").read_text())
    assert metrics["model"]["accuracy"] > 0.9
    assert metrics["untrained"]["accuracy"] < 0.7
    assert metrics["model"]["loss"] < metrics["untrained"]["loss"] / 2
    config = json.loads((project.root / "runs/topics/model/config.json").read_text())
    assert config["id2label"] == {"0": "food", "1": "travel", "2": "weather"}
    receipt = json.loads((project.root / "runs/topics/release/receipt.json").read_text())
    assert receipt["status"] == "published"
    assert receipt["repo_id"] == "tests/topics"

    row = project.run("python", "-m", "tasks", "trace", "params/topics.yaml", "--row", "17")
    assert "label" in row
    assert "question: what about the" in row


@pytest.mark.parametrize("processes", [2])
@pytest.mark.slow
def test_two_processes_give_the_same_metrics_as_one(project, processes: int) -> None:
    metrics = []
    for number in (1, processes):
        project.edit("params/tiny.yaml", "num_processes: 1", f"num_processes: {number}")
        project.stages("params/tiny.yaml", STAGES[:5] if number == 1 else STAGES[3:5])
        metrics.append(json.loads((project.root / "runs/tiny/evaluation/metrics.json").read_text())["model"])
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-3), name
