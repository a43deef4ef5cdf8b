"""What the scores of models show: intervals, differences on the same rows, parts of the rows, the worst ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from params import RecipeError
from params.schema import Direction, Evaluation
from tasks.evaluation.gate import Comparison, Part
from tasks.evaluation.scoring import Scores
from tasks.evaluation.slices import divisions, texts
from tasks.evaluation.statistics import Gain, Resampler
from tasks.stages import Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainer.objectives.bases.objective import Objective, State

_LONGEST_TEXT = 2000
"""Characters that are kept of a row's text."""


class Interval(Report):
    """Where a figure would be on other rows like these."""

    low: float
    high: float


class WorstRow(Report):
    """A row on which the model does badly."""

    row_id: int
    text: str
    row_error: float
    """How badly, in the unit of the objective's first score."""
    notes: dict[str, str]


class Details(Report):
    """What people want to know of an evaluation beside its figures."""

    saved_as: ClassVar[str] = "details"
    confidence: float
    resamples: int
    directions: dict[str, Direction]
    intervals: dict[str, dict[str, Interval]]
    """By model and metric."""
    comparisons: list[Comparison]
    slices: list[Part]
    worst: list[WorstRow]
    calibration: list[dict[str, float]] | None


@dataclass(frozen=True)
class Assessment:
    """Looks at the scores of the models that were scored.

    Args:
        objective: says what figures follow from scores.
        state: what the objective learned from the train split.
        evaluation: what the recipe wants to know.
        rows: validated rows of the split, as Parquet.
        resampler: of the recipe's settings.
        scores: of each model by name: `model`, and where they were scored `untrained` and `champion`.
        known: the model's figures, those of the recipe's own function too.
        directions: whether the smallest or the largest is best, for every metric.
        reads_alike: whether the champion's tokenizer makes the same tokens.
    """

    objective: Objective[Any]
    state: State
    evaluation: Evaluation
    rows: Path
    resampler: Resampler
    scores: Mapping[str, Scores]
    known: Mapping[str, float]
    directions: Mapping[str, Direction]
    reads_alike: bool

    def details(self, metric: str) -> Details:
        """Intervals, comparisons and what else is told of the scores."""
        self._check_gate(metric)
        own, settings = self.scores["model"], self.evaluation.gate
        intervals = {}
        comparisons: list[Comparison] = []
        for name, scores in self.scores.items():
            (resampled,) = self.resampler.resampled([scores])
            intervals[name] = {m: _interval(self.resampler, values) for m, values in resampled.items()}
            if name != "model":
                comparisons += self._comparisons(name, own, scores)
        return Details(
            confidence=settings.confidence,
            resamples=settings.resamples,
            directions=dict(self.directions),
            intervals=intervals,
            comparisons=comparisons,
            slices=list(self._slices(metric)),
            worst=self._worst(own),
            calibration=self.objective.calibration_bins(self.resampler.totals(own), self.state) or None,
        )

    def _check_gate(self, metric: str) -> None:
        """Only the model's figures tell which of its metrics there are, and which have intervals."""
        settings = self.evaluation.gate
        known, resampled = self.known, self.resampler.figures(self.scores["model"])
        for key, name, among in (
            ("metric", metric, resampled),
            *(("floors", name, known) for name in settings.floors),
            *(("slice_floors", name, resampled) for name in settings.slice_floors),
        ):
            if name not in among:
                raise RecipeError(
                    f"evaluation.gate.{key}", f"there is no {name} to judge by", f"use one of {', '.join(among)}"
                )

    def _gains(self, own: Scores, other: Scores, *, against: str) -> dict[str, Gain]:
        """How much better the model is on the same rows, in the metrics that compare."""
        (gains,) = self.resampler.gains([(own, other)], self.directions)
        return {metric: gain for metric, gain in gains.items() if against == "untrained" or self._compares(metric)}

    def _compares(self, metric: str) -> bool:
        """Whether a metric compares with the champion's."""
        return self.reads_alike or metric not in self.objective.tokenizer_dependent

    def _comparisons(self, name: str, own: Scores, other: Scores) -> Iterator[Comparison]:
        own, other = _same_rows(own, other)
        for metric, gain in self._gains(own, other, against=name).items():
            yield Comparison(
                against="champion" if name == "champion" else "untrained",
                metric=metric,
                gain=gain.value,
                low=gain.low,
                high=gain.high,
                p_value=gain.p_value,
                rows=len(own),
            )

    def _slices(self, metric: str) -> Iterator[Part]:
        champ = self.scores.get("champion")
        own = self.scores["model"]
        if champ is not None:
            own, champ = _same_rows(own, champ)
        metrics = dict.fromkeys((metric, *self.evaluation.gate.slice_floors))
        for division, parts in divisions(self.rows, self.evaluation.slices, own.row_ids):
            for part, places in parts.items():
                theirs = champ.take(places) if champ is not None else None
                yield from self._part(division, part, own.take(places), theirs, metrics)

    def _part(
        self, division: str, part: str, own: Scores, champ: Scores | None, metrics: Mapping[str, None]
    ) -> Iterator[Part]:
        settings, resampler = self.evaluation.gate, self.resampler
        judged = len(own) >= settings.slice_rows
        value = resampler.figures(own)
        other = resampler.figures(champ) if champ is not None else {}
        resampled = resampler.resampled([own])[0] if judged else {}
        gains = self._gains(own, champ, against="champion") if judged and champ is not None else {}
        below_floor = resampler.shortfalls(own, settings.slice_floors, self.directions) if judged else {}
        for metric in metrics:
            interval = _interval(resampler, resampled[metric]) if judged else None
            gain = gains.get(metric)
            margin = settings.slice_margin if metric == next(iter(metrics)) else None
            yield Part(
                division=division,
                part=part,
                rows=len(own),
                metric=metric,
                value=value[metric],
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                champion=other[metric] if metric in other and self._compares(metric) else None,
                gain=gain.value if gain else None,
                gain_low=gain.low if gain else None,
                gain_high=gain.high if gain else None,
                below_floor=below_floor.get(metric),
                below_margin=gain.at_most(-margin) if gain and margin is not None else None,
            )

    def _worst(self, own: Scores) -> list[WorstRow]:
        row_error = self.objective.row_error(own.columns)
        places = np.argsort(-row_error, kind="stable")[: self.evaluation.worst]
        ids = [int(own.row_ids[place]) for place in places]
        found = texts(self.rows, ids, self.objective.text)
        return [
            WorstRow(
                row_id=row_id,
                text=found[row_id][:_LONGEST_TEXT],
                row_error=float(row_error[place]),
                notes=self.objective.describe_scores(own.row(int(place)), self.state),
            )
            for row_id, place in zip(ids, places, strict=True)
        ]


def _same_rows(one: Scores, other: Scores) -> tuple[Scores, Scores]:
    """The rows of which both models could make something, which depends on their tokenizers."""
    if np.array_equal(one.row_ids, other.row_ids):
        return one, other
    _, places, others = np.intersect1d(one.row_ids, other.row_ids, assume_unique=True, return_indices=True)
    return one.take(places), other.take(others)


def _interval(resampler: Resampler, resampled: NDArray[np.float64]) -> Interval:
    low, high = resampler.interval(resampled)
    return Interval(low=low, high=high)
