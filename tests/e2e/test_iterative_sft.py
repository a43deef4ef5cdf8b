"""Iterative fine-tuning through all six stages: rounds of writing, keeping what is good, and learning it."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_grpo import recipe_of, write_digits

OBJECTIVE = """\
objective:
  name: iterative_sft
  prompt: "say {digit}:"
  reference_columns: [digit]
  rewards: [{name: "trainer.rewards:numeric_answer", arguments: {column: digit}}]
  num_generations: 16
  max_new_tokens: 1
  steps_per_round: 4
"""


@pytest.mark.slow  # tests/unit/trainer/iterative shows the rounds in short
def test_each_round_keeps_more_of_what_the_model_writes(project) -> None:
    write_digits(project.root / "data" / "digits.jsonl", 400)
    changes = {"max_steps: 20": "max_steps: 100", "eval_steps: 10": "eval_steps: 50", "save_steps: 5": "save_steps: 30"}
    (project.root / "params/digits.yaml").write_text(recipe_of(project, OBJECTIVE, changes))

    project.stages("params/digits.yaml")

    metrics = project.json("runs/digits/evaluation/metrics.json")
    assert metrics["untrained"]["reward"] < 0.2
    assert metrics["model"]["reward"] > 0.8
    lines = map(json.loads, (project.root / "runs/digits/history/metrics.jsonl").read_text().splitlines())
    rounds = [line for line in lines if "round" in line]
    assert [line["round"] for line in rounds] == list(range(25))
    assert rounds[0]["round_selected"] < 0.1
    assert rounds[-1]["round_selected"] > 0.7
    assert all(line["round_selected"] == line["round_reward"] for line in rounds), "here a reward is 0 or 1"
    assert project.json("runs/digits/release/receipt.json")["status"] == "published"

    row = project.run("python", "-m", "tasks", "trace", "params/digits.yaml", "--row", "17")
    assert "reward: " in row
