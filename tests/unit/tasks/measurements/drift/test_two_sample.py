"""The tests by permutation agree with scipy and scikit-learn, find planted differences, and find nothing where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from tasks.known_rows.rows import hashed_ngrams
from tasks.measurements.drift.two_sample import (
    MAX_BINS,
    ObservationUnits,
    PermutationSettings,
    area_under_curve_test,
    bin_numbers,
    classifier_two_sample_test,
    kolmogorov_smirnov_statistic,
    label_shift_statistics,
    mean_decrease_test,
    permutation_test,
)

WORDS = ["card", "money", "transfer", "lost", "arrive", "when", "my", "the", "is", "bank", "fee", "exchange"]


def generator(seed=0):
    return np.random.default_rng(seed)


def test_labels_as_scipy_tests_them():
    known, new = [40, 30, 20, 10], [10, 18, 12, 10]
    values = np.concatenate([np.repeat(range(4), known), np.repeat(range(4), new)])
    sides = ObservationUnits.of(100, 50)
    (chi_square, only_new, distance), (p_value, p_only_new, _), _ = permutation_test(
        sides.shares(values, 4), 50, label_shift_statistics, PermutationSettings(9999, generator())
    )
    expected = stats.chi2_contingency([known, new])
    assert chi_square / (1 / 3 * 2 / 3) == pytest.approx(expected.statistic)
    assert p_value == pytest.approx(expected.pvalue, abs=0.02)
    assert (only_new, p_only_new) == (0.0, 1.0)
    assert distance == pytest.approx(0.5 * (0.2 + 0.06 + 0.04 + 0.1))


def test_label_that_only_new_rows_have_is_no_chance():
    values = np.array([0] * 500 + [0] * 47 + [1] * 3)
    sides = ObservationUnits.of(500, 50)
    real, p_values, by_chance = permutation_test(
        sides.shares(values, 2), 50, label_shift_statistics, PermutationSettings(1999, generator())
    )
    assert real[1] == pytest.approx(3 / 50)
    assert p_values[1] < 0.005
    assert by_chance[1] < 0.001


def test_numbers_as_scipy_tests_them():
    random = generator(1)
    known, new = random.normal(size=200), random.normal(0.25, 1, size=80)
    bins = bin_numbers(np.concatenate([known, new]))
    sides = ObservationUnits.of(200, 80)
    real, p_values, _ = permutation_test(
        sides.shares(bins, bins.max() + 1), 80, kolmogorov_smirnov_statistic, PermutationSettings(4999, generator())
    )
    expected = stats.ks_2samp(known, new)
    assert real[0] == pytest.approx(expected.statistic)
    assert p_values[0] == pytest.approx(expected.pvalue, abs=0.03)


def test_many_different_numbers_are_binned_in_order():
    values = generator().normal(size=5000)
    bins = bin_numbers(values)
    assert len(np.unique(bins)) == MAX_BINS
    assert np.bincount(bins).max() <= 12
    order = np.argsort(values)
    assert (np.diff(bins[order]) >= 0).all()


def test_area_under_the_curve_is_that_of_scikit_learn():
    random = generator(2)
    scores = np.round(np.concatenate([random.normal(size=150), random.normal(0.3, 1, size=60)]), 1)  # with ties
    area, p_value = area_under_curve_test(scores, ObservationUnits.of(150, 60), PermutationSettings(4999, generator()))
    assert area == pytest.approx(roc_auc_score([0] * 150 + [1] * 60, scores))
    expected = stats.mannwhitneyu(scores[150:], scores[:150], alternative="greater").pvalue
    assert p_value == pytest.approx(expected, abs=0.01)


def test_fall_of_the_mean_as_all_permutations_have_it():
    known, new = generator(2).random(8), generator(3).random(5) - 0.2
    values = np.concatenate([known, new])
    means = mean_decrease_test(values, ObservationUnits.of(8, 5), PermutationSettings(9999, generator()))
    assert means[:2] == pytest.approx((known.mean(), new.mean()))
    every = stats.permutation_test(
        (known, new), lambda a, b: a.mean() - b.mean(), n_resamples=np.inf, alternative="greater", vectorized=False
    )
    assert means[2] == pytest.approx(every.pvalue, abs=0.02)


def test_rows_that_belong_together_count_as_one():
    """Ten equal rows of each of 20 customers say as much as one row of each."""
    random = generator(3)
    customers = random.normal(size=20)
    values = np.concatenate([customers[:12], customers[12:]])
    bins = bin_numbers(values)
    one = permutation_test(
        ObservationUnits.of(12, 8).shares(bins, bins.max() + 1),
        8,
        kolmogorov_smirnov_statistic,
        PermutationSettings(1999, generator()),
    )
    groups = (np.repeat(np.arange(12), 10).astype(np.uint64), np.repeat(np.arange(8), 10).astype(np.uint64))
    sides = ObservationUnits.of(120, 80, groups)
    assert (sides.known, sides.new) == (12, 8)
    repeated = np.repeat(bins, 10)
    ten = permutation_test(
        sides.shares(repeated, bins.max() + 1), 8, kolmogorov_smirnov_statistic, PermutationSettings(1999, generator())
    )
    np.testing.assert_allclose(ten[0], one[0])
    np.testing.assert_allclose(ten[1], one[1])
    naive = ObservationUnits.of(120, 80)
    alone = permutation_test(
        naive.shares(repeated, bins.max() + 1), 80, kolmogorov_smirnov_statistic, PermutationSettings(1999, generator())
    )
    assert alone[1][0] < one[1][0] / 3


def sentences(count, words, seed):
    random = generator(seed)
    return [hashed_ngrams([" ".join(random.choice(words, 8))]) for _ in range(count)]


def test_texts_with_other_words_are_told_apart():
    known, new = sentences(300, WORDS, 0), sentences(60, WORDS, 1)
    other = sentences(60, ["carte", "argent", "virement", "perdue", *WORDS[:4]], 2)
    sides = ObservationUnits.of(300, 60)
    area, p_value, scores = classifier_two_sample_test([*known, *other], sides, PermutationSettings(1999, generator()))
    assert area > 0.95
    assert p_value == 1 / 2000
    assert scores[300:].mean() > scores[:300].mean() + 1
    area, p_value, _ = classifier_two_sample_test([*known, *new], sides, PermutationSettings(1999, generator()))
    assert 0.35 < area < 0.65
    assert p_value > 0.05


def test_too_few_texts_are_not_tested():
    assert (
        classifier_two_sample_test(
            sentences(40, WORDS, 0), ObservationUnits.of(30, 10), PermutationSettings(99, generator())
        )
        is None
    )


def test_p_values_of_texts_are_right_where_there_is_no_difference():
    """As many are below each level as should be: the classifier is tested on rows that it has not seen."""
    p_values = []
    for seed in range(100):
        told = classifier_two_sample_test(
            sentences(120, WORDS, seed), ObservationUnits.of(80, 40), PermutationSettings(199, generator(seed))
        )
        p_values.append(told[1])
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(np.array(p_values) <= 0.05) < 0.12
