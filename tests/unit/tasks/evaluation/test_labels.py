"""Results by label: values, intervals, what is mixed up, and curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from params import RecipeError
from params.schema import ObjectiveChoice
from params.sections.evaluation import Gate
from tasks.evaluation.gate import JudgedModel, judge_candidate
from tasks.evaluation.report import EvaluationDetails
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tasks.measurements.labels.report import LabelReport
from tasks.measurements.labels.results import report_labels
from trainer import objectives

ROWS, GATE = 600, Gate(min_slice_rows=30)


def resampler(name: str, labels: int) -> Resampler:
    objective = objectives.build_objective(ObjectiveChoice(name=name))
    return Resampler(objective, {"labels": [f"label {i}" for i in range(labels)]}, 400, 0.95, 3)


def row_scores(own: Resampler, table: torch.Tensor) -> RowScores:
    names = own.objective.score_names(own.state)
    return RowScores(np.arange(len(table)), dict(zip(names, table.numpy().T, strict=True)))


def several(labels: int = 4, *, skill: float, seed: int = 0) -> tuple[Resampler, RowScores]:
    """Rows with any number of labels, the first of which is rare, and a model so good at the last one."""
    own, draw = resampler("multi_label_classification", labels), np.random.default_rng(0)
    given = torch.tensor(draw.random((ROWS, labels)) < [0.02, *[0.3] * (labels - 1)]).float()
    logits = torch.tensor(np.random.default_rng(seed).standard_normal((ROWS, labels))) + 2 * given - 1
    logits[:, -1] += skill * (given[:, -1] - 0.5)
    return own, row_scores(own, own.objective.score_logits(logits, given))


def single(labels: int, *, wrong: int, seed: int = 0) -> tuple[Resampler, RowScores]:
    """Rows with a label each, and a model that takes so many of a hundred rows of the first label for the second one."""
    own, draw = resampler("sequence_classification", labels), np.random.default_rng(0)
    truth = torch.tensor(draw.integers(0, labels, ROWS))
    logits = torch.nn.functional.one_hot(truth, labels).double() * 9
    taken = (truth == 0) & torch.tensor(np.random.default_rng(seed).random(ROWS) < wrong / 100)
    logits[taken, 1] = 20
    return own, row_scores(own, own.objective.score_logits(logits, truth))


def test_results_are_those_of_the_rows_with_the_most_frequent_label_first() -> None:
    own, scores = several(skill=0)
    found = report_labels(own, scores, None, GATE)
    assert found is not None
    assert [one.rows for one in found.results] == sorted((one.rows for one in found.results), reverse=True)
    for one in found.results:
        given, predicted = (scores.columns[f"{what} {one.label}"] for what in ("given", "predicted"))
        assert (one.rows, one.predicted) == (given.sum(), predicted.sum())
        assert one.f1 == pytest.approx(f1_score(given, predicted))
        if one.rows < 30:
            assert (one.label, one.low, one.high) == ("label 0", None, None)
        else:
            assert one.low is not None
            assert one.high is not None
            assert one.low < one.f1 < one.high < one.low + 0.2
        assert (one.champion, one.gain) == (None, None)
    assert (found.confusions, found.matrix, found.names) == ([], [], [])


def test_a_label_that_is_always_right_has_an_interval_of_its_rows() -> None:
    own, scores = several(skill=99)
    found = report_labels(own, scores, None, GATE)
    assert found is not None
    (one,) = [one for one in found.results if one.label == "label 3"]
    assert one.low is not None
    assert (one.f1, one.high) == (1, 1)
    assert 1 - 5 / one.rows < one.low < 1 - 1 / one.rows


def test_the_change_against_the_champion_has_the_interval_of_the_same_rows() -> None:
    own, scores = several(skill=2)
    _, other = several(skill=0)
    found = report_labels(own, scores, (scores, other), GATE)
    assert found is not None
    by_name = {one.label: one for one in found.results}
    better, equal = by_name["label 3"], by_name["label 2"]
    assert better.champion is not None
    assert better.gain == pytest.approx(better.f1 - better.champion)
    assert better.gain_low is not None
    assert better.gain_low > 0.05
    assert equal.gain == 0, "both models say the same"
    assert equal.gain_low is not None
    assert equal.gain_high is not None
    assert -0.02 < equal.gain_low <= 0 <= equal.gain_high < 0.02
    rare = by_name["label 0"]
    assert (rare.gain, rare.gain_low) == (None, None)
    assert rare.champion is not None


def test_intervals_hold_the_true_value_about_as_often_as_they_say() -> None:
    """Of 100 quiet nights with a label each, where two models are equally good."""
    outside = 0
    for seed in range(100):
        own, scores = several(2, skill=1, seed=2 * seed)
        _, other = several(2, skill=1, seed=2 * seed + 1)
        found = report_labels(own, scores, (scores, other), GATE)
        assert found is not None
        (one,) = [one for one in found.results if one.label == "label 1"]
        assert one.gain_low is not None
        assert one.gain_high is not None
        outside += not one.gain_low <= 0 <= one.gain_high
    assert outside <= 11, "a share of 0.05 gives more once in 100 times"


def test_curves_begin_and_end_where_the_rows_do() -> None:
    own, scores = several(skill=0)
    found = report_labels(own, scores, None, GATE)
    assert found is not None
    for one in found.curves:
        assert one.recall == sorted(one.recall)
        assert (len(one.recall) <= 60, one.recall[-1]) == (True, 1.0)
        share = scores.columns[f"given {one.label}"].mean()
        assert one.precision[-1] >= share > 0
        assert share < one.average_precision < 1


def test_labels_that_are_mixed_up_are_named() -> None:
    own, scores = single(4, wrong=40)
    _, other = single(4, wrong=10, seed=1)
    found = report_labels(own, scores, (scores, other), GATE)
    assert found is not None
    (cell,) = found.confusions
    assert (cell.label, cell.predicted) == ("label 0", "label 1")
    assert cell.share == pytest.approx(0.4, abs=0.07)
    assert cell.champion is not None
    assert cell.rows > 2 * cell.champion > 0
    assert sum(map(sum, found.matrix)) == ROWS
    assert found.matrix[0][1] == cell.rows
    assert (found.names, found.curves) == ([f"label {i}" for i in range(4)], [])
    worse = next(one for one in found.results if one.label == "label 0")
    assert worse.gain_high is not None
    assert worse.gain_high < 0


def test_many_labels_have_no_matrix_and_the_worst_cells_only() -> None:
    own, scores = single(40, wrong=100)
    found = report_labels(own, scores, None, Gate(min_slice_rows=5))
    assert found is not None
    assert (found.matrix, found.names) == ([], [])
    assert [(one.label, one.predicted) for one in found.confusions] == [("label 0", "label 1")]


def test_a_champion_with_a_label_of_its_own_mixes_up_that_one() -> None:
    own, scores = single(3, wrong=0)
    columns: dict[str, Any] = dict(scores.columns)
    columns["prediction"] = np.where(columns["label"] == 2, 7.0, columns["prediction"])
    found = report_labels(own, RowScores(scores.row_ids, columns), None, GATE)
    assert found is not None
    (cell,) = found.confusions
    assert (cell.label, cell.predicted, cell.share) == ("label 2", "a label of another run", 1.0)
    assert sum(map(sum, found.matrix)) == ROWS - cell.rows


def test_other_objectives_have_no_labels() -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="causal_lm"))
    scores = RowScores(np.arange(3), {name: np.ones(3) for name in (*objective.score_names({}), "bytes")})
    assert report_labels(Resampler(objective, {}, 200, 0.95, 3), scores, None, GATE) is None
    assert math.isfinite(scores.columns["nll"].sum())


def verdict(found: LabelReport | None, gate: Gate) -> tuple[str, list[str]]:
    details = EvaluationDetails(
        confidence=0.95, resamples=400, directions={}, intervals={}, comparisons=[], slices=[], worst=[], calibration=None, labels=found
    )  # fmt: skip
    return judge_candidate(gate, JudgedModel(metric="micro_f1", metrics={}), details)


@pytest.mark.parametrize("metric", ["precision", "recall", "f1"])
def test_a_label_that_misses_its_floor_by_more_than_chance_is_refused(metric: Any) -> None:
    own, scores = several(skill=2)
    usual = report_labels(own, scores, None, GATE)
    assert usual is not None
    value = {one.label: getattr(one, metric) for one in usual.results}
    for below, expected in ((0.15, "refuse"), (0.005, "publish"), (-0.1, "publish")):
        gate = Gate(min_slice_rows=30, label_floors={metric: {"label 2": value["label 2"] + below}})
        found, reasons = verdict(report_labels(own, scores, None, gate), gate)
        assert found == expected, below
    gate = Gate(min_slice_rows=30, label_floors={metric: value["label 2"] + 0.15})
    found, reasons = verdict(report_labels(own, scores, None, gate), gate)
    assert found == "refuse"
    assert f"{metric} {value['label 2']:.4g} of the label 'label 2' (" in "".join(reasons)
    assert "label 3" not in "".join(reasons), "the last label is the best one"


def test_f1_of_one_has_an_interval_that_says_how_few_rows_have_a_label() -> None:
    own = resampler("multi_label_classification", 2)
    given = torch.zeros(ROWS, 2)
    given[:6, 0] = given[3:100, 1] = 1
    found = own.intervals(row_scores(own, own.objective.score_logits(20 * given - 10, given)))
    exact = [1 - 0.025 ** (1 / rows) for rows in (6, 97, 103, ROWS)]
    assert found["micro_f1"] == (pytest.approx(1 - exact[2]), 1.0)
    assert found["exact_match"] == (pytest.approx(1 - exact[3]), 1.0)
    assert exact[1] / 2 < 1 - found["macro_f1"][0] < exact[0]
    assert 1 - found["macro_f1"][0] > exact[0] / 3


def test_the_recall_of_a_rare_label_is_tested_exactly() -> None:
    own, scores = several(skill=0)
    gate = Gate(min_slice_rows=30, label_floors={"recall": {"label 0": 0.95}, "f1": {"label 0": 0.99}})
    found = report_labels(own, scores, None, gate)
    assert found is not None
    (rare,) = [one for one in found.results if one.label == "label 0"]
    expected = binomtest(round(rare.recall * rare.rows), rare.rows, 0.95, alternative="less").pvalue
    assert rare.floor_p_values == pytest.approx({"recall": expected}), "its F1 has too few rows to be judged"


def test_floors_of_very_many_labels_are_all_judged() -> None:
    own, scores = several(210, skill=0)
    labels = {f"label {i}": 0.99 for i in range(1, 210)}
    found = report_labels(own, scores, None, Gate(min_slice_rows=30, label_floors={"f1": labels}))
    assert found is not None
    missed = {one.label: one.floor_p_values["f1"] for one in found.results if "f1" in one.floor_p_values}
    assert missed.keys() == labels.keys()
    assert max(missed.values()) < 1e-6


def test_a_floor_of_a_label_that_does_not_exist_is_an_error() -> None:
    own, scores = several(skill=0)
    with pytest.raises(RecipeError, match="no training row has the label 'labl 1'") as caught:
        report_labels(own, scores, None, Gate(label_floors={"recall": {"labl 1": 0.5}}))
    assert caught.value.where == "evaluation.gate.label_floors.recall"
    assert "label 1" in caught.value.fix
