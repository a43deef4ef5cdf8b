"""From the scores of models to the details of an evaluation: intervals, gains on the same rows, slices, the worst rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from params import DataError, RecipeError
from params.importing import import_with_arguments
from params.sections.evaluation import SliceBy
from tasks.evaluation import report
from tasks.evaluation.heavy_rows import find_heavy_rows
from tasks.evaluation.plan import EvaluationPlan
from tasks.evaluation.scoring import RowScores, ScoredModel, align_to_common_rows
from tasks.evaluation.statistics import Gain
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.lazy_imports import NDArray
from trainer.objectives.bases.metrics.metric import names_where

_Slice = tuple[str, str, "NDArray[np.int64]", float | None]
"""By what the rows are sliced, the name of the slice, the positions of its rows, and by how much it may be worse."""
_MAX_TEXT = 2000
"""Characters that a report keeps of a row's text."""
_MAX_SLICES = 1000
"""Most slices of one column or function. Columns with more mostly hold free text or numbers."""


@dataclass(frozen=True)
class EvaluationAnalysis:
    """What follows from the scores of the models of a plan, by name."""

    plan: EvaluationPlan
    scored: Mapping[str, ScoredModel]

    def details(self) -> report.EvaluationDetails:
        """Return what the report shows beside the metrics, without what measurements find.

        Raises:
            RecipeError: the gate names a metric that does not exist, or a slice cannot be formed.
        """
        self._check_gate()
        resampler = self.plan.resampler
        models = {name: one.scores for name, one in self.scored.items() if name != "compared"}
        return report.EvaluationDetails(
            confidence=resampler.confidence,
            resamples=resampler.resamples,
            directions=dict(self.plan.directions),
            intervals={name: self._intervals(one) for name, one in models.items()},
            comparisons=list(self._comparisons()),
            slices=list(self._slices()),
            documents=len(self.plan.documents),
            own_slices=list(self._own_slices()),
            copies=self.plan.copies,
            learned_rows=len(self.plan.learned.get("champion", ())),
            learned_by_candidate=self.plan.learned_by_candidate,
        )

    def compare_with_other_rows(self, other: RowScores) -> report.MetricComparison | None:
        """Compare the candidate in the metric that decides with itself, scored with the inputs of other rows."""
        own, other = align_to_common_rows(self.scored["model"].scores, other, np.zeros(0, np.int64))
        return next((one for one in self._compare(own, other, "other_rows") if one.metric == self.plan.metric), None)

    def _check_gate(self) -> None:
        """Check the gate's metrics; which ones exist, and which have intervals, is known only after scoring."""
        settings, model = self.plan.settings.gate, self.scored["model"]
        with_intervals = self.plan.resampler.metrics(model.scores)
        metrics = self.plan.resampler.objective.metrics
        instead = {name: metric.on_slices for name, metric in metrics.items() if metric.on_slices}
        for key, name, among in (
            ("metric", self.plan.metric, with_intervals),
            *(("floors", name, model.metrics) for name in settings.floors),
            *(("slice_floors", name, with_intervals.keys() - instead) for name in settings.slice_floors),
        ):
            if name not in among:
                what, fix = f"unknown metric {name}", f"use one of {', '.join(sorted(among))}"
                if name in with_intervals:
                    what, fix = f"a slice has no {name}: it needs the rows of all labels", f"use {instead[name]}"
                raise RecipeError(f"evaluation.gate.{key}", what, fix)

    def _intervals(self, scores: RowScores) -> dict[str, report.ConfidenceInterval]:
        ends = self.plan.resampler.intervals(scores)
        return {metric: report.ConfidenceInterval(low=low, high=high) for metric, (low, high) in ends.items()}

    def _gains(self, own: RowScores, other: RowScores, *, against: report.Opponent) -> dict[str, Gain]:
        """Gains on the same rows, in the metrics that can be compared."""
        gains = self.plan.resampler.gains(own, other, self.plan.directions)
        return {name: one for name, one in gains.items() if against != "champion" or self.plan.can_compare(name)}

    def common(self, *, written: bool) -> tuple[RowScores, RowScores] | None:
        """The scores of candidate and champion on the rows that both read as a whole and neither has learned from, if any.

        With `written`, only of the rows whose text both tokenizers give back.
        """
        if "champion" not in self.scored:
            return None
        own = self.scored.get("compared", self.scored["model"])
        skipped = self.plan.text.skipped(written=written)
        found = align_to_common_rows(own.scores, self.scored["champion"].scores, skipped)
        return found if len(found[0]) else None

    def _comparisons(self) -> Iterator[report.MetricComparison]:
        text, restated = self.plan.text, names_where(self.plan.resampler.objective.metrics, "restated")
        if "untrained" in self.scored:
            yield from self._compare(self.scored["model"].scores, self.scored["untrained"].scores, "untrained")
        if not len(text.unwritten):
            restated = frozenset()
        for written in (False, True):
            if (not written or any(map(self.plan.can_compare, restated))) and (common := self.common(written=written)):
                found = self._compare(*common, "champion", len(text.skipped(written=written)))
                yield from (one for one in found if (one.metric in restated) == written)

    def _compare(
        self, own: RowScores, other: RowScores, against: report.Opponent, left_out: int = 0
    ) -> Iterator[report.MetricComparison]:
        """Compare two models on the same rows, from which so many rows are left out."""
        sizes = None if own.groups is None else np.unique(own.groups, return_counts=True)[1]
        objective = self.plan.resampler.objective
        for metric, gain in self._gains(own, other, against=against).items():
            yield report.MetricComparison(
                against=against,
                metric=metric,
                gain=gain.value,
                low=gain.low,
                high=gain.high,
                p_value=gain.p_value,
                rows=len(own),
                left_out=left_out,
                learned=len(self.plan.learned[against]),
                learned_by_candidate=self.plan.learned_by_candidate,
                groups=None if sizes is None else len(sizes),
                largest_group=None if sizes is None else int(sizes.max()),
                heavy=find_heavy_rows(objective.metrics[metric].row_weights(own.columns), own),
                counted=gain.observations,
            )

    def _slices(self) -> Iterator[report.SliceResult]:
        settings, ids = self.plan.settings, self.scored["model"].scores.row_ids
        found = find_slice_positions(self.plan.rows, settings.slices, ids)
        margin = settings.gate.slice_margin
        each = ((title, name, at, margin) for title, slices in found for name, at in slices.items())
        return self._of_slices(each, {self.plan.metric, *settings.gate.slice_floors})

    def _own_slices(self) -> Iterator[report.SliceResult]:
        """The metric that decides, by what the objective shows it by; the gate does not look there."""
        objective, ids = self.plan.resampler.objective, self.scored["model"].scores.row_ids
        found = ((title, name_positions(self.plan.rows, name, ids)) for title, name in objective.own_slices().items())
        in_order = (
            (title, sorted(parts.items(), key=lambda part: (int(part[0].split()[0]), part[0])))
            for title, parts in found
        )
        return self.deciding_of_slices((title, name, at, None) for title, parts in in_order for name, at in parts)

    def deciding_of_slices(self, found: Iterable[_Slice]) -> Iterator[report.SliceResult]:
        """The metric that decides, without those that have only a floor."""
        floors = self.plan.settings.gate.slice_floors.keys() - {self.plan.metric}
        return (one for one in self._of_slices(found, {self.plan.metric}) if one.metric not in floors)

    def _of_slices(self, found: Iterable[_Slice], metrics: Collection[str]) -> Iterator[report.SliceResult]:
        own = self.scored["model"].scores
        restated = names_where(self.plan.resampler.objective.metrics, "restated")
        common = self.common(written=not restated.isdisjoint(metrics))
        for slice_by, name, positions, margin in found:
            inside = own.take(positions)
            both = common and [one.take(np.isin(one.row_ids, inside.row_ids)) for one in common]
            yield from self._slice(slice_by, name, inside, both if both and len(both[0]) else None, margin)

    def _slice(
        self, slice_by: str, name: str, own: RowScores, both: Sequence[RowScores] | None, margin: float | None
    ) -> Iterator[report.SliceResult]:
        """The results of one slice in the metric that decides, or what slices have instead, and in those with a floor.

        Floors are about all rows of the candidate, gains over the champion about those that count for `both`.
        """
        settings, resampler, directions = self.plan.settings.gate, self.plan.resampler, self.plan.directions
        objective = resampler.objective
        is_judged = own.observations >= settings.min_slice_rows
        is_compared = is_judged and both is not None and both[0].observations >= settings.min_slice_rows
        value, other = resampler.metrics(own), resampler.metrics(both[1]) if both else {}
        intervals = self._intervals(own) if is_judged else {}
        gains = self._gains(both[0], both[1], against="champion") if is_compared and both else {}
        floor_p_values = resampler.floor_p_values(own, settings.slice_floors, directions) if is_judged else {}
        deciding = objective.metrics[self.plan.metric].on_slices or self.plan.metric
        sums = objective.sums(resampler.totals(own), resampler.state)
        for metric in dict.fromkeys((deciding, *settings.slice_floors)):
            exists = objective.metrics[metric].is_defined(sums)
            interval, gain = (intervals.get(metric), gains.get(metric)) if exists else (None, None)
            is_known = exists and metric in other and self.plan.can_compare(metric)
            yield report.SliceResult(
                slice_by=slice_by,
                slice=name,
                rows=len(own),
                metric=metric,
                value=value[metric] if exists else nan,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                champion=other[metric] if is_known else None,
                compared_rows=len(both[0]) if both and is_known and len(both[0]) != len(own) else None,
                gain=gain.value if gain else None,
                gain_low=gain.low if gain else None,
                gain_high=gain.high if gain else None,
                floor_p_value=floor_p_values.get(metric) if exists else None,
                margin_p_value=gain.at_most(-margin) if gain and metric == deciding and margin is not None else None,
            )

    def texts(self, row_ids: Sequence[int]) -> list[str]:
        """Return the texts of some rows, shortened."""
        return read_shortened_texts(self.plan.rows, row_ids, self.plan.resampler.objective.text)

    def notes(self, scores: RowScores, position: int) -> dict[str, str]:
        """Return what the scores of a row say, such as its prediction."""
        return self.plan.resampler.objective.describe_scores(scores.row(position), self.plan.resampler.state)


def find_slice_positions(
    rows: SplitRows, slices: Sequence[SliceBy], row_ids: NDArray[np.int64]
) -> Iterator[tuple[str, dict[str, NDArray[np.int64]]]]:
    """Yield the name of each column or function to slice by, with the positions in `row_ids` of each slice's rows.

    The largest slices come first. `row_ids` (N,) ascend; other rows are ignored.

    Raises:
        RecipeError: there is no such column, it has too many values, or the function fails.
    """
    for i, slice_by in enumerate(slices):
        where = f"evaluation.slices.{i}"
        name_slice = _slice_name_function(slice_by, where)
        if slice_by.column is not None and slice_by.column not in rows.schema.names:
            what = f"the rows have no column `{slice_by.column}`"
            raise RecipeError(where, what, f"use one of {', '.join(rows.schema.names)}")
        positions = name_positions(rows, name_slice, row_ids)
        if len(positions) > _MAX_SLICES:
            what = f"{slice_by.title} gives {len(positions)} slices, more than the limit of {_MAX_SLICES}"
            raise RecipeError(where, what, "slice by a function that returns fewer names")
        largest_first = sorted(positions.items(), key=lambda item: (-len(item[1]), item[0]))
        yield slice_by.title, dict(largest_first)


def name_positions(
    rows: SplitRows, name_row: Callable[[Mapping[str, Any]], str], row_ids: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Return the positions in `row_ids` of the rows that a function gives each name. `row_ids` (N,) ascend; other rows are ignored."""
    positions: dict[str, list[int]] = {}
    for row in rows.rows():
        position = int(np.searchsorted(row_ids, row[ROW_ID]))
        if position < len(row_ids) and row_ids[position] == row[ROW_ID]:
            positions.setdefault(name_row(row), []).append(position)
    return {name: np.array(found) for name, found in positions.items()}


def _slice_name_function(slice_by: SliceBy, where: str) -> Callable[[Mapping[str, Any]], str]:
    function = import_with_arguments(slice_by.function, f"{where}.function", 1) if slice_by.function else None

    def name_slice(row: Mapping[str, Any]) -> str:
        if function is None:
            return str(row[str(slice_by.column)]).strip()
        try:
            return str(function(row))
        except Exception as error:
            what = f"raised {type(error).__name__} for row_id {row['row_id']}: {error}"
            raise RecipeError(f"{where}.function", what, "fix the function") from error

    return name_slice


def read_shortened_texts(
    rows: SplitRows, row_ids: Sequence[int], text: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """Return the texts of some rows, shortened.

    Raises:
        DataError: a row is missing.
    """
    found = {row[ROW_ID]: text(row)[:_MAX_TEXT] for row in rows.pick(row_ids)}
    if missing := set(row_ids) - found.keys():
        what = f"has no row with row_id {min(missing)}"
        raise DataError(str(rows.folder), what, "run the stages from validate on again")
    return [found[row_id] for row_id in row_ids]
