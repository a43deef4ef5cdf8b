"""The results of a classifier by label: precision, recall and F1 with intervals, what is mixed up, and curves.

The intervals are those of the gate's metrics (`Resampler`), each of a label by itself: of 28 labels, one or two leave a 95% interval by
chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from params import RecipeError
from params.problems import suggestion
from params.sections.evaluation import Gate
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from tasks.measurements.labels.report import Confusion, LabelCurve, LabelReport, LabelResult
from trainer.objectives.bases.lazy_imports import NDArray, scipy
from trainer.objectives.bases.likelihood import ClassifierObjective
from trainer.objectives.bases.metrics.label_results import precision_recall_f1
from trainer.objectives.bases.metrics.metric import Metric, Sums, named
from trainer.objectives.bases.objective import ObjectiveState, ScoreColumns

_MAX_JUDGED: Final = 200
"""Most labels with intervals: their time and memory grow with the labels and the rows."""
_MAX_MATRIX: Final = 20
"""Most labels whose matrix is shown as a whole."""
_MAX_CONFUSIONS: Final = 30
_MAX_POINTS: Final = 60
"""Most points of a curve."""


def _metric_of_label(name: str, label: int) -> Metric:
    """Return precision, recall or F1 of one label. It is about rows that are predicted to have the label, that have it, or either."""

    def rows(statistics: Sums) -> NDArray[np.bool_]:
        _, predicted, given = (statistics["labels"][:, kind, label] > 0 for kind in range(3))
        return {"precision": predicted, "recall": given, "f1": predicted | given}[name]

    return Metric(
        f"{name} {label}",
        "max",
        value=lambda sums: precision_recall_f1(sums["labels"])[name][..., label],
        about=rows,
    )


class _LabelMetrics:
    """An objective whose metrics are those of each label, such as `f1 3`: so the gate's statistics serve labels, too."""

    def __init__(self, objective: ClassifierObjective[Any], state: ObjectiveState, labels: Sequence[int]) -> None:
        self._objective, self._labels = objective, labels
        self.metrics = named(
            *(_metric_of_label(name, label) for name in ("precision", "recall", "f1") for label in labels)
        )

    def additive_statistics(self, scores: ScoreColumns, state: ObjectiveState) -> NDArray[np.float64]:
        return self._objective.additive_statistics(scores, state)

    def compute_metrics(self, totals: NDArray[np.float64], state: ObjectiveState) -> dict[str, NDArray[np.float64]]:
        """Return all metrics; those of all labels are computed at once."""
        found = precision_recall_f1(self.sums(totals, state)["labels"])
        return {f"{metric} {label}": values[..., label] for metric, values in found.items() for label in self._labels}

    def sums(self, totals: NDArray[np.float64], state: ObjectiveState) -> Sums:
        return self._objective.sums(totals, state)

    def whole_metrics(self, scores: ScoreColumns) -> dict[str, float]:
        return {}


def report_labels(
    resampler: Resampler, own: RowScores, both: tuple[RowScores, RowScores] | None, gate: Gate
) -> LabelReport | None:
    """Return the results by label of the candidate, `own`; None if the objective has no labels.

    `both` are the scores of candidate and champion on the rows that count for both. Labels of fewer than `gate.min_slice_rows` rows get no
    interval.

    Raises:
        RecipeError: `gate.label_floors` name a label that does not exist.
    """
    objective, state = resampler.objective, resampler.state
    if not isinstance(objective, ClassifierObjective):
        return None
    if (counts := objective.label_counts(resampler.totals(own), state)) is None:
        return None
    labels, (_, predicted, rows) = state["labels"], counts
    values = precision_recall_f1(counts)
    judged = [i for i in range(len(labels)) if rows[i] >= gate.min_slice_rows][:_MAX_JUDGED]
    by_label = _resampler_of_labels(resampler, objective, judged)
    (resampled,) = by_label.resample([own]) if judged else ({},)
    gains = by_label.gains(*both, dict.fromkeys(resampled, "max")) if both and judged else {}
    other_counts = objective.label_counts(resampler.totals(both[1]), state) if both else None
    theirs = None if other_counts is None else precision_recall_f1(other_counts)["f1"]
    missed = _floor_p_values(resampler, own, counts, gate)
    results = []
    for i, label in enumerate(labels):
        low, high = None, None
        if i in judged:
            seen = min(own.observations, int(rows[i]))  # of a label that is always right, its rows say how sure that is
            low, high = by_label.interval(resampled[f"f1 {i}"], seen, [seen])
        gain = gains.get(f"f1 {i}")
        results.append(
            LabelResult(
                label=label,
                rows=int(rows[i]),
                predicted=int(predicted[i]),
                **{metric: float(value[i]) for metric, value in values.items()},
                low=low,
                high=high,
                champion=None if theirs is None else float(theirs[i]),
                gain=gain and gain.value,
                gain_low=gain and gain.low,
                gain_high=gain and gain.high,
                floor_p_values=missed.get(i, {}),
            )
        )
    matrix = objective.confusion_matrix(own.columns, state)
    other = objective.confusion_matrix(both[1].columns, state) if both else None
    is_small = matrix is not None and len(labels) <= _MAX_MATRIX
    return LabelReport(
        results=sorted(results, key=lambda one: (-one.rows, one.label)),
        confusions=[] if matrix is None else _confusions(labels, matrix, other),
        matrix=matrix[:, : len(labels)].tolist() if matrix is not None and is_small else [],
        names=labels if is_small else [],
        curves=_curves(objective, own.columns, state),
    )


def _resampler_of_labels(resampler: Resampler, objective: ClassifierObjective[Any], labels: Sequence[int]) -> Resampler:
    metrics: Any = _LabelMetrics(objective, resampler.state, labels)
    return replace(resampler, objective=metrics)


def _floors_of_labels(gate: Gate, labels: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return the floor of each label that has one, by its place, for precision, recall and F1."""
    found: dict[str, dict[int, float]] = {}
    for metric, given in gate.label_floors.items():
        named = given if isinstance(given, dict) else dict.fromkeys(labels, given)
        for label, floor in named.items():
            if label not in labels:
                what = f"no training row has the label {label!r}"
                raise RecipeError(f"evaluation.gate.label_floors.{metric}", what, suggestion(label, labels, "labels"))
            found.setdefault(metric, {})[labels.index(label)] = floor
    return found


def _floor_p_values(
    resampler: Resampler, own: RowScores, counts: NDArray[np.float64], gate: Gate
) -> dict[int, dict[str, float]]:
    """Return how likely a value at least so bad is, were the label just at its floor, by place and metric.

    Precision and recall are shares of rows: exactly, by the binomial distribution, if the rows are independent. Else, and for F1, labels
    are judged if they have rows enough for the jackknife, however many labels there are.
    """
    found: dict[int, dict[str, float]] = {}
    right, predicted, given = counts
    others = dict[int, dict[str, float]]()
    for metric, own_floors in _floors_of_labels(gate, resampler.state["labels"]).items():
        for i, floor in own_floors.items():
            rows = {"precision": predicted, "recall": given}.get(metric)
            if rows is not None and own.groups is None:
                p_value = float(scipy.special.bdtr(right[i], int(rows[i]), min(max(floor, 0.0), 1.0)))
                found.setdefault(i, {})[metric] = p_value
            elif given[i] >= gate.min_slice_rows:
                others.setdefault(i, {})[metric] = floor
    objective: Any = resampler.objective
    for start in range(0, len(others), _MAX_JUDGED):
        places = [*others][start : start + _MAX_JUDGED]
        named = {f"{metric} {i}": floor for i in places for metric, floor in others[i].items()}
        by_label = _resampler_of_labels(resampler, objective, places)
        for name, p_value in by_label.floor_p_values(own, named, dict.fromkeys(named, "max")).items():
            metric, _, place = name.partition(" ")
            found.setdefault(int(place), {})[metric] = p_value
    return found


def _confusions(labels: Sequence[str], matrix: NDArray[np.int64], other: NDArray[np.int64] | None) -> list[Confusion]:
    names, wrong = [*labels, "a label of another run"], matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_CONFUSIONS]
    places = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [
        Confusion(
            label=names[i],
            predicted=names[j],
            rows=int(wrong[i, j]),
            share=float(wrong[i, j] / matrix[i].sum()),
            champion=None if other is None else int(other[i, j]),
        )
        for i, j in places
        if wrong[i, j]
    ]


def _curves(objective: ClassifierObjective[Any], scores: Mapping[str, Any], state: ObjectiveState) -> list[LabelCurve]:
    found = []
    for label, curve in objective.label_curves(scores, state).items():
        at = np.unique(np.searchsorted(curve.recall, np.linspace(0, 1, _MAX_POINTS)).clip(max=len(curve.recall) - 1))
        points = {"recall": curve.recall[at].tolist(), "precision": curve.precision[at].tolist()}
        found.append(LabelCurve(label=label, average_precision=curve.average_precision, **points))
    return found
