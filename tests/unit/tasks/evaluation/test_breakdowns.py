"""Errors by tenths of the true number: as pandas cuts and averages them, in the details of an evaluation and on the page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from params.schema import ObjectiveChoice
from tasks.evaluation.report import EvaluationDetails
from tasks.evaluation.scoring import RowScores
from tasks.measurements.breakdowns.groups import report_breakdowns
from tasks.measurements.breakdowns.measurement import GroupsOfRows
from tasks.report.page import write_run_report_page
from tests.support import releases, tiny
from tests.unit.tasks.report import example
from trainer import objectives
from trainer.objectives.bases.rows import RowBreakdown, cut_into_tenths


def regression(*names: str) -> Any:
    return objectives.build_objective(ObjectiveChoice.model_validate({"name": "regression", "label_column": [*names]}))


def scores(seed: int, given: Any, **more: Any) -> RowScores:
    chance = np.random.default_rng(seed)
    columns = {"given price": given, "predicted price": given + chance.normal(0.5, 1, len(given))}
    return RowScores(np.arange(len(given)), columns | more)


@pytest.mark.parametrize("seed", range(20))
def test_tenths_are_those_of_pandas(seed: int) -> None:
    chance = np.random.default_rng(seed)
    given = chance.gamma(2.0, 50.0, int(chance.integers(10, 400)) if seed % 2 else 10 * seed + 10)
    own = scores(seed, given)
    frame = pd.DataFrame({"given": given, "error": own.columns["predicted price"] - given})
    by_tenth = frame.groupby(pd.qcut(frame["given"].rank(method="first"), 10, labels=False))["error"]
    (found,) = report_breakdowns(regression("price"), own, None)
    assert (found.by, found.means) == ("true price", ["mean absolute error", "mean error"])
    assert sum(one.rows for one in found.groups) == len(given)
    assert max(one.rows for one in found.groups) - min(one.rows for one in found.groups) <= 1
    if len(given) % 10 == 0:
        expected = zip(by_tenth.apply(lambda error: error.abs().mean()), by_tenth.mean(), strict=True)
        assert [one.model for one in found.groups] == [pytest.approx(pair) for pair in expected]
    assert {one.champion for one in found.groups} == {None}


def test_equal_numbers_are_in_one_group() -> None:
    names, places = cut_into_tenths(np.array([1.0, 2, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]))
    assert names == ["1", "2", "3", "4", "5"]
    assert places.tolist() == [0, 1, 1, 2, 3, *[4] * 7]
    assert cut_into_tenths(np.full(7, 1990.5))[0] == ["1990.5"]
    assert cut_into_tenths(np.arange(100.0))[0][:2] == ["0 to 9", "10 to 19"]


def test_the_champion_is_beside_it_if_it_reads_the_same_rows() -> None:
    given = np.arange(40.0)
    objective, own, other = regression("price"), scores(1, given), scores(2, given)
    (found,), (alone,) = (report_breakdowns(objective, each, None) for each in (own, other))
    (both,) = report_breakdowns(objective, own, other)
    assert [one.model for one in both.groups] == [one.model for one in found.groups]
    assert [one.champion for one in both.groups] == [one.model for one in alone.groups]
    (fewer,) = report_breakdowns(objective, own, other.take(slice(5, None)))
    assert fewer == found


def test_rows_without_a_value_do_not_count_in_a_mean() -> None:
    class Ranked:
        def breakdowns(self, scores: Any) -> list[RowBreakdown]:
            values = {"NDCG": np.array([0.5, math.nan, 1.0, math.nan])}
            return [RowBreakdown("length", ["short", "long", "none"], np.array([0, 0, 0, 1]), values)]

    (found,) = report_breakdowns(Ranked(), RowScores(np.arange(4), {}), None)  # type: ignore[arg-type]
    assert [one.rows for one in found.groups] == [3, 1, 0]
    assert found.groups[0].model == [0.75]
    assert all(math.isnan(one.model[0]) for one in found.groups[1:])


def test_an_evaluation_of_numbers_has_them_and_the_page_shows_them(tmp_path: Path) -> None:
    artifacts, recipe = releases.tokenized(tmp_path, tiny.recipe(**tiny.NUMBERS))
    releases.learn(artifacts, recipe, 2)
    releases.evaluate(artifacts, recipe)
    details = EvaluationDetails.model_validate_json((artifacts.evaluation / "details.json").read_bytes())
    (found,) = details.findings(GroupsOfRows).breakdowns
    mae = sum(one.rows * one.model[0] for one in found.groups) / sum(one.rows for one in found.groups)
    metrics = json.loads(artifacts.report("evaluate").read_text())["model"]
    assert mae == pytest.approx(metrics["mae"])
    page = write_run_report_page(artifacts).read_text(encoding="utf-8")
    assert '<section id="groups"' in page
    assert found.groups[0].group in page
    other = write_run_report_page(example.write(tmp_path / "labels")).read_text(encoding="utf-8")
    assert 'id="groups"' not in other, "labels have a table of their own"
