"""The space of vectors that a model puts texts into: the documents of a search, and how far two models' spaces are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.rows import Example
from trainer.objectives.bases.texts.tokenizing import Tokenizer


class VectorSpace(NamedTuple):
    """What an objective says of its vectors."""

    document_column: str | None
    """The column of `data.corpus` with a document; None if no documents are ranked."""
    encode_documents: Callable[[Sequence[str], Tokenizer, int], list[Example]]
    """Returns an example for each document, of at most so many tokens, for `collate` and `score_batch`."""
    vectors_of_texts: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    """Returns the vectors of length 1, (V, D), of the V different texts of N rows that `score_batch` measured, (N, M). Their order
    depends on the texts only."""
    validation_documents: int = 10_000
    """Most documents of `data.corpus` that the evaluations during training search."""


def compare_spaces(vectors: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean cosine of V texts' vectors of length 1 in two spaces, (V, D) each: as they are, and after the best rotation.

    The best rotation or reflection is the orthogonal Procrustes solution (Schönemann 1966, https://doi.org/10.1007/BF02289451): with it, the
    sum of all cosines is the sum of the singular values of `vectors.T @ others`.
    """
    singular_values = np.linalg.svd(vectors.T @ others, compute_uv=False)
    return float((vectors * others).sum() / len(vectors)), float(singular_values.sum() / len(vectors))
