"""Candidate and champion are resampled in the same units, although each lacks a row that the other can read."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores, align_to_common_rows, resampling_units
from tasks.evaluation.statistics import Resampler
from tests.support import new_objectives
from trainer import objectives
from trainer.objectives.bases.metrics.metric import directions

QUERIES, DOCUMENTS = 60, 4
ROWS = QUERIES * DOCUMENTS
QUERY = np.repeat(np.arange(QUERIES), DOCUMENTS)
with new_objectives.known():
    RANKING = objectives.build_objective(ObjectiveChoice(name="first_relevant"))


def scored(customers: NDArray[np.int64], lacks: int | None) -> RowScores:
    """The same scores for every model; one row is not read."""
    score = np.random.default_rng(1).normal(size=ROWS)
    relevant = (np.arange(ROWS) % DOCUMENTS == 0).astype(float)
    columns = {"nll": np.abs(score), "score": score, "relevant": relevant, "query": QUERY.astype(float)}
    read = np.arange(ROWS) != (-1 if lacks is None else lacks)
    own = {name: column[read] for name, column in columns.items()}
    return RowScores(np.arange(ROWS)[read], own, resampling_units(customers[read], own["query"]))


@pytest.mark.parametrize("both", [False, True])
def test_models_that_answer_alike_differ_by_nothing(both: bool) -> None:
    customers = QUERY.copy()
    customers[1], customers[ROWS - 3] = 1, QUERIES - 2  # each joins two queries
    own, other = scored(customers, ROWS - 3 if both else None), scored(customers, 1)
    common = align_to_common_rows(own, other, np.zeros(0, np.int64))
    assert common[0].observations == common[1].observations
    resampler = Resampler(RANKING, {}, resamples=200, confidence=0.9, seed=1)
    alone = resampler.gains(*common, directions(RANKING.metrics))
    same = resampler.gains(common[0], common[0], directions(RANKING.metrics))
    gain, expected = alone["reciprocal_rank"], same["reciprocal_rank"]
    assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high))
