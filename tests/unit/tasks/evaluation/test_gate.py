"""The gate: every verdict with its reasons, the order of its checks, floors and slices."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import pytest

from params.sections.evaluation import Gate
from tasks.evaluation import gate
from tasks.evaluation.report import EvaluationDetails, HeldOutRowUse, MetricComparison, SliceResult

METRICS = {"accuracy": 0.9, "loss": 0.4}
DIRECTIONS: dict[str, Any] = {"accuracy": "max", "loss": "min"}


class Judged(NamedTuple):
    verdict: str
    reasons: tuple[str, ...]


def gain(value: float, low: float, high: float, **changes: Any) -> MetricComparison:
    fields = {"against": "champion", "metric": "accuracy", "p_value": None, "rows": 1000} | changes
    return MetricComparison(gain=value, low=low, high=high, **fields)


def slice_result(name: str = "a", **changes: Any) -> SliceResult:
    fields: dict[str, Any] = {
        "slice_by": "language",
        "slice": name,
        "rows": 50,
        "metric": "accuracy",
        "value": 0.7,
        "low": 0.6,
        "high": 0.8,
        "champion": 0.9,
        "gain": -0.2,
        "gain_low": -0.3,
        "gain_high": -0.1,
        "floor_p_value": None,
        "margin_p_value": None,
    }
    return SliceResult(**fields | changes)


BETTER = gain(0.03, 0.01, 0.05, p_value=0.001)
WORSE = gain(-0.031, -0.041, -0.022, p_value=0.001)
START = gain(0.5, 0.4, 0.6, against="untrained", p_value=0.0001)


def judge(
    settings: Gate | None = None,
    *comparisons: MetricComparison,
    slices: Sequence[SliceResult] = (),
    ages: Sequence[SliceResult] = (),
    ages_unknown: str = "",
    **state: Any,
) -> Judged:
    """Judge a candidate with a champion, unless `state` of a `JudgedModel` says otherwise."""
    details = EvaluationDetails(
        confidence=0.95,
        resamples=100,
        directions=DIRECTIONS,
        intervals={},
        comparisons=list(comparisons or (BETTER,)),
        slices=list(slices),
        ages=list(ages),
        ages_unknown=ages_unknown,
    )
    state = {"has_champion": True} | state
    candidate = gate.JudgedModel(metric="accuracy", metrics=METRICS, **state)
    verdict, reasons = gate.judge_candidate(settings or Gate(), candidate, details)
    return Judged(verdict, tuple(reasons))


def test_better_model_is_published_with_its_gain() -> None:
    verdict = judge()
    assert verdict.verdict == "publish"
    assert verdict.reasons == (
        "accuracy is 0.03 better than the champion's (95% interval 0.01 to 0.05 better; McNemar p = 0.001)",
    )


def test_worse_model_is_kept_with_the_required_gain() -> None:
    verdict = judge(None, WORSE)
    assert verdict.verdict == "keep"
    assert verdict.reasons == (
        (
            "accuracy is 0.031 worse than the champion's (95% interval 0.022 to 0.041 worse; McNemar p = 0.001); "
            "the gain's lower end must be above 0"
        ),
    )
    assert "no more than 0.02 worse" in judge(Gate(margin=0.02), WORSE).reasons[0]


def test_a_worse_model_within_the_margin_says_that_the_margin_allows_it() -> None:
    verdict = judge(Gate(margin=0.05), WORSE)
    assert verdict.verdict == "publish"
    assert verdict.reasons[0].endswith("McNemar p = 0.001), which the margin of 0.05 allows")
    assert "margin" not in judge(Gate(margin=0.05)).reasons[0], "a model that is better needs none"


def test_a_share_of_too_few_rows_says_how_many_are_needed() -> None:
    """The exact tests have an interval of any number of rows, but no model passes them with 5."""
    (reason,) = judge(Gate(), gain(0.6, -0.3, 0.96, p_value=0.25, rows=5)).reasons
    assert reason.endswith("; 5 rows cannot show it: a 95% interval needs at least 6: add held-out rows")


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"rows": 1}, "1 row cannot show it: a 95% interval needs at least 6"),
        ({"rows": 40, "groups": 5}, "5 groups (40 rows) cannot show it: a 95% interval needs at least 6"),
        ({"rows": 40}, "too few of 40 rows count in it for a 95% interval"),
    ],
    ids=["rows", "groups", "metric"],
)
@pytest.mark.parametrize("settings", [Gate(), Gate(gain=0.01), Gate(margin=0.5)], ids=["default", "gain", "margin"])
def test_without_an_interval_the_champion_stays_and_a_first_release_is_refused(
    settings: Gate, counts: dict[str, int], says: str
) -> None:
    nothing = gain(0.3, -inf, inf, **counts)
    kept = judge(settings, nothing)
    expected = f"accuracy is 0.3 better than the champion's, but {says}: add held-out rows"
    assert (kept.verdict, kept.reasons) == ("keep", (expected,))
    refused = judge(settings, nothing.model_copy(update={"against": "untrained"}), has_champion=False)
    assert refused.verdict == "refuse"
    assert refused.reasons[0].endswith(f"accuracy is 0.3 better than before training, but {says}: add held-out rows")
    read_again = MetricComparison.model_validate_json(nothing.model_dump_json())
    assert not read_again.has_interval
    assert not gate.gain_passes_bar(read_again, settings)


@pytest.mark.parametrize(
    ("groups", "largest", "says"),
    [
        (8, 900, "of 8 groups, the largest of 900 rows"),
        (8, 125, "of 8 groups, the largest of 125 rows"),
        (200, 400, "of 200 groups, the largest of 400 rows"),
        (200, 50, None),
        (None, None, None),
    ],
    ids=["few and uneven", "few", "uneven", "many and even", "no groups"],
)
def test_few_groups_are_named_where_they_are_why_a_gain_is_not_shown(groups: Any, largest: Any, says: Any) -> None:
    counts = {"groups": groups, "largest_group": largest}
    (reason,) = judge(Gate(), gain(0.03, -0.2, 0.26, **counts)).reasons
    told = f"; the interval is wide because the rows are {says}: add rows of other groups"
    assert reason.endswith(told if says else "the gain's lower end must be above 0")
    (worse,) = judge(Gate(), gain(-0.03, -0.2, 0.14, **counts)).reasons
    assert worse.endswith("the gain's lower end must be above 0"), "more rows would not make it better"
    (better,) = judge(Gate(), gain(0.3, 0.2, 0.4, **counts)).reasons
    assert "wide" not in better


@pytest.mark.parametrize(
    ("settings", "low", "published"),
    [
        (Gate(), 0.001, True),
        (Gate(), 0.0, False),
        (Gate(), -0.001, False),
        (Gate(gain=0.01), 0.011, True),
        (Gate(gain=0.01), 0.01, False),
        (Gate(margin=0.01), -0.009, True),
        (Gate(margin=0.01), -0.01, False),
    ],
)
def test_lower_end_of_the_interval_must_be_above_the_bar(settings: Gate, low: float, *, published: bool) -> None:
    assert gate.gain_passes_bar(gain(0.02, low, 0.1), settings) is published
    assert judge(settings, gain(0.02, low, 0.1)).verdict == ("publish" if published else "keep")


@pytest.mark.parametrize(
    ("settings", "published"), [(Gate(), False), (Gate(gain=0.001), True), (Gate(margin=0.01), True)]
)
def test_mcnemar_p_value_counts_only_where_the_bar_is_zero(settings: Gate, *, published: bool) -> None:
    assert gate.gain_passes_bar(gain(0.02, 0.002, 0.1, p_value=0.06), settings) is published
    assert gate.gain_passes_bar(gain(0.02, 0.002, 0.1, p_value=0.04), settings)
    assert gate.gain_passes_bar(gain(0.02, 0.002, 0.1, p_value=0.06), Gate(confidence=0.9))


def test_champions_own_weights_are_kept_before_any_other_check() -> None:
    verdict = judge(Gate(floors={"accuracy": 0.99}), is_champion=True, rolled_back="it was bad")
    assert (verdict.verdict, verdict.reasons) == (
        "keep",
        ("the published model has the same weights: there is nothing to publish",),
    )


@pytest.mark.parametrize(
    ("floors", "missed"),
    [
        ({"accuracy": 0.9}, None),
        ({"accuracy": 0.95}, "accuracy 0.9 is below 0.95, the recipe's floor"),
        ({"loss": 0.4}, None),
        ({"loss": 0.3}, "loss 0.4 is above 0.3, the recipe's floor"),
    ],
)
def test_floors_follow_the_metrics_direction(floors: dict[str, float], missed: str | None) -> None:
    verdict = judge(Gate(floors=floors))
    assert verdict.verdict == ("refuse" if missed else "publish")
    assert missed is None or verdict.reasons == (missed,)


@pytest.mark.parametrize("metric", DIRECTIONS)
def test_nan_misses_every_floor(monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    monkeypatch.setitem(METRICS, metric, float("nan"))
    assert judge(Gate(floors={metric: 0.5})).verdict == "refuse"


def test_every_failure_is_reported() -> None:
    settings = Gate(floors={"accuracy": 0.95, "loss": 0.3}, slice_floors={"accuracy": 0.8})
    verdict = judge(settings, START, has_champion=False, slices=[slice_result(floor_p_value=0.001)])
    assert verdict.verdict == "refuse"
    assert len(verdict.reasons) == 3
    assert verdict.reasons[2] == ("accuracy 0.7 of language 'a' (50 rows) misses 0.8, the recipe's floor of slices")


def test_rolled_back_model_is_kept_and_a_missed_floor_refuses_it() -> None:
    verdict = judge(rolled_back="it swore")
    assert (verdict.verdict, verdict.reasons) == ("keep", ("a release of the same weights was rolled back: it swore",))
    assert judge(has_champion=False, rolled_back="it swore").verdict == "refuse", "there is no champion to keep"
    assert judge(Gate(floors={"accuracy": 0.95}), rolled_back="it swore").verdict == "refuse"


def test_a_model_that_goes_back_to_a_rolled_back_one_stays_and_is_no_first_release() -> None:
    told = "the base model, base, is v2, which was rolled back by Ada: leaked rows"
    assert judge(distrusted_ancestor=told) == ("keep", (told,))
    assert judge(None, START, distrusted_ancestor=told, has_champion=False) == ("refuse", (told,))


def test_gate_requires_a_first_release_to_beat_the_untrained_model() -> None:
    verdict = judge(None, START, has_champion=False)
    assert verdict.verdict == "publish"
    assert verdict.reasons[0] == "first release: no model is published yet"
    assert verdict.reasons[1].startswith("accuracy is 0.5 better than before training")
    none = judge(None, gain(0.5, 0.4, 0.6, against="untrained", metric="loss"), has_champion=False)
    assert (none.verdict, none.reasons) == ("publish", ("first release: no model is published yet",))
    bad = judge(None, gain(-0.1, -0.2, 0.1, against="untrained"), has_champion=False)
    assert bad.verdict == "refuse"
    assert bad.reasons[0].startswith(
        "a first release must be better than the model before training: accuracy is 0.1 worse"
    )


def test_margin_does_not_apply_to_the_untrained_model() -> None:
    no_better = gain(0.0, -0.005, 0.005, against="untrained")
    verdict = judge(Gate(margin=0.01), no_better, has_champion=False)
    assert verdict.verdict == "refuse"
    assert verdict.reasons[0].endswith("the gain's lower end must be above 0")
    assert judge(Gate(margin=0.01), gain(0.0, -0.005, 0.005), no_better).verdict == "publish"
    assert judge(Gate(gain=0.01), gain(0.02, 0.005, 0.03, against="untrained"), has_champion=False).verdict == "refuse"


def test_later_releases_need_not_beat_the_untrained_model() -> None:
    """They may start from the champion, with which they are compared anyway."""
    assert judge(None, BETTER, gain(-0.1, -0.2, 0.1, against="untrained")).verdict == "publish"


@pytest.mark.parametrize(
    ("p_values", "misses"),
    [
        ([0.001, 0.9, 0.9], [0]),
        ([0.02, 0.9, 0.9], []),  # 0.05 / 3
        ([0.016, 0.024, 0.049], [0, 1, 2]),
        ([0.016, 0.03, 0.9], [0]),  # 0.03 against 0.05 / 2
        ([None, 0.04, None], [1]),  # slices that are not judged do not count
        ([0.04] * 50, []),
    ],
)
@pytest.mark.parametrize("kind", ["floor", "margin"])
def test_slices_are_tested_with_holms_correction(kind: str, p_values: list[float | None], misses: list[int]) -> None:
    settings = Gate(slice_floors={"accuracy": 0.8}, slice_margin=0.05)
    slices = [slice_result(str(i), **{f"{kind}_p_value": p}) for i, p in enumerate(p_values)]
    verdict = judge(settings, slices=slices)
    assert verdict.verdict == ("publish" if not misses else {"floor": "refuse", "margin": "keep"}[kind])
    assert [reason.split("'")[1] for reason in verdict.reasons if "language" in reason] == [str(i) for i in misses]


def test_worse_slice_keeps_the_champion_although_the_whole_is_better() -> None:
    verdict = judge(Gate(slice_margin=0.05), slices=[slice_result(margin_p_value=0.001)])
    assert verdict.verdict == "keep"
    assert verdict.reasons[1] == "accuracy of language 'a' (50 rows) is 0.2 worse than the champion's, more than 0.05"


def test_gate_takes_a_gain_or_a_margin() -> None:
    assert (Gate().bar, Gate(gain=0.02).bar, Gate(margin=0.03).bar) == (0.0, 0.02, -0.03)
    with pytest.raises(ValueError, match=r"`gain` .* and `margin` .* exclude each other"):
        Gate(gain=0.01, margin=0.01)


OVER_ROWS = Gate(over="test_rows")


def test_error_is_shared_by_the_planned_comparisons() -> None:
    assert Gate().comparison_confidence == 0.95
    assert Gate(confidence=0.99).comparison_confidence == 0.99
    assert OVER_ROWS.comparison_confidence == pytest.approx(1 - 0.05 / 12)
    assert Gate(over="test_rows", confidence=0.9, comparisons=5).comparison_confidence == pytest.approx(0.98)
    with pytest.raises(ValueError, match=r"`comparisons` has no effect without `over: test_rows`"):
        Gate(comparisons=12)


def test_comparison_is_judged_and_described_at_its_share_of_the_error() -> None:
    one = gain(0.02, 0.002, 0.1, p_value=0.005)  # 0.05 / 12 = 0.0042
    assert gate.gain_passes_bar(one, Gate())
    assert not gate.gain_passes_bar(one, OVER_ROWS)
    assert gate.gain_passes_bar(gain(0.02, 0.002, 0.1, p_value=0.004), OVER_ROWS)
    verdict = judge(OVER_ROWS, gain(0.02, 0.002, 0.1, p_value=0.004))
    assert "(99.58% interval 0.002 to 0.1 better; McNemar p = 0.004)" in verdict.reasons[0]


def test_slices_are_tested_at_the_gates_confidence_over_test_rows_too() -> None:
    settings = Gate(over="test_rows", slice_margin=0.05)
    assert judge(settings, slices=[slice_result(margin_p_value=0.03)]).verdict == "keep"


@pytest.mark.parametrize(
    ("uses", "word", "says"),
    [
        (0.0, "publish", None),
        (7.9, "publish", None),
        (8.0, "publish", "the held-out rows are soon used up: after this comparison, 3.0 of 12 are left"),
        (11.0, "publish", "after this comparison, 0.0 of 12 are left"),
        (11.000000001, "publish", "0.0 of 12 are left"),  # a sum of rounded shares
        (11.1, "keep", "the held-out rows are used up: earlier comparisons used the held-out rows 11.1 of 12 times"),
        (40.0, "keep", "take rows that no comparison has used and no model has learned from"),
    ],
)
def test_rows_are_used_up_after_the_planned_comparisons(uses: float, word: str, says: str | None) -> None:
    use = HeldOutRowUse(uses=uses, comparisons=12)
    verdict = judge(OVER_ROWS, row_use=use)
    assert verdict.verdict == word
    found = [reason for reason in verdict.reasons if "held-out rows" in reason]
    assert [says in reason for reason in found] == ([True] if says else []), verdict.reasons
    kept = judge(OVER_ROWS, WORSE, row_use=use)
    assert kept.verdict == "keep"
    assert any("held-out rows" in reason for reason in kept.reasons) is (says is not None)


def test_first_release_is_refused_when_the_rows_are_used_up() -> None:
    verdict = judge(OVER_ROWS, START, has_champion=False, row_use=HeldOutRowUse(uses=12.0, comparisons=12))
    assert (verdict.verdict, len(verdict.reasons)) == ("refuse", 1)
    assert verdict.reasons[0].startswith("the held-out rows are used up")
    fresh = judge(OVER_ROWS, START, has_champion=False, row_use=HeldOutRowUse(uses=9.0, comparisons=12))
    assert (fresh.verdict, len(fresh.reasons)) == ("publish", 3)


def test_a_model_that_gains_on_new_rows_and_forgets_the_known_ones_is_kept() -> None:
    known = slice_result("known rows", slice_by="age", rows=400, margin_p_value=0.001)
    new = slice_result("new rows", slice_by="age", gain=0.3, gain_low=0.2, gain_high=0.4)
    verdict, reasons = judge(Gate(known_margin=0.02), BETTER, ages=(known, new))
    assert verdict == "keep"
    assert reasons[1] == (
        "accuracy of the known rows is 0.2 worse than the champion's, more than 0.02: it has forgotten what the"
        " champion knows"
    )
    by_chance = known.model_copy(update={"margin_p_value": 0.2})
    assert judge(Gate(known_margin=0.02), BETTER, ages=(by_chance, new)).verdict == "publish"


@pytest.mark.parametrize("is_champion", [True, False])
@pytest.mark.parametrize("settings", [Gate(), Gate(margin=1.0)], ids=["better", "margin"])
def test_a_start_that_no_step_has_improved_is_not_published_over_a_champion(settings: Gate, is_champion: bool) -> None:
    start = gate.BestStart("the model before training", is_champion, "macro_f1")
    verdict, reasons = judge(settings, BETTER, best_start=start)
    assert (verdict, len(reasons)) == ("keep", 1)
    assert reasons[0].startswith(
        "no step of the training was better than its start (step 0, by macro_f1 of the validation split): "
        "the candidate is the model before training, and there is nothing to publish; lower `training.learning_rate`"
    )


def test_a_start_that_no_step_has_improved_is_no_first_release() -> None:
    start = gate.BestStart("the model before training", is_champion=False, best_metric="loss")
    for comparisons in ([START], []):
        verdict, reasons = judge(None, *comparisons, has_champion=False, best_start=start)
        assert (verdict, reasons) == ("refuse", (start.sentence,))


def test_a_known_margin_that_cannot_be_judged_keeps_the_champion() -> None:
    why = "the champion's release has no profile of its rows"
    verdict, reasons = judge(Gate(known_margin=0.02), BETTER, ages_unknown=why)
    assert verdict == "keep"
    assert reasons[1].startswith(f"`known_margin` cannot be judged: {why}; leave out")
    assert judge(Gate(), BETTER, ages_unknown=why).verdict == "publish"
    new = slice_result("new rows", slice_by="age", gain=0.3, gain_low=0.2, gain_high=0.4)
    few = slice_result("known rows", slice_by="age", rows=12)
    verdict, reasons = judge(Gate(known_margin=0.02), BETTER, ages=(few, new))
    assert (verdict, "fewer than 30 known rows are compared" in reasons[1]) == ("keep", True)
    assert judge(Gate(known_margin=0.02), START, has_champion=False).verdict == "publish"
