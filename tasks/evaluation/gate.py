"""The gate: may the candidate replace the champion, that is the published model?

    refuse   no, it must not be published at all: it misses a floor, or a first release is no better than before training
    keep     no, the champion stays: the candidate was not shown to be better
    publish  yes

The verdict goes into a blessing that names the candidate, the rows, the recipe and the champion by their hashes; the
publish stage accepts it for nothing else. docs/gate.md says how often a worse model passes and how often a better one
does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from params.schema import Direction, Gate
from tasks.drift.two_sample import holm
from tasks.evaluation.report import Comparison, RowUse, SliceResult, Verdict

if TYPE_CHECKING:
    from tasks.evaluation.scoring import ScoredModels


def judge(
    gate: Gate,
    scored: ScoredModels,
    *,
    comparisons: Sequence[Comparison],
    slices: Sequence[SliceResult],
    is_champion: bool,
    rolled_back_reason: str | None,
    row_use: RowUse | None = None,
) -> Verdict:
    """Return the verdict on the candidate.

    `is_champion`: the candidate has the champion's weights, so the champion was not scored. `rolled_back_reason`: why a
    release of the same weights was rolled back, if one was. `row_use`: with `over: test_rows`, unless nothing was compared.
    """
    has_champion = is_champion or scored.champion is not None

    def verdict(word: Literal["publish", "keep", "refuse"], *reasons: str) -> Verdict:
        return Verdict(
            verdict=word,
            reasons=reasons,
            metric=scored.metric,
            first_release=not has_champion,
            confidence=gate.comparison_confidence,
            row_use=row_use,
        )

    if is_champion:
        return verdict("keep", "the published model has the same weights: there is nothing to publish")
    deciding = {one.against: one for one in comparisons if one.metric == scored.metric}
    start = deciding.get("untrained")
    failures = [
        *_missed_floors(gate, scored.directions, scored.model.metrics),
        *_missed_slice_floors(gate, slices),
    ]
    if not has_champion and start and not passes(start, gate):
        failures.append(f"a first release must be better than the model before training: {describe(start, gate)}")
    used_up = [_used_up(row_use)] if row_use and row_use.is_up else []
    if not has_champion:
        failures += used_up
    if failures:
        return verdict("refuse", *failures)
    kept = [f"a release of the same weights was rolled back: {rolled_back_reason}"] if rolled_back_reason else used_up
    if kept:
        return verdict("keep", *kept)
    warning = [_nearly_used_up(row_use)] if row_use and row_use.left <= row_use.comparisons / 4 + 1 else []
    if not has_champion:
        better = [describe(start, gate)] if start else []
        return verdict("publish", "first release: no model is published yet", *better, *warning)
    champion = deciding["champion"]
    fallen = list(_fallen_slices(gate, slices))
    if not passes(champion, gate) or fallen:
        return verdict("keep", describe(champion, gate), *fallen, *warning)
    return verdict("publish", describe(champion, gate), *warning)


def passes(comparison: Comparison, gate: Gate) -> bool:
    """Whether the gain's interval is above the bar; with a bar of 0, McNemar's test must reject equality as well."""
    bar = _bar(comparison, gate)
    may_be_equal = bar == 0 and comparison.p_value is not None and comparison.p_value > 1 - gate.comparison_confidence
    return comparison.low > bar and not may_be_equal


def describe(comparison: Comparison, gate: Gate) -> str:
    """A comparison as a sentence, with what the gate demands if it does not pass."""
    text = comparison.sentence(gate.comparison_confidence)
    if passes(comparison, gate):
        return text
    if not comparison.has_interval:
        return f"{text}: add held-out rows"
    if too_few := comparison.too_few(gate.comparison_confidence):
        return f"{text}; {too_few}: add held-out rows"
    bar = _bar(comparison, gate)
    demand = f"above {bar:.4g}" if bar >= 0 else f"no more than {-bar:.4g} worse"
    return f"{text}; the gain's lower end must be {demand}"


_NEW_ROWS = "rows that no comparison has used and no model has learned from (docs/gate.md)"


def _used_up(use: RowUse) -> str:
    return f"the held-out rows are used up: {use.sentence()}, and this one could not pass; take {_NEW_ROWS}"


def _nearly_used_up(use: RowUse) -> str:
    left = max(use.left - 1, 0.0)
    return f"the held-out rows are soon used up: after this comparison, {left:.1f} of {use.comparisons} are left; take {_NEW_ROWS}"


def _bar(comparison: Comparison, gate: Gate) -> float:
    """The bar, which a `margin` lowers for the champion only: a model no better than before training learned nothing."""
    return max(gate.bar, 0.0) if comparison.against == "untrained" else gate.bar


def _missed_floors(gate: Gate, directions: Mapping[str, Direction], metrics: Mapping[str, float]) -> Iterator[str]:
    for metric, floor in gate.floors.items():
        value = metrics[metric]
        if not (value >= floor if directions[metric] == "max" else value <= floor):  # NaN reaches none
            side = "below" if directions[metric] == "max" else "above"
            yield f"{metric} {value:.4g} is {side} {floor:.4g}, the recipe's floor"


def _missed_slice_floors(gate: Gate, slices: Sequence[SliceResult]) -> Iterator[str]:
    tested = [(one, one.floor_p_value) for one in slices if one.floor_p_value is not None]
    for (one, _), misses in zip(tested, holm([p for _, p in tested], 1 - gate.confidence), strict=True):
        if misses:
            floor = gate.slice_floors[one.metric]
            yield f"{one.metric} {one.value:.4g} of {_name(one)} misses {floor:.4g}, the recipe's floor of slices"


def _fallen_slices(gate: Gate, slices: Sequence[SliceResult]) -> Iterator[str]:
    tested = [(one, one.margin_p_value) for one in slices if one.margin_p_value is not None]
    for (one, _), falls in zip(tested, holm([p for _, p in tested], 1 - gate.confidence), strict=True):
        if falls and one.gain is not None:
            worse = f"{one.metric} of {_name(one)} is {-one.gain:.4g} worse than the champion's"
            yield f"{worse}, more than {gate.slice_margin:.4g}"


def _name(one: SliceResult) -> str:
    return f"{one.slice_by} {one.slice!r} ({one.rows} rows)"
