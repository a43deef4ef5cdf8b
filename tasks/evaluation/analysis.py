"""From the scores of models to the details of an evaluation: intervals, gains on the same rows, slices, the worst rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from params import RecipeError
from params.schema import Evaluation
from tasks.evaluation.report import ChangedRow, Comparison, Details, Interval, Opponent, SliceResult, WorstRow
from tasks.evaluation.scoring import ScoredModels, Scores
from tasks.evaluation.slices import read_texts, slice_positions
from tasks.evaluation.statistics import Gain, Resampler
from tasks.shards.split_rows import SplitRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.objectives.bases.objective import Objective, ObjectiveState

_MAX_TEXT = 2000
"""Characters that a report keeps of a row's text."""


@dataclass(frozen=True)
class ModelAnalyzer:
    """Analyses the models that were scored."""

    objective: Objective[Any]
    state: ObjectiveState
    evaluation: Evaluation
    rows: SplitRows
    resampler: Resampler
    scored: ScoredModels

    def details(self) -> Details:
        """Return everything that the report shows beside the metrics.

        Raises:
            RecipeError: the gate names a metric that does not exist, or a slice cannot be formed.
        """
        self._check_gate()
        settings, scores = self.evaluation.gate, self.scored.model.scores
        return Details(
            confidence=settings.comparison_confidence,
            resamples=settings.resamples,
            directions=dict(self.scored.directions),
            intervals={name: self._intervals(one.scores) for name, one in self.scored},
            comparisons=list(self._comparisons()),
            slices=list(self._slices()),
            worst=self._worst(scores),
            changed=self._changed(),
            calibration=self.objective.calibration_bins(self.resampler.totals(scores), self.state) or None,
            champion_confidence=self.scored.confidence,
        )

    def _check_gate(self) -> None:
        """Check the gate's metrics; which ones exist, and which have intervals, is known only after scoring."""
        settings, scored = self.evaluation.gate, self.scored
        known, with_intervals = scored.model.metrics, self.resampler.metrics(scored.model.scores)
        instead = self.objective.slice_metrics
        for key, name, among in (
            ("metric", scored.metric, with_intervals),
            *(("floors", name, known) for name in settings.floors),
            *(("slice_floors", name, with_intervals.keys() - instead) for name in settings.slice_floors),
        ):
            if name not in among:
                what, fix = f"unknown metric {name}", f"use one of {', '.join(sorted(among))}"
                if name in with_intervals:
                    what, fix = f"a slice has no {name}: it needs the rows of all labels", f"use {instead[name]}"
                raise RecipeError(f"evaluation.gate.{key}", what, fix)

    def _intervals(self, scores: Scores) -> dict[str, Interval]:
        (resampled,) = self.resampler.resample([scores])
        return {metric: self._interval(values, scores.observations) for metric, values in resampled.items()}

    def _interval(self, resampled: NDArray[np.float64], observations: int) -> Interval:
        low, high = self.resampler.interval(resampled, observations)
        return Interval(low=low, high=high)

    def _gains(self, own: Scores, other: Scores, *, against: Opponent) -> dict[str, Gain]:
        """Gains on the same rows, in the metrics that can be compared."""
        (gains,) = self.resampler.gains([(own, other)], self.scored.directions)
        return {metric: gain for metric, gain in gains.items() if against == "untrained" or self._can_compare(metric)}

    def _can_compare(self, metric: str) -> bool:
        """Whether a metric can be compared with the champion's."""
        return self.scored.can_compare(metric)

    def _comparisons(self) -> Iterator[Comparison]:
        own, untrained, text = self.scored.model.scores, self.scored.untrained, self.scored.text
        if untrained is not None:
            yield from self._compare(own, untrained.scores, "untrained")
        if common := self.scored.common():
            restated = self.objective.restated if text is not None and len(text.unwritten) else frozenset[str]()
            left_out = len(text.left_out) if text else 0
            yield from (one for one in self._compare(*common, "champion", left_out) if one.metric not in restated)
            if any(map(self._can_compare, restated)) and text and (common := self.scored.common(written=True)):
                left_out = len(np.union1d(text.left_out, text.unwritten))
                yield from (one for one in self._compare(*common, "champion", left_out) if one.metric in restated)

    def _compare(self, own: Scores, other: Scores, against: Opponent, left_out: int = 0) -> Iterator[Comparison]:
        """Compare two models on the same rows, from which so many rows are left out."""
        for metric, gain in self._gains(own, other, against=against).items():
            yield Comparison(
                against=against,
                metric=metric,
                gain=gain.value,
                low=gain.low,
                high=gain.high,
                p_value=gain.p_value,
                rows=len(own),
                left_out=left_out,
                groups=None if own.groups is None else own.observations,
            )

    def _slices(self) -> Iterator[SliceResult]:
        own, metrics = self.scored.model.scores, {self.scored.metric, *self.evaluation.gate.slice_floors}
        common = self.scored.common(written=bool(metrics & self.objective.restated))
        for slice_by, slices in slice_positions(self.rows, self.evaluation.slices, own.row_ids):
            for name, positions in slices.items():
                inside = own.take(positions)
                both = common and [one.take(np.isin(one.row_ids, inside.row_ids)) for one in common]
                yield from self._slice(slice_by, name, inside, both if both and len(both[0]) else None)

    def _slice(self, slice_by: str, name: str, own: Scores, both: Sequence[Scores] | None) -> Iterator[SliceResult]:
        """The results of one slice in the metric that decides, or what slices have instead, and in those with a floor.

        Floors are about all rows of the candidate, gains over the champion about those that count for `both`.
        """
        settings, resampler, directions = self.evaluation.gate, self.resampler, self.scored.directions
        is_judged = own.observations >= settings.min_slice_rows
        value = resampler.metrics(own)
        other = resampler.metrics(both[1]) if both else {}
        intervals = self._intervals(own) if is_judged else {}
        is_compared = is_judged and both is not None and both[0].observations >= settings.min_slice_rows
        gains = self._gains(both[0], both[1], against="champion") if is_compared and both else {}
        floor_p_values = resampler.floor_p_values(own, settings.slice_floors, directions) if is_judged else {}
        deciding = self.objective.slice_metrics.get(self.scored.metric, self.scored.metric)
        undefined = self.objective.undefined_metrics(resampler.totals(own))
        for metric in undefined:
            value[metric] = nan
            for found in (other, intervals, gains, floor_p_values):
                found.pop(metric, None)
        for metric in dict.fromkeys((deciding, *settings.slice_floors)):
            interval, gain = intervals.get(metric), gains.get(metric)
            margin = settings.slice_margin if metric == deciding else None
            yield SliceResult(
                slice_by=slice_by,
                slice=name,
                rows=len(own),
                metric=metric,
                value=value[metric],
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                champion=other[metric] if metric in other and self._can_compare(metric) else None,
                gain=gain.value if gain else None,
                gain_low=gain.low if gain else None,
                gain_high=gain.high if gain else None,
                floor_p_value=floor_p_values.get(metric),
                margin_p_value=gain.at_most(-margin) if gain and margin is not None else None,
            )

    def _worst(self, scores: Scores) -> list[WorstRow]:
        row_error = self.objective.row_error(scores.columns)
        positions = np.argsort(-row_error, kind="stable")[: self.evaluation.worst_rows]
        ids = [int(scores.row_ids[position]) for position in positions]
        texts = read_texts(self.rows, ids, self.objective.text)
        return [
            WorstRow(
                row_id=row_id,
                text=texts[row_id][:_MAX_TEXT],
                row_error=float(row_error[position]),
                notes=self.objective.describe_scores(scores.row(int(position)), self.state),
            )
            for row_id, position in zip(ids, positions, strict=True)
        ]

    def _changed(self) -> list[ChangedRow]:
        """The rows whose errors differ most, in either direction, where the two models' errors can be compared."""
        common = self.scored.common(written=not self._can_compare("loss"))
        if common is None:
            return []
        own, other = common
        errors, champion_errors = self._comparable_errors(own), self._comparable_errors(other)
        if errors is None or champion_errors is None:
            return []
        gains = champion_errors - errors
        ordered = np.argsort(-np.abs(gains), kind="stable")[: self.evaluation.worst_rows]
        positions = [int(position) for position in ordered if gains[position] != 0]
        texts = read_texts(self.rows, [int(own.row_ids[position]) for position in positions], self.objective.text)
        return [
            ChangedRow(
                row_id=(row_id := int(own.row_ids[position])),
                text=texts[row_id][:_MAX_TEXT],
                gain=float(gains[position]),
                error=float(errors[position]),
                champion_error=float(champion_errors[position]),
                notes=self.objective.describe_scores(own.row(position), self.state),
                champion_notes=self.objective.describe_scores(other.row(position), self.state),
            )
            for position in positions
        ]

    def _comparable_errors(self, scores: Scores) -> NDArray[np.float64] | None:
        """Each row's error, (N,): as for the worst rows; for other tokens per byte of text, or None if that is unknown."""
        if self._can_compare("loss"):
            return self.objective.row_error(scores.columns)
        if "bytes" not in scores.columns or not all(map(self._can_compare, self.objective.restated)):
            return None
        return scores.columns["nll"] / np.maximum(scores.columns["bytes"], 1)
