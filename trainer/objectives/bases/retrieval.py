"""Metrics of retrieval: where the relevant documents of each query stand among all documents.

Documents are ranked by the cosine, rounded to six decimals; of those that have the same, the less relevant is first. So a model
that gives all texts the same vector finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer.objectives.bases.lazy_imports import NDArray, np

DEPTH: Final = 10
"""The last rank that NDCG, the reciprocal rank and recall look at."""
NAMES: Final = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")
_BLOCK: Final = 256
"""Queries whose cosines are in memory at a time."""


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


def measure_queries(
    queries: NDArray[np.float64],
    documents: NDArray[np.float64],
    relevant: Sequence[NDArray[np.int64]],
    itself: NDArray[np.int64],
    grades: Sequence[NDArray[np.float64]] | None = None,
) -> NDArray[np.float64]:
    """Return `NAMES` of each of Q queries, and 1, (Q, 5); zeros without a relevant document, NaN if a vector is not finite.

    Args:
        queries: vectors of length 1, (Q, D).
        documents: vectors of length 1, (V, D).
        relevant: the numbers of the relevant documents of each query.
        itself: the number of the document that is the query's own text, (Q,): it is not looked for, nor found. -1 for none.
        grades: those of the relevant documents of each query, above 0; by default all are alike.
    """
    found = np.zeros((len(queries), len(NAMES) + 1))
    for i, own in enumerate(relevant):
        if i % _BLOCK == 0:
            block = queries[i : i + _BLOCK] @ documents.T
        given, others = np.zeros(len(documents)), np.arange(len(documents)) != itself[i]
        given[own] = 1.0 if grades is None else grades[i]
        cosines, given = block[i % _BLOCK][others], given[others]
        if not np.isfinite(cosines).all():
            found[i] = np.nan
        elif given.any():
            found[i] = *measure_ranks(*rank_relevant(cosines, given)), 1.0
    return found


def measure_pairs(
    vectors: NDArray[np.float64],
    numbers: NDArray[np.float64],
    documents: NDArray[np.float64] | None = None,
    grades: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return what `measure_queries` says of the query of each of N rows, (N, 5). All positives of equal queries are relevant.

    A query does not find its own text.

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
    positives = document[: rows * (texts - 1)].reshape(rows, -1)[:, 0]
    given, members = np.ones(rows) if grades is None else grades, members_of_groups(query)
    # from the least relevant on, so that the highest grade of equal pairs stays
    found = [dict(sorted(zip(positives[own], given[own], strict=True), key=lambda pair: pair[1])) for own in members]
    relevant = [np.array([*one], np.int64) for one in found]
    own_grades = [np.array([*one.values()], np.float64) for one in found]
    pool = np.concatenate([vectors[:, 1:].reshape(-1, size), further[:, :size]])[place]
    at = np.searchsorted(known, asked).clip(max=len(known) - 1)
    itself = np.where(known[at] == asked, at, -1)
    return measure_queries(vectors[first, 0], pool, relevant, itself, own_grades)[query]


def measure_classes(vectors: NDArray[np.float64], classes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `measure_queries` says of N texts, (N, 5), from their vectors (N, D): relevant are others of the same class, (N,)."""
    known = np.unique(classes, return_inverse=True)[1]
    members = members_of_groups(known)
    return measure_queries(vectors, vectors, [members[own] for own in known], np.arange(len(vectors)))
