"""A recipe whose rewards another recipe's model gives: both drivers follow a new reward model, and repeat nothing else.

The tests share one project and stand in the order in which they change it.
"""

from __future__ import annotations

import pytest

from tests.support import preferences
from tests.support.project import Project, item, stages_of

pytestmark = [pytest.mark.in_order, pytest.mark.slow]
LINES = ("data/sentences.csv", "code: trainer/losses.py")


def listed(project: Project, name: str, objective: str, data: str, code: str = "trainer/losses.py") -> None:
    """Add the item of a recipe to recipes.yaml."""
    own = item(name, objective=objective).replace(LINES[0], data).replace(LINES[1], f"code: {code}")
    project.edit("recipes.yaml", item("tiny"), item("tiny") + own)


@pytest.fixture(scope="module")
def asked(finished: Project) -> Project:
    """A project with the recipes `answers`, a reward model, and `asked`, which learns from what that likes."""
    columns = preferences.pairs(120)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    source = finished.rows("answers", rows)
    steps = {"training.max_steps": 4, "training.eval_steps": 2}
    finished.recipe("answers", {"data.source.train": source, "objective": {"name": "reward"}, **steps})
    listed(finished, "answers", "reward", source)
    objective = {
        "name": "iterative_sft",
        "reference_columns": ["chosen"],
        "rewards": [{"model": "runs/answers/model"}],
        "min_reward": None,
        "keep_best": 1,
        "num_generations": 2,
        "max_new_tokens": 4,
    }
    usual = {"training.best_metric": "reward", "training.global_batch_size": 8}
    finished.recipe("asked", {"data.source.train": source, "objective": objective, **steps, **usual})
    listed(finished, "asked", "iterative_sft", source, "runs/answers/model")
    return finished


def test_the_reward_model_is_trained_first(asked: Project) -> None:
    ran = asked.run("dvc", "repro", "evaluate@asked").split("Running stage '")[1:]
    names = [name for part in ran if not (name := part.split("'")[0]).startswith("resolve")]
    assert set(names) >= {"train@answers", "train@asked", "evaluate@asked"}
    assert names.index("train@answers") < names.index("train@asked")
    assert asked.repro("evaluate@asked") == []


def test_a_new_reward_model_makes_training_stale_and_nothing_before_it(asked: Project) -> None:
    rewards = asked.json("runs/asked/evaluation/metrics.json")["untrained"]["reward"]
    text = asked.root / "params/answers.yaml"
    text.write_text(text.read_text().replace("max_steps: 4", "max_steps: 6"))
    assert asked.repro("train@answers") == ["train"]
    out = asked.run("python", "-m", "flows.cli", "run", "asked", "--no-publish")
    assert stages_of(out) == ["train", "evaluate"]
    assert asked.json("runs/asked/evaluation/metrics.json")["untrained"]["reward"] != rewards
    assert asked.repro("evaluate@asked") == []
