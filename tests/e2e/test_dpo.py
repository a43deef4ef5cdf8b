"""Preferences through all six stages: pairs of answers in, a published model out that prefers the better ones."""

from __future__ import annotations

import json
import math

import pytest

from tests.support import preferences


@pytest.mark.slow  # tests/e2e/test_published_models.py publishes one in short
def test_from_pairs_of_answers_to_a_published_model(project) -> None:
    columns = preferences.pairs(300)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    rows[17]["rejected"] = rows[17]["chosen"]
    (project.root / "data" / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    recipe = (project.root / "params/tiny.yaml").read_text()
    for old, new in {
        "data/sentences.csv": "data/pairs.jsonl",
        "{name: causal_lm, text_column: text}": "{name: dpo, beta: 0.2}",
        "max_length: 32": "max_length: 64",
        "learning_rate: 1e-2": "learning_rate: 3e-3",
        "logging_steps: 5": "logging_steps: 5\n  best_metric: reward_margin",
        "tests/tiny": "tests/polite",
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/polite.yaml").write_text(recipe)

    project.stages("params/polite.yaml")

    metrics = project.json("runs/polite/evaluation/metrics.json")
    assert metrics["untrained"]["loss"] == math.log(2)
    assert (metrics["untrained"]["reward_accuracy"], metrics["untrained"]["reward_margin"]) == (0.5, 0.0)
    assert metrics["model"]["reward_accuracy"] > 0.9
    assert metrics["model"]["reward_margin"] > 0.5
    receipt = project.json("runs/polite/release/receipt.json")
    assert receipt["status"] == "published"

    flawed = project.run("python", "-m", "tasks", "trace", "params/polite.yaml", "--row", "17")
    assert "same text" in flawed
    traced = project.run("python", "-m", "tasks", "trace", "params/polite.yaml", "--row", "18")
    assert "rejected_input_ids: (1," in traced
    assert "chosen_reward: " in traced
