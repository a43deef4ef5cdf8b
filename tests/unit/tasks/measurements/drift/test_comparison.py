"""Numbers are compared without overflow, however large they are: what a Hub's profile or a row holds is not chosen here."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest

from params.sections.rows import Drift
from tasks.known_rows.profile import DataProfile, SampledMeasure
from tasks.known_rows.rows import SampledRows, look_like_identifiers
from tasks.measurements.drift.new_rows import compare_with_profile
from tasks.measurements.drift.report import MeasuredChange

KNOWN = np.tile([-2.0, 1.0, 1.5], 100)


def change_of(known: np.ndarray, new: np.ndarray) -> MeasuredChange:
    profile = DataProfile(
        len(known),
        ["price"],
        True,
        np.arange(1, dtype=np.uint64),
        {},
        (SampledMeasure("number", "price", known, None),),
    )
    rows = SampledRows(np.arange(len(new)), None, {}, {}, {"price": new}, [[]] * len(new))
    (finding,) = compare_with_profile(profile, rows, Drift(), seed=1)
    assert not np.isnan(finding.row_scores).any()
    return finding.change


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1.0, 6e307])
@pytest.mark.parametrize(("new", "moves"), [(KNOWN, False), (KNOWN + 0.5, True), (-KNOWN, True)])
def test_numbers_are_compared_alike_at_any_scale(scale: float, new: np.ndarray, moves: bool) -> None:
    change, usual = change_of(KNOWN * scale, new * scale), change_of(KNOWN, new)
    assert (change.moved, change.p_value) == (usual.moved, usual.p_value)
    assert change.effect == pytest.approx(usual.effect, abs=0.001)
    assert change.moved == moves
    assert MeasuredChange.model_validate_json(change.model_dump_json()) == change


@pytest.mark.parametrize(
    ("known", "new"),
    [(KNOWN, KNOWN * 8e307), (KNOWN * 8e307, KNOWN), (KNOWN * 1e-320, -KNOWN), (KNOWN * 0, KNOWN + 1e308)],
)
def test_any_finite_numbers_give_a_finite_effect(known: np.ndarray, new: np.ndarray) -> None:
    change = change_of(known, new)
    assert isfinite(change.effect)
    assert change.moved
    assert len(change.detail) < 200
    assert MeasuredChange.model_validate_json(change.model_dump_json()) == change


def test_large_numbers_are_no_identifiers() -> None:
    assert not look_like_identifiers(np.array([1.5e308, -1.5e308, 1.7e308, -1.7e308] * 50))
