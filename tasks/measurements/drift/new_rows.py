"""Measure drift: write the profile of this run's rows, and compare its new rows with the published profile: what moved, by how much.

    validated/rows/train/ -> validated/evergreen-data-profile.dat, which the release carries
                          -> a `DriftReport`, which the report of the validate stage holds

Only the train split counts: it is what a model learns from. Held-out rows may come from elsewhere, and the gate looks
at them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from params.foundation.artifacts import SPLITS, Artifacts
from params.sections.rows import Drift
from tasks.known_rows.hashes import hash_shards
from tasks.known_rows.profile import DataProfile, SampledMeasure, fetch_published_profile, measure_sampled_rows
from tasks.known_rows.rows import (
    MAX_SAMPLED,
    ComparedColumns,
    SampledRows,
    SmallestHashes,
    join_texts_in_value,
    label_hash,
    read_compared_values,
    scan_rows,
    without_identifier_columns,
)
from tasks.measurements.drift import two_sample
from tasks.measurements.drift.report import CONFIDENCE_ERROR_SHARE, DriftExampleRow, DriftReport, MeasuredChange
from tasks.multiple_tests import holm_rejections
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.lazy_imports import scipy
from trainer.objectives.bases.objective import Objective

logger = logging.getLogger(__name__)
_MAX_EXAMPLES = 5
_MAX_NAMED = 1000
_MAX_TEXT = 240
_PERMUTATIONS = 1999
_NAMED_LABELS = 3
_LARGEST_EFFECT = 1e9
"""So that it stays a number: all effects that are larger are the same to a reader."""


def write_profile_and_measure_drift(
    artifacts: Artifacts,
    folder: Path,
    workers: ShardWorkers,
    *,
    drift: Drift,
    objective: Objective[Any],
    seed: int,
    repo_id: str,
    endpoint: str,
) -> DriftReport | None:
    """Write the profile into `folder`, which holds the valid rows and will be `Artifacts.validated`, and compare.

    Return None if the recipe turns this off.

    Raises:
        HubRefusedError, TransientError: with `on_drift: fail`, if the Hub does not say which model is published.
    """
    if drift.on_drift == "off":
        return None
    rows = SplitRows(folder / artifacts.rows.name / "train")
    columns = ComparedColumns.of(rows, objective, drift.ignore)
    scanned = scan_rows(rows, columns, workers)
    smallest = scanned.smallest
    read = smallest.ids_below_round_hash(MAX_SAMPLED)
    sampled = read_compared_values(rows, columns, smallest.row_ids[:MAX_SAMPLED], workers, read)
    columns, sampled = without_identifier_columns(columns, sampled)
    held_out = SmallestHashes()
    for split in SPLITS[1:]:
        for row_ids, hashes in hash_shards(SplitRows(folder / artifacts.rows.name / split), columns, workers):
            held_out.add(hashes, row_ids)
    profile = DataProfile.of(scanned, columns, sampled, held_out)
    profile.save(folder / artifacts.data_profile.name)

    must_answer = drift.on_drift == "fail"
    reference, revision, reason = fetch_published_profile(
        artifacts, profile.content, repo_id=repo_id, endpoint=endpoint, must_answer=must_answer
    )
    report = DriftReport(
        status="no_reference",
        reason=reason,
        repo_id=repo_id,
        revision=revision,
        confidence=drift.confidence,
        min_confidence_fall=drift.min_confidence_fall,
        identifiers=columns.identifiers,
    )
    if reference is not None:
        if reference.form != columns.form:  # the release of an earlier version
            columns = columns.in_form(reference.form)
            smallest = scan_rows(rows, columns, workers).smallest
        is_new, looked_at = reference.is_new(smallest.hashes)
        report = report.model_copy(update={"status": "nothing_new", "looked_at": looked_at})
        if is_new.any():
            new_ids = smallest.row_ids[is_new][:MAX_SAMPLED]
            report = _compared(report, reference, rows, columns, new_ids, workers=workers, drift=drift, seed=seed)
    logger.info("validate: %s", report.sentence)
    return report


def _compared(
    report: DriftReport,
    reference: DataProfile,
    rows: SplitRows,
    columns: ComparedColumns,
    new_ids: NDArray[np.int64],
    *,
    workers: ShardWorkers,
    drift: Drift,
    seed: int,
) -> DriftReport:
    findings = compare_with_profile(reference, read_compared_values(rows, columns, new_ids, workers), drift, seed)
    changes = tuple(finding.change for finding in findings)
    known_rows = max((len(one.values) for one in reference.samples if one.kind != "label"), default=0)
    shown = _shown(findings, new_ids)
    values = {row.pop(ROW_ID): row for row in rows.pick(shown, columns.content)}
    examples = tuple(
        DriftExampleRow(row_id=row_id, values={name: _shorten(value) for name, value in values[row_id].items()})
        for row_id in shown
    )
    return report.model_copy(
        update={
            "status": "compared",
            "known_rows": known_rows,
            "new_rows": len(new_ids),
            "changes": changes,
            "examples": examples,
            "new_row_ids": tuple(new_ids[:_MAX_NAMED].tolist()),
        }
    )


def _shown(findings: Sequence[ChangeWithRowScores], new_ids: NDArray[np.int64]) -> list[int]:
    """Return the ids of the rows that show best what moved."""
    first = next((finding for finding in findings if finding.change.moved), None)
    if first is None:
        return []
    order = np.argsort(-first.row_scores, kind="stable")[:_MAX_EXAMPLES]
    best = [i for i in order if first.row_scores[i] > 0] or order[:1]
    return [int(new_ids[i]) for i in best]


def _shorten(value: object) -> str:
    text = join_texts_in_value(value) if isinstance(value, str | list) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


@dataclass(frozen=True)
class ChangeWithRowScores:
    """A change, and how well each new row shows it."""

    change: MeasuredChange
    row_scores: NDArray[np.float64]
    """(N,), the rows that show it best have the largest values."""


def compare_with_profile(profile: DataProfile, new: SampledRows, drift: Drift, seed: int) -> list[ChangeWithRowScores]:
    """Return all that was compared, the most important first."""
    # enough for the level that Holm asks of the first test
    count = 2 * (len(profile.samples) + len(profile.labels)) / _error(drift)
    permutations = two_sample.PermutationSettings(max(_PERMUTATIONS, math.ceil(count) - 1), np.random.default_rng(seed))
    found = list(_Tests(profile, new, drift, permutations).all())
    holds = holm_rejections([one.change.p_value for one in found], _error(drift))
    return [
        replace(one, change=one.change.model_copy(update={"moved": rejected and one.change.effect >= one.change.floor}))
        for one, rejected in zip(found, holds, strict=True)
    ]


@dataclass(frozen=True)
class _Tests:
    profile: DataProfile
    new: SampledRows
    drift: Drift
    permutations: two_sample.PermutationSettings

    def all(self) -> Iterator[ChangeWithRowScores]:
        found = {(one.kind, one.column): one for one in measure_sampled_rows(self.new)}
        pairs = [(one, found[key]) for one in self.profile.samples if (key := (one.kind, one.column)) in found]
        # labels first, then texts, then numbers: the permutations follow each other in one random stream
        for known, new in sorted(pairs, key=lambda pair: {"label": 0, "text": 1}.get(pair[0].kind, 2)):
            sides = two_sample.ObservationUnits.of(len(known.values), len(new.values), (known.groups, new.groups))
            compare = {"label": self._labels, "text": self._texts}.get(known.kind, self._numbers)
            yield from compare(known, new, sides)

    def _labels(
        self, known: SampledMeasure, new: SampledMeasure, sides: two_sample.ObservationUnits
    ) -> Iterator[ChangeWithRowScores]:
        labels, numbers = np.unique(np.concatenate([known.values, new.values]), return_inverse=True)
        shares = sides.shares(numbers, len(labels))
        real, p_values, by_chance = two_sample.permutation_test(
            shares, sides.new, two_sample.label_shift_statistics, self.permutations
        )
        before = np.asarray(shares[:, : sides.known].sum(axis=1)).ravel() / sides.known  # (V,)
        now = np.asarray(shares[:, sides.known :].sum(axis=1)).ravel() / sides.new
        of_rows = self.new.labels[known.column]
        names = {label_hash(name): name for own in of_rows for name in own}
        codes, counted = labels.tolist(), self.profile.labels[known.column]
        is_unknown = np.array([code not in counted for code in codes])
        own_numbers = numbers[len(known.values) :]  # of the labels of each new row, one after the other
        row_of = np.repeat(np.arange(len(of_rows)), [len(own) for own in of_rows])
        has_unknown = np.bincount(row_of, is_unknown[own_numbers], len(of_rows)) > 0  # (N,)
        weights = two_sample.ObservationUnits.of(0, len(of_rows), (None, self.new.groups)).weights
        unknown = float((has_unknown * weights).sum() / weights.sum())
        counts = Counter(name for own in of_rows for name in {*own})
        unseen = [name for name, _ in counts.most_common() if label_hash(name) not in counted]
        detail = f"{_listed(unseen)}, {unknown:.1%} of the new rows" if unseen else "none"
        what, least = f"new labels ({known.column})", self.drift.min_new_labels
        new_labels = _change(
            what, measure="share of new rows", effect=unknown, floor=least, p_value=p_values[1], detail=detail
        )
        yield ChangeWithRowScores(new_labels, has_unknown.astype(float))
        grown = np.argsort(now - before)[::-1]
        moved = [f"{names[codes[i]]} from {before[i]:.1%} to {now[i]:.1%}" for i in grown if codes[i] in names]
        row_scores = np.full(len(of_rows), -np.inf)
        np.maximum.at(row_scores, row_of, (now - before)[own_numbers])
        distance = max(0.0, float(real[2] - by_chance[2]))  # with many labels, few rows always differ
        detail, least = (
            f"{distance:.1%} differ, beyond chance; most of all {_listed(moved)}",
            self.drift.min_label_change,
        )
        what, measure = f"labels ({known.column})", "total variation distance above chance"
        change = _change(what, measure=measure, effect=distance, floor=least, p_value=p_values[0], detail=detail)
        yield ChangeWithRowScores(change, row_scores)

    def _texts(
        self, known: SampledMeasure, new: SampledMeasure, sides: two_sample.ObservationUnits
    ) -> Iterator[ChangeWithRowScores]:
        features = [*known.values, *new.values]
        told = two_sample.classifier_two_sample_test(features, sides, self.permutations)
        if told is None:
            return
        area, p_value, scores = told
        detail = f"by its words, a new row is told from a known one in {area:.1%} of pairs (50% by chance)"
        measure, least = "area under the ROC curve", self.drift.min_auc
        change = _change("words", measure=measure, effect=area, floor=least, p_value=p_value, detail=detail)
        yield ChangeWithRowScores(change, scores[len(known.values) :])

    def _numbers(
        self, known: SampledMeasure, new: SampledMeasure, sides: two_sample.ObservationUnits
    ) -> Iterator[ChangeWithRowScores]:
        values = np.concatenate([known.values, new.values])
        bins = two_sample.bin_numbers(values)
        shares = sides.shares(bins, int(bins.max()) + 1)
        _, p_values, _ = two_sample.permutation_test(
            shares, sides.new, two_sample.kolmogorov_smirnov_statistic, self.permutations
        )
        spread = _spread(known.values) or _spread(values) or 1.0
        weights = np.split(sides.weights, [len(known.values)])
        scale = _scale(values)
        olds, news = known.values / scale, new.values / scale
        distance = min(
            float(scipy.stats.wasserstein_distance(olds, news, *weights)) * (scale / spread), _LARGEST_EFFECT
        )
        before, now = float(np.median(olds)), float(np.median(news))
        row_scores = np.full(len(self.new.row_ids), -np.inf)
        is_there = np.isfinite(self.new.numbers[new.column]) if known.kind == "number" else slice(None)
        row_scores[is_there] = (news - before) * math.copysign(1.0, float(news.mean() - olds.mean()))
        detail = f"the median went from {before * scale:,.4g} to {now * scale:,.4g}; {distance:.2f} standard deviations"
        what, measure = known.column, "Wasserstein distance in standard deviations"
        what = f"length of {what}" if known.kind == "length" else what
        least, p_value = self.drift.min_distance, p_values[0]
        change = _change(what, measure=measure, effect=distance, floor=least, p_value=p_value, detail=detail)
        yield ChangeWithRowScores(change, row_scores)


def _change(what: str, *, measure: str, effect: float, floor: float, p_value: float, detail: str) -> MeasuredChange:
    about = {"what": what, "measure": measure, "detail": detail}
    return MeasuredChange(effect=round(effect, 4), floor=floor, p_value=float(p_value), **about)


def _scale(values: NDArray[np.float64]) -> float:
    """Return the power of two by which numbers are divided before they are added or squared: no sum of them overflows then."""
    return math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - 1)


def _spread(values: NDArray[np.float64]) -> float:
    scale = _scale(values)
    return float((values / scale).std()) * scale


def _error(drift: Drift) -> float:
    """The probability that any of these tests may call like rows different."""
    return (1 - drift.confidence) * (1 - CONFIDENCE_ERROR_SHARE)


def _listed(names: Sequence[str]) -> str:
    shown = [name if len(name) <= 80 else f"{name[:79]}…" for name in names[:_NAMED_LABELS]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
