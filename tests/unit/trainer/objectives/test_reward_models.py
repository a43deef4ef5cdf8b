"""Reward models as rewards: as the objective that made them evaluates them, refused in time, and exact over kills and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from params.schema import ObjectiveChoice
from tasks.shards.split_rows import SplitRows
from tests.support import releases, reward_models
from trainer import objectives
from trainer.objectives.bases.reward_models import PROMPT, RewardModel


def grpo(*rewards: Any, **options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="grpo", rewards=list(rewards), **options))


@pytest.mark.parametrize("kind", ["texts", "texts with a separator", "messages"])
def test_rewards_are_those_of_the_objectives_evaluation(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "texts": {},
        "texts with a separator": {"separator": "\n\n"},
        "messages": {"chat": True},
    }[kind]
    artifacts, recipe = reward_models.made(tmp_path, **options)
    releases.evaluate(artifacts, recipe, compare_untrained=False)
    scores = pq.read_table(artifacts.evaluation / "scores" / "model.parquet").to_pylist()
    rows = {row["row_id"]: row for row in SplitRows(artifacts.rows / "test").rows()}

    def text(value: Any) -> str:
        return value if isinstance(value, str) else value[0]["content"]

    asked, said, expected = [], [], []
    for one in scores:
        row = rows[one["row_id"]]
        for answer in ("chosen", "rejected"):
            asked.append({"row_id": row["row_id"], PROMPT: text(row["prompt"])})
            said.append(text(row[answer]))
            expected.append(one[f"{answer}_reward"])
    found = RewardModel(str(artifacts.model))(said, asked)
    assert found == pytest.approx(expected, abs=1e-6)
    assert len({round(value, 4) for value in found}) > len(found) / 2, "they differ"
    config = json.loads((artifacts.model / "config.json").read_bytes())
    assert config["answer_form"] == {"chat": kind == "messages", "separator": options.get("separator", "")}
