"""A short form of benchmarks/drift.py: how often drift is found where there is none, and where there is some."""

from __future__ import annotations

import random

import pytest

from benchmarks.drift import Row, Trial, cell, moved, one_run

RUNS = 100
ALLOWED = 0.05 + 3 * (0.05 * 0.95 / RUNS) ** 0.5


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Texts of 12 intents, each with words of its own."""
    chance = random.Random(0)
    common = [f"word{i}" for i in range(60)]
    found = []
    for i in range(1500):
        intent = i % 12
        words = chance.choices(common, k=chance.randint(4, 12)) + chance.choices(
            [f"topic{intent}{j}" for j in range(5)], k=2
        )
        found.append(Row(" ".join(chance.sample(words, len(words))), f"intent {intent}"))
    return found


def found(trial: Trial, rows: list[Row], runs: int = RUNS) -> float:
    """Share of the runs that find drift."""
    return cell(trial, [one_run(trial, rows, seed) for seed in range(runs)], 0.0).found["0.95"]


@pytest.mark.parametrize("is_grouped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_drift_is_rarely_found_where_there_is_none(rows: list[Row], is_grouped: bool) -> None:
    assert found(Trial("alike", 500, 100, is_grouped=is_grouped), rows) <= ALLOWED


def test_benchmark_counts_what_the_product_calls_drift(rows: list[Row]) -> None:
    for trial in (Trial("alike", 500, 20), Trial("a new intent", 500, 100, 0.05, "label")):
        for seed in range(5):
            changes = one_run(trial, rows, seed)
            assert any(change.effect >= change.floor for change in changes)
            assert [change.what for change in changes if change.moved] == moved(changes, 0.99)


def test_rows_that_belong_together_look_like_drift_to_who_does_not_know(rows: list[Row]) -> None:
    assert found(Trial("alike", 500, 100, is_grouped=True, says_groups=False), rows, 10) > 0.5


@pytest.mark.parametrize(
    "trial",
    [
        Trial("a new intent", 500, 100, 0.05, "label"),
        Trial("the same without labels", 500, 300, 0.3, "intent in text"),
        Trial("one intent asked more often", 500, 100, 0.3, "shift"),
        Trial("texts twice as long", 500, 100, 0.4, "long"),
        Trial("another language", 500, 100, 0.4, "language"),
    ],
    ids=lambda trial: trial.name,
)
def test_planted_drift_is_found(rows: list[Row], trial: Trial) -> None:
    assert found(trial, rows, 10) == 1.0
