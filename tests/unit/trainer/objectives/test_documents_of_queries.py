"""What each document changes for the queries, by which the gate knows that these are not independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from params.schema import ObjectiveChoice
from tasks.evaluation.scoring import RowScores
from tasks.evaluation.statistics import Resampler
from trainer import objectives
from trainer.objectives.bases.metrics.retrieval import center_changes, measure_classes, measure_pairs, measure_queries


def vectors(draw: np.random.Generator, *shape: int) -> Any:
    """Few directions, so that many cosines are equal."""
    found = np.round(draw.normal(size=(*shape, 2))) + 1e-9
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


@pytest.mark.parametrize("seed", range(12))
def test_a_document_changes_what_its_absence_changes(seed: int) -> None:
    """With grades, ties, queries that are documents, and more documents than the metrics look at."""
    draw = np.random.default_rng(seed)
    queries, documents = vectors(draw, 6), vectors(draw, 4 + 3 * seed)
    count = len(documents)
    relevant = [np.flatnonzero(draw.random(count) < 0.3) for _ in queries]
    grades = [draw.integers(1, 4, len(own)).astype(float) for own in relevant]
    itself = draw.integers(-1, count, len(queries))
    found = measure_queries(queries, documents, relevant, itself, grades=grades)
    for lost in range(count):
        left = np.arange(count) != lost
        number = np.cumsum(left) - 1
        without = measure_queries(
            queries,
            documents[left],
            [number[own[own != lost]] for own in relevant],
            np.where((itself == lost) | (itself < 0), -1, number[itself]),
            grades=[of[own != lost] for own, of in zip(relevant, grades, strict=True)],
        )
        assert without.queries.sum(0) - found.queries.sum(0) == pytest.approx(found.documents[lost], abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_left_out_takes_its_documents_along(seed: int) -> None:
    draw, rows = np.random.default_rng(seed), 5 + 6 * seed
    texts, classes = vectors(draw, rows), draw.integers(0, 4, rows).astype(float)
    pairs, numbers = vectors(draw, rows, 2), np.arange(2.0 * rows).reshape(rows, 2)
    for measure, one, other in ((measure_classes, texts, classes), (measure_pairs, pairs, numbers)):
        queries, changes = measure(one, other)
        for lost in range(rows):
            left = np.arange(rows) != lost
            without, _ = measure(one[left], other[left])
            assert without.sum(0) - queries[left].sum(0) == pytest.approx(changes[lost], abs=1e-9)


def test_documents_of_a_corpus_stay_without_the_row() -> None:
    draw = np.random.default_rng(0)
    pairs, numbers = vectors(draw, 8, 2), np.arange(16.0).reshape(8, 2)
    corpus = np.concatenate([pairs[:, 1], numbers[:, 1:]], 1)
    assert measure_pairs(pairs, numbers)[1].any()
    assert not measure_pairs(pairs, numbers, corpus)[1].any()


def test_a_document_of_two_rows_is_shared_by_them() -> None:
    draw = np.random.default_rng(3)
    pairs, numbers = vectors(draw, 9, 2), np.arange(18.0).reshape(9, 2)
    pairs[1, 1], numbers[1, 1] = pairs[0, 1], numbers[0, 1]
    changes = measure_pairs(pairs, numbers)[1]
    assert np.array_equal(changes[0], changes[1])


def test_changes_leave_every_sum_as_it_is() -> None:
    """Exactly, in any order: the metrics of a training and of an evaluation have the same bits."""
    draw = np.random.default_rng(0)
    for rows in (1, 2, 7, 300):
        given = draw.normal(0, 10, (rows, 3))
        found = center_changes(given)
        assert not found.sum(0).any()
        assert not found[draw.permutation(rows)].sum(0).any()
        assert found == pytest.approx(given - given.mean(0), abs=1e-6)


def test_metrics_of_a_slice_are_those_of_its_queries() -> None:
    objective = objectives.build_objective(ObjectiveChoice(name="embedding", label_column="label"))
    draw, rows = np.random.default_rng(0), 60
    measured = np.concatenate(
        [vectors(draw, rows), np.arange(rows)[:, None] + 1.0, draw.integers(0, 6, rows)[:, None]], 1
    )
    columns = dict(zip(objective.score_names({}), objective.scores_of_split(measured, {}).T, strict=True))
    scores = RowScores(np.arange(rows), columns, np.arange(rows))
    resampler = Resampler(objective, {}, resamples=200, confidence=0.95, seed=0)
    for part in (scores, scores.take(np.arange(rows) % 3 == 0)):
        expected = part.columns["ndcg_at_10"].sum() / part.columns["counted"].sum()
        assert resampler.metrics(part)["ndcg_at_10"] == pytest.approx(expected, rel=1e-14)
