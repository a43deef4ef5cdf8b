"""Metrics of retrieval: where the relevant documents of each query stand among all documents.

Documents are ranked by the cosine, rounded to six decimals; of those that have the same, the less relevant is first. So a model
that gives all texts the same vector finds nothing.

Each document stands before many queries, so these are not independent: a text whose vector is off the mark is missed by all queries of its
class, and is in the way of others. For the gate's intervals, `Measures` therefore say of each document, too, how the sums over all queries
would change without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np

DEPTH: Final = 10
"""The last rank that NDCG, the reciprocal rank and recall look at."""
NAMES: Final = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
_BLOCK: Final = 256
"""Queries whose cosines are in memory at a time."""
_UNITS: Final = 2.0**24
"""How finely `center_changes` tells numbers apart."""


class Measures(NamedTuple):
    """What Q queries and V documents say of `NAMES`, and of how many queries count."""

    queries: NDArray[np.float64]
    """(Q, 5): `NAMES`, and 1; zeros without a relevant document, NaN if a vector is not finite."""
    documents: NDArray[np.float64]
    """(V, 5): by how much the sums over queries would change without each document."""


def name_length(query: str) -> str:
    """Return the words of a query as a range: 1 to 2, 3 to 4, 5 to 8, 9 to 16 and so on."""
    words = max(1, len(query.split()))
    end = max(2, 1 << (words - 1).bit_length())
    return f"{1 if end == 2 else end // 2 + 1} to {end} words"


def rank_relevant(
    cosines: NDArray[np.float64], grades: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ranks of the relevant of V documents, ascending from 1, and their grades, for the cosines (V,) of one query.

    `grades` (V,) are above 0 for the relevant ones.
    """
    rounded, is_relevant = np.round(cosines, 6), grades > 0
    others, own = np.sort(rounded[~is_relevant]), np.flatnonzero(is_relevant)
    own = own[np.lexsort((grades[own], -rounded[own]))]
    before = len(others) - np.searchsorted(others, rounded[own], side="left")
    return before + np.arange(1, len(own) + 1), grades[own]


def measure_ranks(ranks: NDArray[np.int64], grades: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return `NAMES` of a query whose relevant documents have these ranks and grades.

    NDCG is that of Järvelin and Kekäläinen 2002 (https://doi.org/10.1145/582415.582418) with the discount 1 / log2(rank + 1). The gain
    of a document is its grade, as in trec_eval, and not 2 to the power of it. For the other metrics, all relevant documents are alike.
    """
    found = ranks[ranks <= DEPTH]
    best = -np.sort(-grades)[:DEPTH]
    ideal = (best / np.log2(np.arange(2, len(best) + 2))).sum()
    return (
        float((grades[: len(found)] / np.log2(found + 1)).sum() / ideal),
        float(1 / ranks[0]) if len(found) else 0.0,
        float((ranks <= 1).sum() / len(ranks)),
        float(len(found) / len(ranks)),
    )


def members_of_groups(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the positions of each of the numbers 0 to G - 1 among N, which all occur, (N,)."""
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])


def changes_without_documents(
    cosines: NDArray[np.float64], grades: NDArray[np.float64], found: NDArray[np.float64], beside: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return by how much the sums of `found` change without each of V documents, (V, 5), for B queries.

    A query depends on its relevant documents, and on the first ones that are none: without one of these, a later one takes its place. Without
    its only relevant document, a query does not count.

    Args:
        cosines: those of the queries and documents, (B, V); -inf where the document is the query's own text.
        grades: how relevant these are, (B, V); each query has a relevant one.
        found: `NAMES` of each query, and 1, (B, 5).
        beside: whether a document comes and goes with the query: then nothing changes, (B, V).
    """
    top = _first_documents(cosines, grades, DEPTH + 1)  # (B, T)
    of_top = np.zeros((len(top), DEPTH + 1))
    of_top[:, : top.shape[1]] = np.take_along_axis(grades, top, 1)
    left, discounts = _places_left(), 1 / np.log2(np.arange(2, DEPTH + 2))
    first = of_top[
        :, left
    ]  # (B, DEPTH + 1, DEPTH): the grades of the first documents without each; the last ones are as they are
    is_found = first > 0
    reciprocal = (is_found / np.arange(1, DEPTH + 1)).max(2)
    without = np.stack([first @ discounts, reciprocal, is_found[..., 0], is_found.sum(2)], 2)  # not yet divided

    is_relevant = grades > 0
    best = -np.sort(-grades, axis=1)[:, : DEPTH + 1]
    best = np.pad(best, [(0, 0), (0, DEPTH + 1 - best.shape[1])])
    ideals = best[:, left] @ discounts  # (B, DEPTH + 1)

    places = np.full(grades.shape, DEPTH)
    np.put_along_axis(places, top[:, :DEPTH], np.arange(min(DEPTH, top.shape[1]))[None], axis=1)
    depends = (is_relevant | (places < DEPTH)) & ~beside & np.isfinite(cosines)
    query, document = np.nonzero(depends)  # (M,) each
    lost = grades[query, document]
    is_best = best[query] == lost[:, None]  # equal grades are worth the same
    ideal = ideals[query, np.where((lost > 0) & is_best.any(1), np.minimum(is_best.argmax(1), DEPTH), DEPTH)]
    relevant = is_relevant.sum(1)[query] - (lost > 0)
    new = np.ones((len(query), len(NAMES) + 1))
    new[:, :4] = without[query, places[query, document]]
    new[:, 0] /= np.maximum(ideal, 1e-300)
    new[:, 2:4] /= np.maximum(relevant, 1)[:, None]
    new[relevant == 0] = 0.0
    change = new - found[query]
    of_documents = [np.bincount(document, one, grades.shape[1]) for one in change.T]
    return np.stack(of_documents, 1)


def _first_documents(cosines: NDArray[np.float64], grades: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the first `count` of V documents of B queries, (B, count), or all there are, in the order of `rank_relevant`."""
    highest = grades.max(1, keepdims=True)
    behind = np.round(cosines, 6) - 5e-7 * grades / np.maximum(highest, 1e-300)  # less than cosines that differ
    if behind.shape[1] > count:
        near = np.argpartition(-behind, count - 1, axis=1)[:, :count]
    else:
        near = np.tile(np.arange(behind.shape[1]), (len(behind), 1))
    order = np.argsort(-np.take_along_axis(behind, near, 1), axis=1, kind="stable")
    return np.take_along_axis(near, order, 1)


@cache
def _places_left() -> NDArray[np.int64]:
    """Return which of `DEPTH` + 1 places come first without each, (`DEPTH` + 1, `DEPTH`); in the last row, none of the first is lost."""
    every = range(DEPTH + 1)
    return np.array([[place for place in every if place != lost] for lost in every])


def measure_queries(
    queries: NDArray[np.float64],
    documents: NDArray[np.float64],
    relevant: Sequence[NDArray[np.int64]],
    itself: NDArray[np.int64],
    *,
    grades: Sequence[NDArray[np.float64]] | None = None,
    beside: Sequence[NDArray[np.int64]] | None = None,
) -> Measures:
    """Return what Q queries and V documents say of `NAMES`.

    Args:
        queries: vectors of length 1, (Q, D).
        documents: vectors of length 1, (V, D).
        relevant: the numbers of the relevant documents of each query.
        itself: the number of the document that is the query's own text, (Q,): it is not looked for, nor found. -1 for none.
        grades: those of the relevant documents of each query, above 0; by default all are alike.
        beside: the documents that come and go with each query: how it would do without them is not measured.
    """
    found, changes = np.zeros((len(queries), len(NAMES) + 1)), np.zeros((len(documents), len(NAMES) + 1))
    for start in range(0, len(queries), _BLOCK):
        block = queries[start : start + _BLOCK] @ documents.T
        given, stays = np.zeros(block.shape), np.zeros(block.shape, bool)
        for i, cosines in enumerate(block):
            own, others = relevant[start + i], np.arange(len(documents)) != itself[start + i]
            given[i, own] = 1.0 if grades is None else grades[start + i]
            given[i, ~others] = 0.0
            stays[i, beside[start + i] if beside else []] = True
            if not np.isfinite(cosines[others]).all():
                found[start + i] = np.nan
            elif given[i].any():
                found[start + i] = *measure_ranks(*rank_relevant(cosines[others], given[i, others])), 1.0
            cosines[~others] = -np.inf
        of_block = found[start : start + _BLOCK]
        counts = of_block[:, -1] == 1
        changes += changes_without_documents(block[counts], given[counts], of_block[counts], stays[counts])
    return Measures(found, changes)


def measure_pairs(
    vectors: NDArray[np.float64],
    numbers: NDArray[np.float64],
    documents: NDArray[np.float64] | None = None,
    grades: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what `measure_queries` says of the query and of the documents of each of N rows, (N, 5) each.

    All positives of equal queries are relevant. A query does not find its own text. A document that several rows have is shared by them;
    one that `documents` have, too, stays without the row.

    Args:
        vectors: of length 1, of the query, its positive and its negatives, (N, 2 + M, D).
        numbers: a number for each text, (N, 2 + M): the same one for the same text, and -1 for a negative that a row lacks.
        documents: vector and number of further documents to find the positives among, (V, D + 1).
        grades: how relevant the positive of each row is, (N,), above 0; the highest one counts of equal pairs. By default all are alike.
    """
    (rows, texts, size), further = (
        vectors.shape,
        np.zeros((0, vectors.shape[2] + 1)) if documents is None else documents,
    )
    asked, first, query = np.unique(numbers[:, 0], return_index=True, return_inverse=True)
    own = np.concatenate([numbers[:, 1:].ravel(), further[:, size]])
    known, place, document = np.unique(own, return_index=True, return_inverse=True)
    lacking = int((known < 0).sum())  # the number of all texts that rows lack is the lowest
    known, place, document = known[lacking:], place[lacking:], document - lacking
    of_rows, of_further = document[: rows * (texts - 1)].reshape(rows, -1), document[rows * (texts - 1) :]
    positives = of_rows[:, 0]
    given, members = np.ones(rows) if grades is None else grades, members_of_groups(query)
    # from the least relevant on, so that the highest grade of equal pairs stays
    found = [dict(sorted(zip(positives[own], given[own], strict=True), key=lambda pair: pair[1])) for own in members]
    relevant = [np.array([*one], np.int64) for one in found]
    own_grades = [np.array([*one.values()], np.float64) for one in found]
    pool = np.concatenate([vectors[:, 1:].reshape(-1, size), further[:, :size]])[place]
    at = np.searchsorted(known, asked).clip(max=len(known) - 1)
    itself = np.where(known[at] == asked, at, -1)
    beside = [of_rows[own].ravel() for own in members]
    measures = measure_queries(vectors[first, 0], pool, relevant, itself, grades=own_grades, beside=beside)
    is_there, changes = of_rows >= 0, measures.documents
    changes /= np.maximum(np.bincount(of_rows[is_there], minlength=len(pool)), 1)[:, None]
    changes[of_further] = 0.0
    return measures.queries[query], np.where(is_there[..., None], changes[of_rows], 0.0).sum(1)


def measure_classes(
    vectors: NDArray[np.float64], classes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what `measure_queries` says of each of N texts as a query and as a document, (N, 5) each: relevant are others of its class.

    Args:
        vectors: of length 1, (N, D).
        classes: a number for the class of each, (N,).
    """
    known = np.unique(classes, return_inverse=True)[1]
    members = members_of_groups(known)
    return measure_queries(vectors, vectors, [members[own] for own in known], np.arange(len(vectors)))


def center_changes(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers less their mean, (N, S), whose sums are exactly 0, in any order: they are whole multiples of a small number."""
    units = np.round(changes * _UNITS)
    surplus = units.sum(0)
    units -= surplus // len(units)
    units -= np.arange(len(units))[:, None] < surplus % len(units)
    return units / _UNITS
