"""Metrics of retrieval: where the relevant documents of each query stand among all documents.

Documents are ranked by the cosine, rounded to six decimals; where a relevant one and another have the same, the other is first. So
a model that gives all texts the same vector finds nothing.
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


def rank_relevant(cosines: NDArray[np.float64], relevant: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ranks of the relevant of V documents, ascending from 1, for the cosines (V,) of one query."""
    rounded = np.round(cosines, 6)
    others, own = np.sort(rounded[~relevant]), -np.sort(-rounded[relevant])
    before = len(others) - np.searchsorted(others, own, side="left")
    ranks: NDArray[np.int64] = before + np.arange(1, len(own) + 1)
    return ranks


def measure_ranks(ranks: NDArray[np.int64]) -> tuple[float, float, float, float]:
    """Return `NAMES` of a query whose relevant documents have these ranks, with equal gains.

    NDCG is that of Järvelin and Kekäläinen 2002 (https://doi.org/10.1145/582415.582418) with the discount 1 / log2(rank + 1).
    """
    found = ranks[ranks <= DEPTH]
    best = (1 / np.log2(np.arange(2, min(len(ranks), DEPTH) + 2))).sum()
    return (
        float((1 / np.log2(found + 1)).sum() / best),
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
) -> NDArray[np.float64]:
    """Return `NAMES` of each of Q queries, and 1, (Q, 5); zeros without a relevant document, NaN if a vector is not finite.

    Args:
        queries: vectors of length 1, (Q, D).
        documents: vectors of length 1, (V, D).
        relevant: the numbers of the relevant documents of each query.
        itself: the number of the document that is the query's own text, (Q,): it is not looked for, nor found. -1 for none.
    """
    found = np.zeros((len(queries), len(NAMES) + 1))
    for i, own in enumerate(relevant):
        if i % _BLOCK == 0:
            block = queries[i : i + _BLOCK] @ documents.T
        is_relevant, others = np.zeros(len(documents), bool), np.arange(len(documents)) != itself[i]
        is_relevant[own] = True
        cosines, is_relevant = block[i % _BLOCK][others], is_relevant[others]
        if not np.isfinite(cosines).all():
            found[i] = np.nan
        elif is_relevant.any():
            found[i] = *measure_ranks(rank_relevant(cosines, is_relevant)), 1.0
    return found


def measure_pairs(
    vectors: NDArray[np.float64], numbers: NDArray[np.float64], documents: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return what `measure_queries` says of the query of each of N rows, (N, 5). All positives of equal queries are relevant.

    A query does not find its own text.

    Args:
        vectors: of length 1, of the query, its positive and its negatives, (N, 2 + M, D).
        numbers: a number for each text, (N, 2 + M): the same one for the same text.
        documents: vector and number of further documents to find the positives among, (V, D + 1).
    """
    (rows, texts, size), further = (
        vectors.shape,
        np.zeros((0, vectors.shape[2] + 1)) if documents is None else documents,
    )
    asked, first, query = np.unique(numbers[:, 0], return_index=True, return_inverse=True)
    own = np.concatenate([numbers[:, 1:].ravel(), further[:, size]])
    known, place, document = np.unique(own, return_index=True, return_inverse=True)
    positives = document[: rows * (texts - 1)].reshape(rows, -1)[:, 0]
    relevant = [np.unique(positives[members]) for members in members_of_groups(query)]
    pool = np.concatenate([vectors[:, 1:].reshape(-1, size), further[:, :size]])[place]
    at = np.searchsorted(known, asked).clip(max=len(known) - 1)
    itself = np.where(known[at] == asked, at, -1)
    return measure_queries(vectors[first, 0], pool, relevant, itself)[query]


def measure_classes(vectors: NDArray[np.float64], classes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `measure_queries` says of N texts, (N, 5), from their vectors (N, D): relevant are others of the same class, (N,)."""
    known = np.unique(classes, return_inverse=True)[1]
    members = members_of_groups(known)
    return measure_queries(vectors, vectors, [members[own] for own in known], np.arange(len(vectors)))
