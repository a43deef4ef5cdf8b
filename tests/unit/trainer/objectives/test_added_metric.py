"""docs/add-a-metric.md: its block is an objective with another metric, which the gate's statistics know."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tests.support.project import ROOT
from trainer.objectives.bases.metrics.metric import Metric, directions
from trainer.objectives.sequence_classification import Options

PAGE = (ROOT / "docs/add-a-metric.md").read_text(encoding="utf-8")
STATE = {"labels": ["a", "b", "c"]}


def test_objective_of_the_page_has_another_metric() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module: dict[str, type] = {"__name__": "early"}
    exec(block, module)
    objective = module["Early"](Options())
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, 3, 60).astype(float) for name in ("label", "prediction")}
    scores = RowScores(np.arange(60), {"nll": draw.random(60), "confidence": draw.random(60), **columns})
    resampler = Resampler(objective, STATE, resamples=200, confidence=0.9, seed=0)
    share = (columns["prediction"] == 0).mean()
    assert resampler.metrics(scores)["early"] == pytest.approx(share)
    low, high = resampler.intervals(scores)["early"]
    assert 0 < low < share < high < 1
    gain = resampler.gains(scores, scores, directions(objective.metrics))["early"]
    assert gain.value == 0
    assert gain.low <= 0 <= gain.high


def test_page_names_every_field_of_a_metric() -> None:
    """A field that the page does not explain is one that nobody sets."""

    told = {"name", "best", "value", *re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)}
    assert {*Metric.__dataclass_fields__} == told
