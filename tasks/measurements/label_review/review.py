"""The review of labels in a run: what of the evaluated split and of the train split looks wrong, for the report and for review.csv."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import nan
from operator import itemgetter
from typing import Any, Final

import numpy as np

from tasks.evaluation.plan import EvaluationPlan
from tasks.evaluation.scoring import RowScores
from tasks.measurements.label_review import cross_fitting, suspects
from tasks.measurements.label_review.cross_fitting import TrainFeatures
from tasks.measurements.label_review.report import SuspectLabel, SuspectReport, SuspectRow, SuspectSplit
from tasks.measurements.label_review.review_table import quote_text, review_csv
from tasks.measurements.label_review.suspects import SplitBeliefs, Suspect
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.lazy_imports import PreTrainedModel
from trainer.objectives.bases.likelihood import ClassifierObjective
from trainer.objectives.bases.objective import Objective
from trainer.objectives.bases.rows import format_row_hash, hash_but_labels

logger = logging.getLogger(__name__)
_NO_STATES: Final = "no train rows, because the network gives no hidden state for each token"
_DRAWN: Final = 25
"""Rows that are drawn at random."""
_LEAST_SHARE: Final = 2 / 3
"""Share of the candidate's skill that what reviews train rows must have, beside skill of its own: else it would mostly find its own errors."""


@dataclass(frozen=True)
class LabelReview:
    """What was found."""

    report: SuspectReport | None
    """None if the objective gives whole rows no labels."""
    table: str
    """The content of review.csv."""


def _can_review(objective: Objective[Any]) -> bool:
    """Whether the scores of an objective say what a model holds of the labels of whole rows."""
    method = getattr(type(objective), "label_beliefs", ClassifierObjective.label_beliefs)
    return method is not ClassifierObjective.label_beliefs


def measure_train_rows(plan: EvaluationPlan, untrained: PreTrainedModel | None = None) -> TrainFeatures | None:
    """Read train rows with the untrained model, which is loaded if it is not given; None if there is nothing to review, or it gives no features."""
    resampler, own = plan.resampler, plan.models[0].reader
    if not _can_review(own.objective):
        return None
    metrics = EvaluationMetrics(own.objective, state=resampler.state, tokenizer=own.tokenizer, metrics=None)
    return cross_fitting.measure_features(
        untrained or plan.load_untrained(),
        Sequences(plan.train),
        metrics,
        batch_size=plan.batch_size,
        batch_tokens=plan.batch_tokens,
        seed=resampler.seed,
        kept=plan.features,
    )


def review_labels(
    plan: EvaluationPlan,
    scores: RowScores,
    train: TrainFeatures | None,
    champion: RowScores | None = None,
    unsure: Sequence[tuple[int, float]] = (),
) -> LabelReview:
    """Find what looks wrong in the evaluated split, of which the candidate has these scores, and among the train rows.

    The table also has the rows of which the champion, with its scores, says something else, the new rows of which it is `unsure`, and
    some that are drawn at random: among the others, the share of wrong labels is not that of all rows.
    """
    objective, state = plan.resampler.objective, plan.resampler.state
    if not _can_review(objective):
        logger.info("evaluate: no review of labels: this objective gives whole rows no labels")
        return LabelReview(None, review_csv([], {}))
    assert isinstance(objective, ClassifierObjective)
    learned = SplitRows(plan.rows.folder.parent / plan.train.name)
    evaluated = suspects.beliefs_of_scores(objective, state, plan.rows, scores)
    linear = suspects.beliefs_of_features(objective, state, learned, train, plan.resampler.seed) if train else None
    splits, not_read = _choose_splits(linear, evaluated)
    found = suspects.find_suspects(splits)
    other = suspects.beliefs_of_scores(objective, state, plan.rows, champion) if champion else None
    is_told = other is not None and bool(other.known)  # a model that knows too little is unsure of all rows
    queue = [*_queue(found, evaluated, other, objective), *_unsure(unsure if is_told else (), learned, objective)]
    texts, hashes, others = _read_queued_rows(queue, (learned, plan.rows), objective)
    report = _report(splits, found, texts, "; ".join(not_read), plan.settings.worst_rows)
    return LabelReview(report, review_csv(queue, texts, others, hashes))


def _choose_splits(linear: SplitBeliefs | None, evaluated: SplitBeliefs) -> tuple[list[SplitBeliefs], list[str]]:
    """Return the splits of which something is known, `linear` of the train rows, and why others were not read."""
    splits, not_read = list[SplitBeliefs](), list[str]()
    if linear is None:
        not_read.append(_NO_STATES)
    elif linear.known and linear.skill >= _LEAST_SHARE * evaluated.skill:
        splits.append(linear)
    else:
        skills = f"its skill is {linear.skill:.2f}, that of the new model {evaluated.skill:.2f}"
        what = "no train rows, because the model before training knows too little of these labels"
        not_read.append(f"{what} ({skills})")
    if evaluated.known:
        splits.append(evaluated)
    else:
        told = f"its skill is {evaluated.skill:.2f}"
        not_read.append(f"no {evaluated.split} rows, because the new model knows too little of these labels ({told})")
    return splits, not_read


def _read_queued_rows(
    queue: Sequence[Suspect], stored: Sequence[SplitRows], objective: Objective[Any]
) -> tuple[dict[int, str], dict[int, str], dict[str, dict[int, Any]]]:
    """Return the texts and the hashes of the rows in the table, and their other columns, each by row_id."""
    texts, hashes, others = dict[int, str](), dict[int, str](), dict[str, dict[int, Any]]()
    columns = objective.columns()
    in_table = {ROW_ID, *(name for name, kind in columns.items() if kind in ("string", "label"))}
    for split in stored:
        ids = {one.row_id for one in queue if one.split == split.folder.name}
        for row in split.pick(ids) if ids else ():
            row_id = row[ROW_ID]
            texts[row_id] = quote_text(objective.text(row))
            hashes[row_id] = format_row_hash(hash_but_labels(columns, row))
            for name in row:
                if name in in_table:
                    continue
                others.setdefault(name, {})[row_id] = row[name]
    return texts, hashes, others


def _queue(
    found: Sequence[Suspect], evaluated: SplitBeliefs, champion: SplitBeliefs | None, objective: Objective[Any]
) -> list[Suspect]:
    """Return the suspects, then the other rows of the evaluated split in which two models differ, then those drawn at random by their hash."""
    known = {(one.split, one.row_id) for one in found}
    other = suspects.find_disagreements(evaluated, champion) if champion else ()
    differing = [one for one in other if (one.split, one.row_id) not in known]
    columns = objective.columns()
    rows = ((hash_but_labels(columns, row), row) for row in evaluated.rows.rows([ROW_ID, *columns]))
    drawn = {row[ROW_ID]: row for _, row in nsmallest(_DRAWN, rows, key=itemgetter(0))}
    listed = [*found, *sorted(differing, key=lambda one: (one.margin, one.row_id))]
    listed = [
        replace(one, why=f"{one.why}; random") if one.split == evaluated.split and one.row_id in drawn else one
        for one in listed
    ]
    for row_id in sorted(drawn.keys() - {one.row_id for one in listed}):
        labels = ", ".join(objective.row_labels(drawn[row_id]))
        listed.append(suspects.Suspect(evaluated.split, row_id, labels, "", nan, 0.0, "random"))
    return listed


def _unsure(unsure: Sequence[tuple[int, float]], rows: SplitRows, objective: Objective[Any]) -> Iterator[Suspect]:
    """Yield the new rows of which the champion is least sure, those first."""
    confidence = dict(unsure)
    known = {row[ROW_ID]: row for row in rows.pick(confidence)} if confidence else {}
    for row_id in (row_id for row_id in confidence if row_id in known):
        labels = ", ".join(objective.row_labels(known[row_id]))
        why = "new, and the published model is unsure"
        yield suspects.Suspect(rows.folder.name, row_id, labels, "", confidence[row_id], 0.0, why)


def _report(
    splits: Sequence[SplitBeliefs], found: Sequence[Suspect], texts: Mapping[int, str], not_read: str, shown: int
) -> SuspectReport:
    counts, rows = Counter(one.given for one in found), Counter[str]()
    for split in splits:
        for question in split.known:
            one = split.beliefs[question]
            places = np.bincount(one.given[split.judged_in(question)], minlength=len(one.answers))
            rows.update(dict(zip(one.answers, places.tolist(), strict=True)))
    suggested = dict[str, tuple[str, int]]()
    pairs = Counter((one.given, one.suggested) for one in found)
    for (given, other), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0])):
        suggested.setdefault(given, (other, count))
    return SuspectReport(
        splits=[
            SuspectSplit(
                split=one.split,
                rows=len(one.rows),
                reviewed=len(one.row_ids) if one.judged is None else int(one.judged[:, one.known].any(1).sum()),
                suspects=len({own.row_id for own in found if own.split == one.split}),
            )
            for one in splits
        ],
        not_read=not_read,
        labels=[
            SuspectLabel(
                label=label, rows=rows[label], suspects=count, suggested=suggested[label][0], most=suggested[label][1]
            )
            for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ],
        worst=[
            SuspectRow(
                split=one.split,
                row_id=one.row_id,
                text=texts[one.row_id],
                given=one.given,
                suggested=one.suggested,
                confidence=one.confidence,
            )
            for one in found[:shown]
        ],
    )
