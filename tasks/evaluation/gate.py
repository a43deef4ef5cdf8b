"""The gate: may the candidate replace the champion, that is the published model?

    refuse   no, it must not be published at all: it misses a floor or what a measurement demands, or a first release is no better than before training
    keep     no, the champion stays: the candidate was not shown to be better, or is what the training started from
    publish  yes

The verdict goes into a blessing that names the candidate, the rows, the recipe and the champion by their hashes; the
publish stage accepts it for nothing else. docs/gate.md says how often a worse model passes and how often a better one
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from params.sections.base import Direction
from params.sections.evaluation import Gate
from tasks.evaluation import report
from tasks.measurement import list_measurements
from tasks.multiple_tests import holm_rejections
from tasks.release_log.events import Verdict

_NEW_ROWS: Final = "take rows that no comparison has used and no model has learned from (docs/gate.md)"


@dataclass(frozen=True)
class BestStart:
    """The start of a training of which no step was better: the candidate is a model that has learned nothing in it."""

    name: str
    """What the training started from: `the published model v3`, `the model before training`."""
    is_champion: bool
    best_metric: str
    """The metric of the validation split by which weights are kept."""

    @property
    def sentence(self) -> str:
        """Why it is not published, and what to change."""
        found = (
            f"no step of the training was better than its start (step 0, by {self.best_metric} of the validation split)"
        )
        what = f"the candidate is {self.name}, and there is nothing to publish"
        fix = "lower `training.learning_rate`, train longer (`training.epochs` or `training.max_steps`)"
        return f"{found}: {what}; {fix}, or choose another `training.best_metric`"


@dataclass(frozen=True)
class JudgedModel:
    """What the gate knows of a candidate, beside the details of its evaluation."""

    metric: str
    """The metric that decides."""
    metrics: Mapping[str, float]
    """The values of all metrics."""
    has_champion: bool = False
    """Whether a champion was scored beside it."""
    is_champion: bool = False
    """Whether it has the champion's weights, which were not scored again."""
    rolled_back: str | None = None
    """Who rolled back from a release of the same weights, and why."""
    distrusted_ancestor: str | None = None
    """Which release that it goes back to was rolled back."""
    best_start: BestStart | None = None
    """What it is if no step of the training was better than its start."""
    row_use: report.HeldOutRowUse | None = None
    """With `over: test_rows`: how often the held-out rows were used."""


def judge_candidate(gate: Gate, candidate: JudgedModel, details: report.EvaluationDetails) -> tuple[Verdict, list[str]]:
    if candidate.is_champion:
        return "keep", ["the published model has the same weights: there is nothing to publish"]
    if start := candidate.best_start:
        return "keep" if candidate.has_champion or start.is_champion else "refuse", [start.sentence]
    deciding = {one.against: one for one in details.comparisons if one.metric == candidate.metric}
    if candidate.has_champion:
        return _judge_against_champion(gate, candidate, details, deciding.get("champion"))
    return _judge_first_release(gate, candidate, details, deciding.get("untrained"))


def _judge_against_champion(
    gate: Gate, candidate: JudgedModel, details: report.EvaluationDetails, champion: report.MetricComparison | None
) -> tuple[Verdict, list[str]]:
    if failures := [*_missed_requirements(gate, candidate, details)]:
        return "refuse", failures
    if barred := _why_barred(candidate):
        return "keep", barred
    is_better, reasons = _compare_with_champion(gate, details, champion)
    return "publish" if is_better else "keep", [*reasons, *_warn_of_row_use(candidate.row_use)]


def _judge_first_release(
    gate: Gate, candidate: JudgedModel, details: report.EvaluationDetails, untrained: report.MetricComparison | None
) -> tuple[Verdict, list[str]]:
    failures = [
        *_missed_requirements(gate, candidate, details),
        *_failures_of_first_release(gate, details, untrained),
        *_why_barred(candidate),
    ]
    if failures:
        return "refuse", failures
    better = [comparison_sentence(untrained, gate)] if untrained else []
    warning = _warn_of_row_use(candidate.row_use)
    return "publish", ["first release: no model is published yet", *better, *warning]


def _missed_requirements(gate: Gate, candidate: JudgedModel, details: report.EvaluationDetails) -> Iterator[str]:
    """What every release must reach, whatever is published."""
    yield from _missed_floors(gate, details.directions, candidate.metrics)
    yield from _missed_slice_floors(gate, details.slices)
    for one in list_measurements():
        yield from one.refusals(details.findings(one.kind), gate)


def _failures_of_first_release(
    gate: Gate, details: report.EvaluationDetails, untrained: report.MetricComparison | None
) -> Iterator[str]:
    if untrained and not gain_passes_bar(untrained, gate):
        told = comparison_sentence(untrained, gate)
        yield f"a first release must be better than the model before training: {told}"
    for one in list_measurements():
        yield from one.refusals_of_first_release(details.findings(one.kind), gate)


def _why_barred(candidate: JudgedModel) -> list[str]:
    """Return why it is not published, however good it is: the first reason of several; empty if there is none."""
    if candidate.rolled_back:
        return [f"a release of the same weights was rolled back: {candidate.rolled_back}"]
    if candidate.distrusted_ancestor:
        return [candidate.distrusted_ancestor]
    use = candidate.row_use
    if use and use.is_up:
        return [f"the held-out rows are used up: {use.sentence()}, and this one could not pass; {_NEW_ROWS}"]
    return []


def _warn_of_row_use(use: report.HeldOutRowUse | None) -> list[str]:
    if use is None or use.left > use.comparisons / 4 + 1:
        return []
    left = f"after this comparison, {max(use.left - 1, 0.0):.1f} of {use.comparisons} are left"
    return [f"the held-out rows are soon used up: {left}; {_NEW_ROWS}"]


def _compare_with_champion(
    gate: Gate, details: report.EvaluationDetails, champion: report.MetricComparison | None
) -> tuple[bool, list[str]]:
    if champion is None:
        who = "one of the two" if details.learned_by_candidate else "the champion"
        what = f"nothing can be compared: {who} has learned from {details.learned_rows} held-out rows, and no others are left"
        return False, [f"{what}; add newer rows, or keep the seed and the split of the rows"]
    fallen = [f"{told}, more than {gate.slice_margin:.4g}" for told in fallen_slices(gate, details.slices, _name)]
    for one in list_measurements():
        fallen += one.losses(details.findings(one.kind), gate)
    return gain_passes_bar(champion, gate) and not fallen, [comparison_sentence(champion, gate), *fallen]


def gain_passes_bar(comparison: report.MetricComparison, gate: Gate) -> bool:
    """Whether the gain's interval is above the bar; with a bar of 0, McNemar's test must reject equality as well."""
    bar = _bar(comparison, gate)
    may_be_equal = bar == 0 and comparison.p_value is not None and comparison.p_value > 1 - gate.comparison_confidence
    return comparison.low > bar and not may_be_equal


def comparison_sentence(comparison: report.MetricComparison, gate: Gate) -> str:
    """A comparison as a sentence, with what the gate demands if it does not pass."""
    text = comparison.sentence(gate.comparison_confidence)
    if gain_passes_bar(comparison, gate):
        return text if comparison.low >= 0 else f"{text}, which the margin of {gate.margin} allows"
    if not comparison.has_interval:
        return f"{text}: add held-out rows"
    if too_few := comparison.too_few(gate.comparison_confidence):
        return f"{text}; {too_few}: add held-out rows"
    bar = _bar(comparison, gate)
    demand = f"above {bar:.4g}" if bar >= 0 else f"no more than {-bar:.4g} worse"
    text += f"; the gain's lower end must be {demand}"
    if comparison.gain > bar and comparison.few_groups:
        text += f"; {comparison.few_groups}: add rows of other groups"
    if comparison.heavy_rows:
        text += f"; {comparison.heavy_rows}: look at these, add rows, or cut long ones"
    return text


def _bar(comparison: report.MetricComparison, gate: Gate) -> float:
    """The bar, which a `margin` lowers for the champion only: a model no better than before training learned nothing.

    One that answers other rows as well as its own knows nothing of them; how much more it must know nobody can say.
    """
    bars = {"champion": gate.bar, "untrained": max(gate.bar, 0.0), "other_rows": 0.0}
    return bars[comparison.against]


def _missed_floors(gate: Gate, directions: Mapping[str, Direction], metrics: Mapping[str, float]) -> Iterator[str]:
    for metric, floor in gate.floors.items():
        value = metrics[metric]
        if not (value >= floor if directions[metric] == "max" else value <= floor):  # NaN reaches none
            side = "below" if directions[metric] == "max" else "above"
            yield f"{metric} {value:.4g} is {side} {floor:.4g}, the recipe's floor"


def _missed_slice_floors(gate: Gate, slices: Sequence[report.SliceResult]) -> Iterator[str]:
    for one in _rejected(slices, [one.floor_p_value for one in slices], gate):
        floor = gate.slice_floors[one.metric]
        yield f"{one.metric} {one.value:.4g} of {_name(one)} misses {floor:.4g}, the recipe's floor of slices"


def fallen_slices(
    gate: Gate, slices: Sequence[report.SliceResult], name: Callable[[report.SliceResult], str]
) -> Iterator[str]:
    """Yield which slices are worse than the champion's by more than their margin, and by more than chance explains."""
    for one in _rejected(slices, [one.margin_p_value for one in slices], gate):
        if one.gain is not None:
            yield f"{one.metric} of {name(one)} is {-one.gain:.4g} worse than the champion's"


def _rejected(
    slices: Sequence[report.SliceResult], p_values: Sequence[float | None], gate: Gate
) -> Iterator[report.SliceResult]:
    """The slices that Holm's method rejects, of those that have a p-value."""
    tested = [(one, p_value) for one, p_value in zip(slices, p_values, strict=True) if p_value is not None]
    rejected = holm_rejections([p_value for _, p_value in tested], 1 - gate.confidence)
    return (one for (one, _), is_rejected in zip(tested, rejected, strict=True) if is_rejected)


def _name(one: report.SliceResult) -> str:
    return f"{one.slice_by} {one.slice!r} ({one.rows} rows)"
