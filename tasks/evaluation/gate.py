"""The gate: may this model take the place of the one that is published?

    refuse   it may not be published at all: a floor is missed, or as a first release it is no better than its start
    keep     it may, but was not shown to be better than the champion, which stays
    publish  it may

The verdict goes into a blessing that names the model, the rows, the recipe and the champion by their hashes; the publish
stage takes no other's. docs/gate.md says how often a worse model passes, and how often a better one does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from params.schema import Direction, Gate
from tasks.evaluation.statistics import holm
from tasks.stages import Report

_TINY = 1e-12
"""A probability below which its size says nothing any more."""


class Champion(Report):
    """The model that is published now."""

    endpoint: str
    """Address of its Hub, or `local`."""
    repo_id: str
    commit: str
    tag: str | None
    """Of the release, if the commit has one."""
    weights: str
    """Digest of its weights."""


class Comparison(Report):
    """A metric of the model, beside that of another on the same rows."""

    against: Literal["champion", "untrained"]
    metric: str
    gain: float
    """How much better the model is, whatever the metric's direction; negative if it is worse."""
    low: float
    """Lower end of the gain's interval."""
    high: float
    p_value: float | None
    """Of McNemar's test, where the metric is a share of rows."""
    rows: int


class Part(Report):
    """A metric of one part of the rows."""

    division: str
    """The column or function that divides the rows."""
    part: str
    rows: int
    metric: str
    value: float
    low: float | None
    """Ends of the interval; None for a part with too few rows to be judged."""
    high: float | None
    champion: float | None
    gain: float | None
    """How much better than the champion."""
    gain_low: float | None
    gain_high: float | None
    below_floor: float | None
    """Probability of a value so far from the floor, if the model were just at it."""
    below_margin: float | None
    """Probability of so great a fall, if it were just the margin."""


class Verdict(Report):
    """Whether a model may be published, and why."""

    verdict: Literal["publish", "keep", "refuse"]
    reasons: tuple[str, ...]
    metric: str
    """The one that decides."""
    first_release: bool
    """No model was published before."""


class Blessing(Verdict):
    """A verdict, and what it is about."""

    saved_as: ClassVar[str] = "blessing"
    model: str
    """Digest of the model's weights."""
    data: str
    """Digest of the validated rows."""
    recipe: str
    """Digest of the recipe's sections that the evaluation depends on."""
    champion: Champion | None


def judge(
    gate: Gate,
    *,
    metric: str,
    directions: Mapping[str, Direction],
    figures: Mapping[str, float],
    comparisons: list[Comparison],
    parts: list[Part],
    has_champion: bool,
    is_champion: bool,
    rolled_back_reason: str | None,
) -> Verdict:
    """Decide.

    Args:
        gate: what the recipe asks for.
        metric: the metric that decides.
        directions: whether the smallest or the largest is best, for every metric.
        figures: of the model.
        comparisons: with the champion and the start model.
        parts: of the rows.
        has_champion: whether a model is published.
        is_champion: whether it is this very model.
        rolled_back_reason: why this very model was taken back after it had been released; None if it was not.
    """

    def verdict(said: Literal["publish", "keep", "refuse"], *reasons: str) -> Verdict:
        return Verdict(verdict=said, reasons=reasons, metric=metric, first_release=not has_champion)

    if is_champion:
        return verdict("keep", "the published model has the same weights: there is nothing to publish")
    against = {(c.against, c.metric): c for c in comparisons}
    refused = [*_missed_floors(gate, directions, figures), *_missed_slice_floors(gate, parts)]
    start = against.get(("untrained", metric))
    if not has_champion and start and not passes(start, gate):
        refused.append(f"a first release must be better than the model before training: {describe(start, gate)}")
    if refused:
        return verdict("refuse", *refused)
    if rolled_back_reason:
        return verdict("keep", f"this very model was released before, and taken back: {rolled_back_reason}")
    if not has_champion:
        better = [describe(start, gate)] if start else []
        return verdict("publish", "first release: no model is published yet", *better)
    champion = against["champion", metric]
    fallen = list(_fallen_slices(gate, parts))
    if not passes(champion, gate) or fallen:
        return verdict("keep", describe(champion, gate), *fallen)
    return verdict("publish", describe(champion, gate))


def passes(comparison: Comparison, gate: Gate) -> bool:
    """Whether the gain is above the bar, beyond chance; an equal share of right rows is also tested exactly."""
    bar = _bar(comparison, gate)
    by_chance = bar == 0 and comparison.p_value is not None and comparison.p_value > 1 - gate.confidence
    return comparison.low > bar and not by_chance


def describe(comparison: Comparison, gate: Gate) -> str:
    """A comparison in words, for example `accuracy is 0.031 worse than the champion's (95% interval 0.022 to 0.041 worse)`."""
    other = "the champion's" if comparison.against == "champion" else "before training"
    side = "better" if comparison.gain >= 0 else "worse"
    sign = 1 if comparison.gain >= 0 else -1
    low, high = sorted((sign * comparison.low, sign * comparison.high))
    text = f"{comparison.metric} is {abs(comparison.gain):.4g} {side} than {other}"
    text += f" ({gate.confidence:.0%} interval {low:.4g} to {high:.4g} {side}"
    p_value = comparison.p_value
    text += ")" if p_value is None else f"; McNemar p = {p_value:.2g})" if p_value > _TINY else "; McNemar p < 1e-12)"
    if passes(comparison, gate):
        return text
    bar = _bar(comparison, gate)
    wanted = f"above {bar:.4g}" if bar >= 0 else f"no more than {-bar:.4g} worse"
    return f"{text}; the gain's lower end must be {wanted}"


def _bar(comparison: Comparison, gate: Gate) -> float:
    """A `margin` is one to the champion: a model that is no better than before training has learned nothing."""
    return max(gate.bar, 0.0) if comparison.against == "untrained" else gate.bar


def _missed_floors(gate: Gate, directions: Mapping[str, Direction], figures: Mapping[str, float]) -> Iterator[str]:
    for metric, floor in gate.floors.items():
        value = figures[metric]
        if value < floor if directions[metric] == "max" else value > floor:
            side = "below" if directions[metric] == "max" else "above"
            yield f"{metric} {value:.4g} is {side} {floor:.4g}, the recipe's floor"


def _missed_slice_floors(gate: Gate, parts: list[Part]) -> Iterator[str]:
    tested = [(part, part.below_floor) for part in parts if part.below_floor is not None]
    for (part, _), misses in zip(tested, holm([p for _, p in tested], 1 - gate.confidence), strict=True):
        if misses:
            floor = gate.slice_floors[part.metric]
            yield f"{part.metric} {part.value:.4g} of {_name(part)} misses {floor:.4g}, the recipe's floor of slices"


def _fallen_slices(gate: Gate, parts: list[Part]) -> Iterator[str]:
    tested = [(part, part.below_margin) for part in parts if part.below_margin is not None]
    for (part, _), falls in zip(tested, holm([p for _, p in tested], 1 - gate.confidence), strict=True):
        if falls and part.gain is not None:
            worse = f"{part.metric} of {_name(part)} is {-part.gain:.4g} worse than the champion's"
            yield f"{worse}, more than {gate.slice_margin:.4g}"


def _name(part: Part) -> str:
    return f"{part.division} {part.part!r} ({part.rows} rows)"
