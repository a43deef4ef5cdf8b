"""A short form of benchmarks/gate_simulation.py: error rate and power over a few hundred pairs of models."""

from __future__ import annotations

import pytest

from benchmarks import gate_simulation
from benchmarks.gate_equal_models import EQUAL, KINDS, EqualModels
from benchmarks.gate_families import FAMILIES, Accuracy, BitsPerByte, Family, MacroF1, Spans, few
from benchmarks.gate_simulation import GATES, cells, few_rates, slice_cells

SHORT: list[tuple[Family, int]] = [
    (Accuracy(200, 0.9, 0.02), 800),
    (Accuracy(1000, 0.9, 0.05), 400),
    (BitsPerByte(200, 0.5, rare=False), 200),
    (BitsPerByte(200, 0.5, rare=True), 200),
]


def id_of(value: object) -> str | None:
    return f"{value.describe()} of {value.rows} rows" if isinstance(value, Family) else None


@pytest.mark.parametrize(("family", "pairs"), SHORT, ids=id_of)
def test_false_publish_rate_is_at_most_2_5_percent(family: Family, pairs: int) -> None:
    """Rates of models that are not above the bar. Three standard errors are allowed for the small sample."""
    allowed = 0.025 + 3 * (0.025 * 0.975 / pairs) ** 0.5
    found = list(cells(family, pairs))
    errors = [cell for cell in found if cell.is_error]
    assert {cell.gate for cell in errors} == set(GATES)
    for cell in errors:
        assert cell.published <= allowed, cell
    for gate, settings in GATES.items():
        rates = [cell.published for cell in found if cell.gate == gate]
        assert rates == sorted(rates), "better models are published more often"
        clearly_worse = [cell.published for cell in errors if cell.gate == gate and cell.gain < settings.bar - 0.015]
        assert all(rate < 0.02 for rate in clearly_worse)


@pytest.mark.parametrize(
    "place",
    [*(pytest.param(place, marks=pytest.mark.slow) for place in (2, 4, 9)), 6],
    ids=lambda place: few(1)[place].describe(),
)
def test_few_observations_do_not_raise_the_error_rate(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row let half of the models pass that are no better, and with a margin nine of ten that agree on it."""
    monkeypatch.setattr(gate_simulation, "FEW", (1, 5, 6))
    for rates in few_rates(place, 100).values():
        assert rates[:2] == [0, 0]
        assert rates[2] is None or rates[2] <= 0.025 + 3 * (0.025 * 0.975 / 100) ** 0.5


def test_clearly_better_model_is_published() -> None:
    rates = {(cell.gate, cell.gain): cell.published for cell in cells(Accuracy(1000, 0.9, 0.05), 100)}
    assert rates["no worse (default)", 0.04] > 0.98
    assert rates["margin: 0.01", 0.02] > 0.85
    assert rates["gain: 0.01", 0.04] > 0.85


def test_slice_alarms_are_rare_for_good_slices_and_reliable_for_bad_ones() -> None:
    rates = {(cell.gate, cell.truth, cell.rows): cell for cell in slice_cells(25, slices=50)}
    for cell in rates.values():
        if cell.is_error:
            assert cell.alarm <= 0.05 + 3 * (0.05 * 0.95 / 25) ** 0.5, cell
    assert rates["slice_margin: 0.05", "one worse by 0.3", 200].alarm > 0.95
    assert rates["slice_floors: 0.8", "one worse by 0.3", 200].alarm > 0.95


EMBEDDED_CLASSES = next(one for one in EQUAL if one.title == "embeddings: texts of 8 classes")


def test_texts_that_are_documents_of_each_other_do_not_raise_the_error_rate() -> None:
    """As independent queries, they let 9% pass."""
    pairs = 60
    rates = EMBEDDED_CLASSES.rates(80, "independent rows", pairs, resamples=200)
    allowed = 0.025 + 3 * (0.025 * 0.975 / (2 * pairs)) ** 0.5
    assert max(rates.values()) <= allowed, rates


def test_table_of_equal_models_has_every_metric(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate_simulation, "ROWS", (12,))
    found = [cell for models in EQUAL for cell in gate_simulation.equal_cells(models, 1)]
    assert {cell.kind for cell in found} == {*KINDS}
    gate_simulation.print_equal(found)
    lines = capsys.readouterr().out.splitlines()
    for models in EQUAL:
        for metric in models.metrics:
            assert any(line.startswith(f"| {models.title} | {metric} | ") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("models", EQUAL, ids=lambda one: one.title)
def test_equal_models_are_published_in_at_most_2_5_percent(models: EqualModels) -> None:
    """One metric of a hundred may be three standard errors above by chance: four are allowed."""
    pairs = 200
    for kind in KINDS:
        for metric, rate in models.rates(60, kind, pairs).items():
            assert rate <= 0.025 + 4 * (0.025 * 0.975 / (2 * pairs)) ** 0.5, (kind, metric)


@pytest.mark.slow
@pytest.mark.parametrize("family", [Spans(200), MacroF1(300, 0.1), BitsPerByte(1000, 1.0, rare=False)], ids=id_of)
def test_false_publish_rate_of_other_metrics(family: Family) -> None:
    assert family in FAMILIES
    test_false_publish_rate_is_at_most_2_5_percent(family, 1000)
