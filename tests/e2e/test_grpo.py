"""GRPO through all six stages: from prompts to a published model that has learned what its reward asks for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.project import STAGES
from tests.support.sample_data import cases, data_set

OBJECTIVE = """\
objective:
  name: grpo
  prompt: "say {digit}:"
  reference_columns: [digit]
  rewards: [{name: "trainer.rewards:numeric_answer", arguments: {column: digit}}]
  num_generations: 16
  max_new_tokens: 1
  steps_per_generation: 2
"""


def write_digits(path: Path, rows: int) -> None:
    """Prompts that ask for a digit; a number beside it makes each row another one."""
    chance = random.Random(5)
    lines = [json.dumps({"number": i, "digit": str(chance.randrange(10))}) for i in range(rows)]
    path.write_text("\n".join(lines))


def recipe_of(project, objective: str, changes: dict[str, str]) -> str:
    """The tiny recipe with another objective, on rows that ask for a digit."""
    recipe = (project.root / "params/tiny.yaml").read_text()
    usual = {
        "data/sentences.csv": "data/digits.jsonl",
        "objective: {name: causal_lm, text_column: text}\n": objective,
        "global_batch_size: 8": "global_batch_size: 16",
        "learning_rate: 1e-2": "learning_rate: 5e-3\n  lr_scheduler: constant",
        "micro_batch_size: 8": "micro_batch_size: 16",
        "logging_steps: 5": "logging_steps: 10\n  best_metric: reward",
    }
    for old, new in {**usual, **changes}.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    return recipe


@pytest.mark.slow
def test_from_prompts_to_a_model_that_earns_its_reward(project) -> None:
    write_digits(project.root / "data" / "digits.jsonl", 400)
    changes = {"max_steps: 20": "max_steps: 120", "eval_steps: 10": "eval_steps: 60", "save_steps: 5": "save_steps: 45"}
    (project.root / "params/digits.yaml").write_text(recipe_of(project, OBJECTIVE, changes))

    project.stages("params/digits.yaml")

    metrics = project.json("runs/digits/evaluation/metrics.json")
    assert metrics["untrained"]["reward"] < 0.2
    assert metrics["model"]["reward"] > 0.8
    lines = (project.root / "runs/digits/history/metrics.jsonl").read_text().splitlines()
    rewards = [line["reward"] for line in map(json.loads, lines) if "reward" in line]
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.7
    assert project.json("runs/digits/release/receipt.json")["status"] == "published"
    validation = (project.root / "runs/digits/history/validation.csv").read_text().splitlines()
    assert len(validation) == 4, "a head, and the evaluations at 0, 60 and 120"

    row = project.run("python", "-m", "tasks", "trace", "params/digits.yaml", "--row", "17")
    assert "digit: " in row
    assert "reward: " in row


@pytest.mark.parametrize(("name", "kind"), cases("gsm8k", slow=["gsm8k"]))
def test_on_questions(project, name, kind, tmp_path) -> None:
    """A model that has never read cannot solve them: it is shown that the questions go through, and are judged."""
    objective = """\
objective:
  name: grpo
  prompt: "{question}\\nAnswer:"
  rewards: ["trainer.rewards:numeric_answer", {name: "trainer.rewards:matches", arguments: {pattern: "[0-9]"}}]
  reward_weights: [1.0, 0.1]
  num_generations: 4
  max_new_tokens: 8
"""
    source = "source: {kind: files, train: data/sentences.csv}"
    test = data_set(name, kind, tmp_path) / "test.jsonl"
    changes = {
        "max_length: 32": "max_length: 128",
        "max_steps: 20": "max_steps: 4",
        "logging_steps: 10": "logging_steps: 1",
        "eval_steps: 10": "eval_steps: 4",
    }
    recipe = recipe_of(project, objective, {})
    for old, new in {
        source.replace("sentences.csv", "digits.jsonl"): f"source: {{kind: files, train: {test}}}",
        **changes,
    }.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (project.root / "params/gsm8k.yaml").write_text(recipe)
    project.stages("params/gsm8k.yaml", STAGES[:5])
    assert 0 <= project.json("runs/gsm8k/evaluation/metrics.json")["model"]["reward"] <= 1.1
    lines = (project.root / "runs/gsm8k/history/metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("reward_std", 0) > 0 for line in lines), "some completions have a digit"
