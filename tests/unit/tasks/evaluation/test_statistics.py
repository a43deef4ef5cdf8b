"""Intervals and significance tests, against published and worked examples."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import bdtr
from scipy.stats import binomtest, norm, ttest_1samp

from params.schema import ObjectiveChoice
from tasks.evaluation import statistics
from tasks.evaluation.jackknife import Jackknife
from tasks.evaluation.report import min_interval_observations
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler, accuracy_gain, mcnemar_p_value, paired_share_score_test
from tasks.multiple_tests import holm_rejections
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

CAUSAL = objectives.build_objective(ObjectiveChoice(name="causal_lm"))
CLASSES = objectives.build_objective(ObjectiveChoice(name="sequence_classification"))
LABELS = {"labels": ["a", "b", "c"]}
DIRECTIONS: dict[str, Any] = directions({**CAUSAL.metrics, **CLASSES.metrics})


def texts(rows: int, seed: int = 0) -> RowScores:
    draw = np.random.default_rng(seed)
    size = np.exp(draw.normal(4.0, 0.5, rows))
    nll = size * draw.gamma(20.0, 0.05, rows)
    return RowScores(np.arange(rows), {"nll": nll, "tokens": size / 4, "correct": size / 8, "bytes": size})


def labelled(rows: int, seed: int = 0, right: float = 0.7) -> RowScores:
    draw = np.random.default_rng(seed)
    label = np.random.default_rng(99).integers(0, 3, rows)
    predicted = np.where(draw.random(rows) < right, label, (label + 1) % 3)
    columns = {
        "nll": draw.random(rows),
        "label": label,
        "prediction": predicted,
        "confidence": draw.uniform(0.4, 1, rows),
    }
    return RowScores(np.arange(rows), {name: np.asarray(column, float) for name, column in columns.items()})


def resampler(objective: Any = CAUSAL, *, resamples: int = 400, seed: int = 3, state: Any = LABELS) -> Resampler:
    return Resampler(objective, state, resamples=resamples, confidence=0.95, seed=seed)


def rows_of(one: int, other: int, both: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Right rows of two models: only by one, only by the other, by both, by none."""
    counts = (one, other, both, neither)
    return np.repeat([True, False, True, False], counts), np.repeat([False, True, True, False], counts)


def test_mcnemar_matches_agrestis_example() -> None:
    """Agresti, Categorical Data Analysis, table 10.1: approval of a prime minister; 150 and 86 changed their minds."""
    assert mcnemar_p_value(150, 86) == pytest.approx(3.7e-5, rel=0.03)
    assert mcnemar_p_value(1, 6) == pytest.approx(2 * (1 + 7) / 2**7)
    assert mcnemar_p_value(0, 0) == 1.0
    assert mcnemar_p_value(3, 8) == mcnemar_p_value(8, 3)
    assert accuracy_gain(*rows_of(1, 6, 10, 10), 0.95).p_value == mcnemar_p_value(1, 6)


@pytest.mark.parametrize("only_one", [0, 1, 5, 12, 100])
def test_mcnemar_is_twice_the_smaller_binomial_tail(only_one: int) -> None:
    """The formula, computed with the binomial distribution function."""
    for only_other in (1, 4, 5, 13, 400):
        tail = bdtr(float(min(only_one, only_other)), only_one + only_other, 0.5)
        assert mcnemar_p_value(only_one, only_other) == pytest.approx(min(1.0, 2 * float(tail)), rel=1e-9)


def test_holm_by_hand() -> None:
    """0.01 and 0.005 against 0.05 / 3 and 0.05 / 4; 0.03 misses 0.05 / 2, so 0.04 is not tested."""
    assert holm_rejections([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm_rejections([0.04, 0.02], 0.05) == [True, True]
    assert holm_rejections([0.04, 0.03], 0.05) == [False, False]
    assert holm_rejections([], 0.05) == []


def test_score_test_at_zero_is_mcnemars() -> None:
    assert paired_share_score_test(16, 4, 100, 0.0) == pytest.approx(norm.sf((12 - 1) / 20**0.5))
    assert paired_share_score_test(16, 4, 5000, 0.0) == pytest.approx(paired_share_score_test(16, 4, 100, 0.0)), (
        "rows on which both agree do not count"
    )


def test_score_test_by_hand() -> None:
    """Both models are right on the same rows; were one worse by d, they would differ on a share d of the rows."""
    rows, worse = 200, 0.01
    z = (rows * worse - 1) / (rows * worse * (1 - worse)) ** 0.5
    assert paired_share_score_test(0, 0, rows, -worse) == pytest.approx(norm.sf(z))


@pytest.mark.parametrize(("one", "other", "rows"), [(30, 20, 1000), (0, 0, 200), (5, 0, 80), (0, 9, 90), (3, 4, 7)])
def test_interval_inverts_the_score_test(one: int, other: int, rows: int) -> None:
    gain = accuracy_gain(*rows_of(one, other, rows - one - other, 0), 0.95)
    assert gain.value == pytest.approx((one - other) / rows)
    assert gain.low <= gain.value <= gain.high
    assert gain.low == -1 or paired_share_score_test(one, other, rows, gain.low) == pytest.approx(0.025, abs=1e-6)
    assert gain.high == 1 or gain.at_most(gain.high) == pytest.approx(0.025, abs=1e-6)
    mirrored = accuracy_gain(*rows_of(other, one, rows - one - other, 0), 0.95)
    assert (mirrored.low, mirrored.high) == pytest.approx((-gain.high, -gain.low))


def test_agreement_on_few_rows_does_not_prove_equality() -> None:
    """The percentile interval of differences that are all 0 is 0 to 0, and passes any margin."""
    own = other = labelled(200)
    same = resampler(CLASSES).resample([own, other])
    assert np.ptp(same[0]["accuracy"] - same[1]["accuracy"]) == 0
    found = resampler(CLASSES).gains(own, other, DIRECTIONS)
    assert found["accuracy"].low < -0.02
    assert found["accuracy"].high > 0.02


def test_jackknife_of_a_mean_matches_the_t_test() -> None:
    draw = np.random.default_rng(0)
    values = np.concatenate([side := draw.normal(0, 1, 200), -side]) + 0.1  # no skewness
    left_out = (values.sum() - values) / (len(values) - 1)
    found = Jackknife.of(values.mean(), left_out, 1.0, 0.95)
    assert found.error == pytest.approx(values.std(ddof=1) / len(values) ** 0.5)
    assert found.skewness == pytest.approx(0, abs=1e-9)
    plain = ttest_1samp(values, 0.0, alternative="less").pvalue
    assert found.tail(0.0) == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_jackknife_interval_agrees_with_its_tail(seed: int) -> None:
    values = np.random.default_rng(seed).exponential(1.0, 40) * (-1) ** seed
    left_out = (values.sum() - values) / 39
    found, mirrored = (Jackknife.of(sign * values.mean(), sign * left_out, 1.0, 0.95) for sign in (1, -1))
    low, high = found.interval(0.95)
    assert found.tail(high) == pytest.approx(0.025, rel=1e-6)
    assert mirrored.tail(-low) == pytest.approx(0.025, rel=1e-6)
    assert mirrored.interval(0.95) == pytest.approx((-high, -low))


def test_dominant_rows_give_few_degrees_of_freedom() -> None:
    even, uneven = np.random.default_rng(0).normal(size=(2, 1000))
    uneven[:5] *= 100
    assert Jackknife.of(0.0, even, 1.0, 0.95).freedom > 500
    assert Jackknife.of(0.0, uneven, 1.0, 0.95).freedom < 10


def test_equal_rows_have_the_interval_of_the_binomial_test() -> None:
    """Nine rows without an error: a share s of other rows, each 0.4 from these, is rejected if (1 - s)^9 <= 0.025."""
    flat = Jackknife.of(0.5, np.full(9, 0.5), 0.4, 0.95)
    low, high = flat.interval(0.95)
    share = float(binomtest(0, 9, alternative="less").proportion_ci(0.975).high)
    assert (low, high) == pytest.approx((0.5 - 0.4 * share, 0.5 + 0.4 * share))
    assert flat.tail(high) == pytest.approx(0.025)
    assert (flat.tail(0.4), flat.tail(0.7), flat.tail(2.0)) == pytest.approx((1.0, 0.5**9, 0.0))


def test_rows_that_only_rounding_tells_apart_are_equal() -> None:
    noise = np.random.default_rng(1).normal(0, 1e-9, 20)
    left_out = np.full(20, 0.5)
    equal, noisy = (Jackknife.of(0.5, one, 1.0, 0.95).interval(0.95) for one in (left_out, left_out + noise))
    assert noisy == equal


def test_least_observations_are_those_of_the_sign_test() -> None:
    for confidence in (0.8, 0.9, 0.95, 0.99, 1 - 0.05 / 12):
        least = min_interval_observations(confidence)
        assert 0.5**least <= (1 - confidence) / 2 < 0.5 ** (least - 1)
    assert [min_interval_observations(one) for one in (0.75, 0.95, 1 - 0.05 / 12)] == [3, 6, 9]


def few(scores: Any, rows: int, *, groups: bool, seed: int) -> RowScores:
    """So many rows, or twice as many in so many groups."""
    found = scores(2 * rows if groups else rows, seed)
    return replace(found, groups=np.arange(2 * rows) // 2) if groups else found


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize(("objective", "scores"), [(CAUSAL, texts), (CLASSES, labelled)], ids=["texts", "labels"])
@pytest.mark.parametrize("observations", range(1, 9))
def test_few_observations_give_no_interval(objective: Any, scores: Any, observations: int, *, groups: bool) -> None:
    """A single one would give an interval of no width, which every better value passes."""
    source = resampler(objective, resamples=200)
    own, other = (few(scores, observations, groups=groups, seed=seed) for seed in (1, 2))
    found = source.gains(own, other, DIRECTIONS)
    shares = {"accuracy"} if not groups and objective is CLASSES else set()
    for metric in found.keys() - shares:
        gain = found[metric]
        if observations < 6:
            assert (gain.low, gain.high) == (-np.inf, np.inf)
            assert gain.at_most(-100.0) == gain.at_most(100.0) == 1.0, "and no slice is called bad"
        else:
            assert -np.inf < gain.low < gain.high < np.inf
    for metric in shares:  # an exact test knows how little few rows say
        assert found[metric].low < 0 < found[metric].high
    floors = {metric: 1000.0 if DIRECTIONS[metric] == "max" else -1000.0 for metric in found.keys() - shares}
    p_values = source.floor_p_values(own, floors, DIRECTIONS)
    assert all(p_value == 1.0 if observations < 6 else p_value < 0.05 for p_value in p_values.values())
    for low, high in (source.interval(values, observations) for values in source.resample([own])[0].values()):
        assert (low, high) == (-np.inf, np.inf) if observations < 6 else low <= high


def test_agreement_of_few_groups_does_not_prove_equality() -> None:
    """Where the rows are groups, too: equal gains of 0 are no interval of no width, which passes any margin."""
    for groups, width in ((20, 0.17), (200, 0.02)):
        own = replace(labelled(2 * groups), groups=np.arange(2 * groups) // 2)
        found = resampler(CLASSES).gains(own, own, DIRECTIONS)
        for metric in ("accuracy", "macro_f1", "calibration_error", "loss"):
            assert found[metric].low <= -width * 0.5
            assert found[metric].high == -found[metric].low
            assert found[metric].low > -5 * width


def test_a_model_that_is_right_where_the_other_is_wrong_passes_as_in_the_sign_test() -> None:
    right = labelled(12, right=1.0)
    wrong = replace(right, columns={**right.columns, "prediction": (right.columns["label"] + 1) % 3})
    for rows in range(1, 13):
        groups = np.arange(rows)
        pair = [replace(one.take(slice(0, rows)), groups=groups) for one in (right, wrong)]
        found = resampler(CLASSES, resamples=200).gains(*pair, DIRECTIONS)
        assert found["accuracy"].value == 1.0
        assert (found["accuracy"].low > 0) == (rows >= 6)


def test_a_resample_without_a_value_counts_against_both_ends() -> None:
    source, values = resampler(), np.linspace(0, 1, 1000)
    assert source.interval(values, 50) == pytest.approx((0.025, 0.975), abs=1e-3)
    values[::100] = np.nan  # 1%
    assert source.interval(values, 50) == pytest.approx((0.015, 0.985), abs=2e-3)
    values[::20] = np.nan  # 5%
    assert source.interval(values, 50) == (-np.inf, np.inf)


def test_a_metric_that_one_row_decides_has_no_interval() -> None:
    """Only one of 30 texts has tokens: without it, no loss exists."""
    one, other = texts(30, 1), texts(30, 2)
    for scores in (one, other):
        for name in ("nll", "tokens", "correct", "bytes"):
            scores.columns[name][1:] = 0
    found = resampler(resamples=200).gains(one, other, DIRECTIONS)
    assert (found["loss"].low, found["loss"].high) == (-np.inf, np.inf)


@pytest.mark.parametrize(("objective", "scores"), [(CAUSAL, texts), (CLASSES, labelled)], ids=["texts", "labels"])
def test_gain_is_the_metric_difference_in_the_metrics_direction(objective: Any, scores: Any) -> None:
    own, other, source = scores(300, 1), scores(300, 2), resampler(objective)
    found = source.gains(own, other, DIRECTIONS)
    back = source.gains(other, own, DIRECTIONS)
    mine, theirs = source.metrics(own), source.metrics(other)
    for metric, gain in found.items():
        sign = 1 if DIRECTIONS[metric] == "max" else -1
        assert gain.value == pytest.approx(sign * (mine[metric] - theirs[metric]), abs=1e-12)
        assert gain.low <= gain.value <= gain.high
        assert (back[metric].low, back[metric].high) == pytest.approx((-gain.high, -gain.low), abs=1e-9)
        assert (gain.p_value is None) == (metric != "accuracy")
        resampled = [one[metric] for one in source.resample([own, other])]
        if metric != "accuracy":  # never shorter than the percentile interval
            low, high = source.interval(sign * (resampled[0] - resampled[1]), 300)
            assert gain.low <= low <= high <= gain.high


def test_all_models_get_the_same_resamples() -> None:
    """Whatever their number and order; another seed gives other resamples."""
    one, two, three = texts(500, 1), texts(500, 2), texts(500, 3)
    source = resampler()
    alone = source.resample([two])[0]["loss"]
    assert np.allclose(source.resample([one, two, three])[1]["loss"], alone, rtol=1e-12)
    assert np.allclose(source.resample([two, one])[0]["loss"], alone, rtol=1e-12)
    assert np.ptp(source.resample([one, one])[0]["loss"] - source.resample([one, one])[1]["loss"]) == 0
    assert not np.allclose(resampler(seed=4).resample([two])[0]["loss"], alone)


def test_row_weights_are_drawn_once_for_all_models_and_comparisons() -> None:
    statistics._weights.cache_clear()
    own, other, source = texts(3000, 1), texts(3000, 2), resampler(resamples=200)
    source.resample([own])
    source.resample([other])
    source.gains(own, other, DIRECTIONS)
    assert statistics._weights.cache_info().misses == 2, "one draw for each of two chunks"


def test_resamples_do_not_depend_on_the_chunk_size(monkeypatch: Any) -> None:
    """Each chunk has its own generator, seeded by the index of its first row; totals are summed over the chunks."""
    scores = texts(150)
    monkeypatch.setattr(statistics, "_CHUNK", 64)
    weights = np.concatenate(
        [np.random.default_rng([3, at]).poisson(1.0, (400, min(64, 150 - at))) for at in (0, 64, 128)], axis=1
    )
    nll, size = weights @ scores.columns["nll"], weights @ scores.columns["tokens"]
    assert np.allclose(resampler().resample([scores])[0]["loss"], nll / size, rtol=1e-12)
    by_chunks = resampler().metrics(scores), resampler().floor_p_values(scores, {"loss": 4.0}, DIRECTIONS)
    monkeypatch.setattr(statistics, "_CHUNK", 2048)
    at_once = resampler().metrics(scores), resampler().floor_p_values(scores, {"loss": 4.0}, DIRECTIONS)
    for chunked, whole in zip(by_chunks, at_once, strict=True):
        assert chunked == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("rows", [100, 1000])
def test_intervals_cover_the_true_value(rows: int) -> None:
    """The loss per token of texts whose lengths differ; 600 samples: 95% is 93% to 97%, give or take."""
    source = resampler(resamples=300)
    samples = [texts(rows, seed) for seed in range(600)]
    truth = source.metrics(texts(400_000, 7))["bits_per_byte"]
    covered = sum(
        low < truth < high
        for found in source.resample(samples)
        for low, high in [source.interval(found["bits_per_byte"], rows)]
    )
    assert 0.92 < covered / 600 < 0.975


def copies(scores: RowScores, times: int, *, are_known: bool) -> RowScores:
    """Each row several times, in an order of its own; with `are_known`, the copies of a row are a group."""
    order = np.random.default_rng(5).permutation(len(scores) * times)
    taken = scores.take(order % len(scores))
    return RowScores(np.arange(len(taken)), taken.columns, taken.row_ids if are_known else None)


@pytest.mark.parametrize(("objective", "scores"), [(CAUSAL, texts), (CLASSES, labelled)], ids=["texts", "labels"])
def test_copies_of_rows_tell_nothing_new_if_they_are_a_group(monkeypatch: Any, objective: Any, scores: Any) -> None:
    monkeypatch.setattr(statistics, "_CHUNK", 64)
    source, once = resampler(objective), (scores(150, 1), scores(150, 2))
    alone = tuple(replace(one, groups=one.row_ids) for one in once)
    expected = source.gains(*alone, DIRECTIONS)
    found = source.gains(*(copies(one, 5, are_known=True) for one in once), DIRECTIONS)
    wrong = source.gains(*(copies(one, 5, are_known=False) for one in once), DIRECTIONS)
    for metric, gain in found.items():
        assert gain.p_value is None
        assert (gain.value, gain.low, gain.high) == pytest.approx(
            (expected[metric].value, expected[metric].low, expected[metric].high), rel=1e-9
        )
        assert wrong[metric].high - wrong[metric].low <= 0.6 * (gain.high - gain.low), "by the root of 5"
    floors = {"loss": 0.5}
    assert source.floor_p_values(copies(once[0], 5, are_known=True), floors, DIRECTIONS) == pytest.approx(
        source.floor_p_values(alone[0], floors, DIRECTIONS), rel=1e-9
    )


def test_floor_of_a_share_uses_the_binomial_test() -> None:
    scores = labelled(60, right=0.6)
    right = int((scores.columns["label"] == scores.columns["prediction"]).sum())
    found = resampler(CLASSES).floor_p_values(scores, {"accuracy": 0.8, "loss": 0.4, "macro_f1": 0.8}, DIRECTIONS)
    assert found["accuracy"] == pytest.approx(binomtest(right, 60, 0.8, alternative="less").pvalue)
    assert found["loss"] < 0.05, "a mean of 0.5 is above a floor of 0.4, and the smallest is best"
    assert found["macro_f1"] < 0.01
    better = resampler(CLASSES).floor_p_values(scores, {"accuracy": 0.4, "loss": 0.6, "macro_f1": 0.4}, DIRECTIONS)
    assert min(better.values()) > 0.7
    assert resampler(CLASSES).floor_p_values(scores, {"accuracy": 0.0}, DIRECTIONS) == {"accuracy": 1.0}
    assert resampler(CLASSES).floor_p_values(scores, {"accuracy": 1.0}, DIRECTIONS) == {"accuracy": 0.0}


def peak_mib(rows: int) -> float:
    own, other = texts(rows, 1), texts(rows, 2)
    tracemalloc.start()
    try:
        resampler(resamples=200).gains(own, other, DIRECTIONS)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_resampling_memory_does_not_grow_with_the_rows() -> None:
    """Weights of 200 resamples of 50,000 rows would take 76 MiB. Only the scores grow."""
    small, large = peak_mib(5_000), peak_mib(50_000)
    assert large - small < 20
