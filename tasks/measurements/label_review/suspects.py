"""Suspects: rows that the model is sure are labelled wrongly, by confident learning.

Northcutt, Jiang and Chuang 2021 (Confident Learning, https://arxiv.org/abs/1911.00068). A label is likely where its probability is at least
its threshold: the mean probability that it gets from the rows that have it. A row is suspect if the label that the model holds for likeliest is
likely, and is not the row's. Of the off-diagonal cells of the paper's confident joint, these are the rows in which the likely label is the
likeliest one, too. They come in the order of the paper's normalized margin: the probability of the row's own label minus that of the other.

What is asked must not have been learned from: the scores of the evaluated split are there, those of train rows are cross-fitted.

A model that knows little of a question would call its own errors those of people. Nobody is asked who has no skill: it must be better than the
answer that most rows have, by more than chance explains, and avoid a good share of that answer's errors (`SplitBeliefs.knows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tasks.evaluation.scoring import RowGroups, RowScores
from tasks.measurements.label_review import cross_fitting
from tasks.measurements.label_review.cross_fitting import TrainFeatures
from tasks.shards.split_rows import SplitRows
from trainer.objectives.bases.lazy_imports import NDArray, torch
from trainer.objectives.bases.likelihood import ClassifierObjective
from trainer.objectives.bases.metrics.label_results import LabelBeliefs
from trainer.objectives.bases.objective import ObjectiveState

_LEAST_SKILL: Final = 0.25
"""Share of the errors of always holding the most frequent answer for right that a model must avoid for its doubts to say something."""
_CRITICAL: Final = 1.96
"""So many standard errors above none that share must be: the lower end of its 95% interval is then above 0."""
_DIGITS: Final = 6
"""To so many digits margins are compared: what differs less is in the order of the rows, whatever the batches were."""


@dataclass(frozen=True)
class Suspect:
    """One answer of a row that looks wrong."""

    split: str
    row_id: int
    given: str
    suggested: str
    confidence: float
    """The probability of the suggested answer."""
    margin: float
    """The probability of the given answer minus it."""
    why: str = "suspect"
    """Why people should look at the row: also because two models disagree, or because it was drawn at random."""


@dataclass(frozen=True)
class SplitBeliefs:
    """What is held of the rows of a split that were looked at."""

    rows: SplitRows
    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    beliefs: Sequence[LabelBeliefs]
    """For each question."""
    judged: NDArray[np.bool_] | None = None
    """(N, Q), which rows are judged in each question; None if all are."""
    groups: NDArray[np.int64] | None = None
    """(N,), equal for rows that belong together; None if each row is on its own."""

    @property
    def split(self) -> str:
        return self.rows.folder.name

    def judged_in(self, question: int) -> NDArray[np.bool_]:
        """Return which rows count for a question, (N,)."""
        return np.ones(len(self.row_ids), bool) if self.judged is None else self.judged[:, question]

    @property
    def skill(self) -> float:
        """How much of the error of always holding the most frequent answer for right is avoided: 1 without error, 0 or less for nothing learned."""
        return self.skill_in(range(len(self.beliefs)))

    def skill_in(self, questions: Iterable[int]) -> float:
        """As `skill`, in some of the questions."""
        avoided, guessed = 0.0, 0.0
        for question in questions:
            avoided += float(self._avoided_errors(question).sum())
            guessed += float(self._errors_of_guess(question).sum())
        return avoided / guessed if guessed else 0.0

    def knows(self, question: int) -> bool:
        """Whether the model has skill in a question: enough of it, and more than chance explains.

        The score test of paired answers, with the continuity correction of Edwards (1948): without groups it is McNemar's.
        """
        avoided = self._avoided_errors(question)
        if self.groups is not None:
            places = np.unique(self.groups, return_inverse=True)[1]
            avoided = np.bincount(places, weights=avoided).astype(np.float64)
        is_chance = avoided.sum() - 1 <= _CRITICAL * math.sqrt(float((avoided**2).sum()))
        return not is_chance and self.skill_in([question]) >= _LEAST_SKILL

    @property
    def known(self) -> list[int]:
        """The questions in which the model has skill."""
        return [question for question in range(len(self.beliefs)) if self.knows(question)]

    def _errors_of_guess(self, question: int) -> NDArray[np.float64]:
        """Return 1 for the rows whose answer is not the most frequent one, (N,); 0 for those that are not judged."""
        given, rows = self.beliefs[question].given, self.judged_in(question)
        most = np.bincount(given[rows], minlength=1).argmax()
        found: NDArray[np.float64] = ((given != most) & rows).astype(np.float64)
        return found

    def _avoided_errors(self, question: int) -> NDArray[np.float64]:
        """Return 1 for the rows in which the model is right and the most frequent answer is not, -1 for the reverse, (N,)."""
        one = self.beliefs[question]
        wrong = (one.likeliest != one.given) & self.judged_in(question)
        avoided: NDArray[np.float64] = self._errors_of_guess(question) - wrong
        return avoided

    def suspects(self) -> Iterator[Suspect]:
        """Yield the suspects, those of a question after the other, without questions of which the model knows too little."""
        for question in self.known:
            one = self.beliefs[question]
            for place in np.flatnonzero(is_suspect(one) & self.judged_in(question)).tolist():
                own, other = float(one.given_probability[place]), float(one.likeliest_probability[place])
                given, suggested = (one.answers[int(places[place])] for places in (one.given, one.likeliest))
                yield Suspect(
                    self.split, int(self.row_ids[place]), given, suggested, other, round(own - other, _DIGITS)
                )


def is_suspect(beliefs: LabelBeliefs) -> NDArray[np.bool_]:
    """Return which of N rows are suspect, (N,). An answer that no row gives has the mean threshold of all rows."""
    given, answers = beliefs.given, len(beliefs.answers)
    counts = np.bincount(given, minlength=answers)
    sums = np.bincount(given, weights=beliefs.given_probability, minlength=answers)
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / max(len(given), 1))
    found: NDArray[np.bool_] = beliefs.likeliest != given
    return found & (beliefs.likeliest_probability >= thresholds[beliefs.likeliest])


def beliefs_of_scores(
    objective: ClassifierObjective[Any], state: ObjectiveState, rows: SplitRows, scores: RowScores
) -> SplitBeliefs:
    """Return what the candidate holds of the rows of the evaluated split, from the scores that are there."""
    return SplitBeliefs(
        rows, scores.row_ids, list(objective.label_beliefs(scores.columns, state)), groups=scores.groups
    )


def beliefs_of_features(
    objective: ClassifierObjective[Any], state: ObjectiveState, rows: SplitRows, train: TrainFeatures, seed: int
) -> SplitBeliefs:
    """Return what is held of train rows, cross-fitted on their features."""
    groups = RowGroups.read(rows, train.row_ids.tolist())
    folds = cross_fitting.assign_folds(train, groups, seed)
    logits, judged = cross_fitting.cross_fit(train, folds, len(state["labels"]))
    labels = torch.from_numpy(train.labels)
    table = objective.score_logits(torch.from_numpy(logits), labels if labels.dim() == 1 else labels.float())
    columns = dict(zip(objective.score_names(state), table.numpy().T, strict=True))
    units = groups.of(train.row_ids) if groups else None
    return SplitBeliefs(rows, train.row_ids, list(objective.label_beliefs(columns, state)), judged, units)


def find_disagreements(own: SplitBeliefs, champion: SplitBeliefs) -> Iterator[Suspect]:
    """Yield the answers in which candidate and champion differ, as one of them gives it that is not the row's.

    Questions of which one of the two knows too little are left out: it differs by chance there.
    """
    _, mine, theirs = np.intersect1d(own.row_ids, champion.row_ids, return_indices=True)
    for question in sorted({*own.known} & {*champion.known}):
        one, other = own.beliefs[question], champion.beliefs[question]
        if other.says_nothing:
            continue
        for at, there in zip(mine.tolist(), theirs.tolist(), strict=True):
            if one.likeliest[at] != other.likeliest[there]:
                place, of = (at, one) if one.likeliest[at] != one.given[at] else (there, other)
                if of.likeliest[place] >= len(of.answers):  # of the champion alone: no training row has it any more
                    continue
                given, sure = float(of.given_probability[place]), float(of.likeliest_probability[place])
                answers = (of.answers[int(of.given[place])], of.answers[int(of.likeliest[place])])
                yield Suspect(
                    own.split, int(own.row_ids[at]), *answers, sure, round(given - sure, _DIGITS), "models disagree"
                )


def find_suspects(splits: Sequence[SplitBeliefs]) -> list[Suspect]:
    """Return the suspects of all splits, the surest first."""
    return sorted((one for split in splits for one in split.suspects()), key=lambda one: (one.margin, one.row_id))
