"""A short form of benchmarks/gate_year.py: errors of a year of candidates on the same rows, and power."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gate_year
from benchmarks.gate_year import CANDIDATES, DIFFER, KINDS, errors, power, year_counts


def test_year_over_test_rows_errs_as_often_as_one_comparison_may() -> None:
    years = 200
    found = errors(years, 1000, 0.0)
    assert found["test_rows"] <= 0.025 + 3 * (0.025 * 0.975 / years) ** 0.5
    assert 0.08 < found["release"] <= 1 - 0.975**CANDIDATES + 3 * (0.26 * 0.74 / years) ** 0.5


def test_price_is_power() -> None:
    found = power(200, 1000, 0.03)
    assert found["test_rows"] < found["release"] - 0.15
    assert found["test_rows"] > 0.35


@pytest.mark.parametrize("shared", KINDS.values())
def test_candidates_of_a_year_are_no_better_and_alike_as_asked(shared: float) -> None:
    years, rows = 4000, 1000
    one, other = year_counts(np.random.default_rng(1), years, rows, shared)
    assert one.shape == (years, CANDIDATES)
    gains = (one - other) / rows
    assert abs(gains.mean()) < 0.001
    assert (one + other).mean() == pytest.approx(DIFFER * rows, rel=0.02)
    between = np.corrcoef(gains[:, 0], gains[:, 1])[0, 1]  # never 0: the champion's luck on these rows is common to all
    assert 0.8 < between < 0.95 if shared else 0.2 < between < 0.35


def test_gate_year_prints_every_cell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gate_year", "--years", "2"])
    gate_year.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert len(lines) == len(gate_year.ROWS) * (len(KINDS) + len(gate_year.GAINS)) + len(gate_year.OTHERS)
    assert all(line.count("±") == len(gate_year.GATES) for line in lines)
