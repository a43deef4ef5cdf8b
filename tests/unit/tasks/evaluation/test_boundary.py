"""A share that is 1.0 or 0.0 on all rows has an interval that says how many rows there are, and no verdict becomes laxer by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from params.schema import ObjectiveChoice
from tasks.evaluation.report import EvaluationDetails
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tasks.stages import read_report
from tests.support.zoo.cells import Cell, try_cell
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

LABELS = {"labels": ["a", "b", "c"]}
CASES = [("sequence_classification", name) for name in ("accuracy", "macro_f1")]
CASES += [("token_classification", name) for name in ("token_accuracy", "precision", "recall", "f1")]
CASES += [("seq2seq", name) for name in ("exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy")]
CASES += [("causal_lm", "token_accuracy"), ("dpo", "reward_accuracy"), ("grpo", "terminated")]
OPTIONS: dict[str, Any] = {"grpo": {"prompt": "{text}", "rewards": ["trainer.rewards:numeric_answer"]}}


def build(name: str) -> Any:
    return objectives.build_objective(ObjectiveChoice(name=name, **OPTIONS.get(name, {})))


def resampler(name: str, confidence: float = 0.95) -> Resampler:
    return Resampler(build(name), LABELS, resamples=200, confidence=confidence, seed=3)


def scores(name: str, rows: int, share: float) -> RowScores:
    """So many rows, all of whose scores of an answer are right (1.0) or wrong (0.0)."""
    number = np.arange(rows)
    right = {
        "label": number % 3,
        "prediction": (number + (share == 0)) % 3,
        "confidence": np.ones(rows),
        "tokens": np.full(rows, 4.0),
        "actual_spans": np.full(rows, 2.0),
        "predicted_spans": np.full(rows, 2.0),
        "correct_spans": np.full(rows, 2 * share),
        "correct": np.full(rows, 4 * share),
        "generated": np.ones(rows),
        "rejected_reward": np.full(rows, 1 - share),
    }
    names = build(name).score_names(LABELS)
    columns = {one: np.asarray(right.get(one, np.full(rows, share)), float) for one in names}
    return RowScores(number, columns)


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["none right", "all right"])
@pytest.mark.parametrize(("name", "metric"), CASES)
def test_interval_at_the_boundary_is_the_exact_binomial_one(name: str, metric: str, share: float) -> None:
    for rows, confidence in ((96, 0.95), (24, 0.99)):  # equally many of each label
        source, one = resampler(name, confidence), scores(name, rows, share)
        assert source.metrics(one)[metric] == share
        exact = binomtest(int(share * rows), rows).proportion_ci(confidence, method="exact")
        assert source.intervals(one)[metric] == pytest.approx((exact.low, exact.high), abs=1e-9)
        grouped = replace(one, groups=np.arange(rows) // 2)
        groups = (rows + 1) // 2
        exact = binomtest(int(share * groups), groups).proportion_ci(confidence, method="exact")
        assert source.intervals(grouped)[metric] == pytest.approx((exact.low, exact.high), abs=1e-9)


COUNTS = [(95, 2), (2, 95), (50, 1, 46), (5, 5, 5), (3, 4, 90), (40, 40)]


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["none right", "all right"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_macro_f1_of_labels_with_few_rows_reaches_as_far_as_the_likelihood(
    counts: tuple[int, ...], share: float
) -> None:
    """By a search over the F1 of each label, and not shorter than if all labels had as many rows."""
    source = resampler("sequence_classification")
    labels = np.repeat(np.arange(len(counts)), counts)
    others = np.roll(np.arange(len(counts)), 1)[labels]
    one = scores("sequence_classification", len(labels), share)
    one.columns.update(label=labels.astype(float), prediction=(labels if share else others).astype(float))
    low, high = source.intervals(one)["macro_f1"]
    assert (high if share else low) == share
    actual = np.bincount(labels, minlength=len(counts))
    weights = (actual + (actual if share else np.bincount(others, minlength=len(counts)))) / 2
    drawn = np.random.default_rng(1).dirichlet(np.full(len(counts), 0.5), 200_000) * np.log(
        0.025
    )  # of the log-likelihood
    least = np.exp(drawn / weights).mean(1).min()
    reach = high - low
    assert reach >= 1 - least - 1e-9
    assert reach == pytest.approx(1 - least, abs=2e-3)
    assert reach >= 1 - 0.025 ** (1 / len(labels)) - 1e-9


def test_no_calibration_error_of_few_rows_is_not_none_at_all() -> None:
    found = resampler("sequence_classification").intervals(scores("sequence_classification", 97, 1.0))
    assert found["calibration_error"] == pytest.approx((0.0, 1 - 0.025 ** (1 / 97)))
    assert found["loss"] == (1.0, 1.0), "it has no limit"


def test_other_intervals_are_those_of_the_bootstrap() -> None:
    source, one = resampler("sequence_classification"), scores("sequence_classification", 97, 1.0)
    one.columns["prediction"][0] = 1
    (resampled,) = source.resample([one])
    found = source.intervals(one)
    assert found["accuracy"] == tuple(np.quantile(resampled["accuracy"], [0.025, 0.975]))
    assert found["macro_f1"] == tuple(np.quantile(resampled["macro_f1"], [0.025, 0.975]))


def test_a_metric_without_limits_has_no_other_interval() -> None:
    """That all rows have a reward of 1.0 does not say which rewards there are."""
    found = resampler("grpo").intervals(scores("grpo", 97, 1.0))
    assert found["reward"] == (1.0, 1.0)


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize(("name", "metric"), [case for case in CASES if case[0] != "grpo"])
def test_two_models_that_are_right_on_all_of_few_rows_are_not_shown_to_be_alike(
    name: str, metric: str, *, grouped: bool
) -> None:
    objective = build(name)
    for rows, margin in ((20, 0.15), (97, 0.035)):
        one = scores(name, rows, 1.0)
        own = replace(one, groups=np.arange(rows)) if grouped else one
        gain = resampler(name).gains(own, own, directions(objective.metrics))[metric]
        assert gain.value == 0
        assert gain.low < -margin, "a margin of so much is not passed"
        assert gain.high > margin


def test_report_of_a_run_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    artifacts = try_cell(Cell("t5", "seq2seq", lora=False), tmp_path)
    found = read_report(artifacts, EvaluationDetails).intervals["model"]["exact_match"]
    exact = binomtest(0, 8).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((0.0, exact.high))
