"""Sequence to sequence through all six stages, killed on the way, and on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.training import ElasticTraining, assert_same, run_train_with_kills

DIGITS = ["zero", "one", "two", "three", "four"]
MODEL = """\
    model_type: t5
    d_model: 32
    d_kv: 16
    d_ff: 64
    num_layers: 2
    num_heads: 2
    dropout_rate: 0.0
"""


@pytest.mark.slow  # tests/e2e/test_published_models.py publishes one in short
def test_from_pairs_of_texts_to_a_published_model(project) -> None:
    pairs = [{"say": f"row {i} {w}", "write": f"{w} {w}"} for i in range(120) for w in DIGITS]
    (project.root / "data" / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    recipe = (project.root / "params/tiny.yaml").read_text()
    config = recipe[recipe.index("    model_type") : recipe.index("training:")]
    for old, new in {
        "data/sentences.csv": "data/pairs.jsonl",
        "{name: causal_lm, text_column: text}": (
            "{name: seq2seq, input_column: say, target_column: write, max_target_length: 8, max_new_tokens: 8}"
        ),
        config: MODEL,
        "max_steps: 20": "max_steps: 150",
        "eval_steps: 10": "eval_steps: 50",
        "logging_steps: 5": "logging_steps: 50\n  best_metric: rougeL",
        "tests/tiny": "tests/pairs",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/pairs.yaml").write_text(recipe)

    project.stages("params/pairs.yaml")

    metrics = project.json("runs/pairs/evaluation/metrics.json")
    assert metrics["model"]["exact_match"] > 0.8
    assert metrics["model"]["rouge2"] > 0.8
    assert metrics["untrained"]["exact_match"] == 0.0
    assert metrics["model"]["loss"] < metrics["untrained"]["loss"] / 2
    assert project.json("runs/pairs/release/receipt.json")["status"] == "published"
    shown = project.run("python", "-m", "tasks", "trace", "params/pairs.yaml", "--row", "7")
    assert "target:" in shown
    assert "answer  (of the model)\n  two two" in shown


@pytest.mark.slow  # tests/e2e/test_exact_resume.py shows it in short
def test_killed_and_started_again_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """With dropout, which transformers gives a T5 by default."""
    changes = {"launch.micro_batch_size": 4, "objective.max_new_tokens": 4}
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(changes, **tiny.TARGETS))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    changes = {
        "model.config": tiny.TARGETS["model"]["config"] | {"dropout_rate": 0.0},
        "objective": tiny.TARGETS["objective"],
    }
    trainings = []
    for processes in (1, 2):
        training = ElasticTraining(tmp_path / str(processes), changes)
        training.start(processes=processes)
        trainings.append(training.steps())
    assert len(trainings[0]) == 10
    for step, at in trainings[0].items():
        assert trainings[1][step]["rows"] == at["rows"]
        assert trainings[1][step]["loss"] == pytest.approx(at["loss"], rel=1e-5)
