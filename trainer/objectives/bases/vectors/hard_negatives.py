"""Hard negatives: texts that a model finds near to an anchor, and that are none of its positives.

Candidates are the positives of all training rows and the documents of `data.corpus`, each text once. A candidate that is nearly as near as
the anchor's own positive is often one itself, which nobody has marked. It is left out if its cosine is above that of the positive less a share
of it (TopK-PercPos in Moreira et al. 2024, https://arxiv.org/abs/2407.15831), as `relative_margin` of sentence-transformers'
`mine_hard_negatives` does. Of an anchor with several positives, the least near one decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from params import Problem
from params.schema import Training
from trainer.objectives.bases.lazy_imports import NDArray, np
from trainer.objectives.bases.metrics.retrieval import members_of_groups
from trainer.objectives.bases.rows import Example
from trainer.objectives.bases.vectors.several_texts import NO_TEXT

BLOCK: Final = 256
"""Anchors whose cosines with all candidates are in memory at a time."""
_ANCHOR, _POSITIVE = ("input_ids", "text_0"), ("positive_input_ids", "text_1")


def find_negative_problems(columns: Sequence[str], listed: int, mined: int, training: Training) -> Iterator[Problem]:
    """Yield what is wrong with the keys of negatives: the columns, how many of a list are read, and how many are mined."""
    if listed and len(columns) != 1:
        what = f"needs one column with lists, and negative_columns names {len(columns) or 'none'}"
        yield Problem(("objective", "listed_negatives"), what, "name the column with the lists, or remove this key")
    if mined and training.streaming:
        what = "reads all rows before the first step, which streaming is meant to avoid"
        yield Problem(("objective", "mined_negatives"), what, "remove it, or set `training.streaming: false`")


class SingleTexts(Sequence[Example]):
    """One text of some sequences, each as an example by itself; `keys` name its tokens and its number in a sequence."""

    def __init__(self, sequences: Any, places: NDArray[np.int64], keys: tuple[str, str] = _ANCHOR) -> None:
        self._sequences, self._places, self._keys = sequences, places, keys

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return several, which takes less time than one after another."""
        tokens, number = self._keys
        found = self._sequences.__getitems__([int(self._places[i]) for i in indices])
        return [{"row_id": one["row_id"], "input_ids": one[tokens], "text_0": one[number]} for one in found]


class MinableTexts(NamedTuple):
    """The different texts of N training rows and of a corpus."""

    anchors: SingleTexts
    """Q different anchors."""
    anchor_of_row: NDArray[np.int64]
    """Which of them each row has, (N,)."""
    candidates: tuple[SingleTexts, ...]
    """V different texts: of the rows, and of the corpus."""
    sources: NDArray[np.int64]
    """Where each candidate is, (V,): in the positive of this row, or from N on in this document."""
    relevant: list[NDArray[np.int64]]
    """The candidates that are positives of each anchor."""
    itself: NDArray[np.int64]
    """The candidate that is the anchor's own text, (Q,); -1 for none."""


def find_minable_texts(rows: Any, documents: Any) -> MinableTexts:
    """Return the texts of the sequences `rows` and of `documents`, if there are any; both know the `numbers` of their texts."""
    anchors, positives = (rows.numbers(name)[1] for _, name in (_ANCHOR, _POSITIVE))
    of_corpus = np.zeros(0, np.int64) if documents is None else documents.numbers(_ANCHOR[1])[1]
    asked, first_row, anchor_of_row = np.unique(anchors, return_index=True, return_inverse=True)
    known, sources, candidate = np.unique(
        np.concatenate([positives, of_corpus]), return_index=True, return_inverse=True
    )
    order = np.argsort(sources)  # those of the rows first, each in the order in which the rows and documents stand
    candidate, known, sources = np.argsort(order)[candidate], known[order], sources[order]
    of_rows = sources < len(positives)
    parts = [SingleTexts(rows, sources[of_rows], _POSITIVE)]
    parts += [] if documents is None else [SingleTexts(documents, sources[~of_rows] - len(positives))]
    place = {number: i for i, number in enumerate(known.tolist())}
    return MinableTexts(
        anchors=SingleTexts(rows, first_row),
        anchor_of_row=anchor_of_row,
        candidates=tuple(parts),
        sources=sources,
        relevant=[np.unique(candidate[own]) for own in members_of_groups(anchor_of_row)],
        itself=np.array([place.get(number, -1) for number in asked.tolist()], np.int64),
    )


def mine_negatives(
    anchors: NDArray[np.float32],
    candidates: NDArray[np.float32],
    relevant: Sequence[NDArray[np.int64]],
    itself: NDArray[np.int64],
    *,
    count: int,
    margin: float,
) -> NDArray[np.int64]:
    """Return the nearest candidates of each of B anchors that are negatives, nearest first, (B, count); -1 where there are fewer.

    Of candidates with the same cosine, to six decimals, the first one comes first.

    Args:
        anchors: vectors of length 1, (B, D).
        candidates: vectors of length 1, (V, D).
        relevant: the numbers of the candidates that are positives of each anchor.
        itself: the number of the candidate that is the anchor's own text, (B,); -1 for none.
        count: how many are wanted.
        margin: the share of the positive's cosine by which that of a negative is lower at least.
    """
    cosines, found = np.round(anchors @ candidates.T, 6), np.full((len(anchors), count), -1, np.int64)
    for i, (own, positives) in enumerate(zip(cosines, relevant, strict=True)):
        least = own[positives].min()
        own[own > least - abs(least) * margin] = -np.inf
        own[[*positives, *([itself[i]] if itself[i] >= 0 else [])]] = -np.inf
        nearest = np.flatnonzero(own >= np.partition(own, -min(count, len(own)))[-min(count, len(own))])
        nearest = nearest[np.argsort(-own[nearest], kind="stable")][:count]
        nearest = nearest[np.isfinite(own[nearest])]
        found[i, : len(nearest)] = nearest
    return found


class MinedRows(Sequence[Example]):
    """Training rows with mined negatives, behind those that they have.

    Args:
        rows: the sequences of N rows.
        documents: those of the corpus, or None.
        mined: for each row, (N, M), where a negative is: in the positive of this row, or from N on in this document; -1 for none.
    """

    def __init__(self, rows: Any, documents: Any, mined: NDArray[np.int64]) -> None:
        self._rows, self._documents, self._mined = rows, documents, mined

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return several rows, which takes less time than one after another."""
        wanted = np.unique(self._mined[list(indices)])
        of_rows, of_corpus = wanted[(wanted >= 0) & (wanted < len(self))], wanted[wanted >= len(self)]
        texts = [*SingleTexts(self._rows, of_rows, _POSITIVE).__getitems__(range(len(of_rows)))]
        if len(of_corpus):
            texts += SingleTexts(self._documents, of_corpus - len(self)).__getitems__(range(len(of_corpus)))
        known = dict(zip(wanted[wanted >= 0].tolist(), texts, strict=True))
        return [
            one | _negatives(one, [known.get(source) for source in self._mined[index].tolist()])
            for index, one in zip(indices, self._rows.__getitems__(indices), strict=True)
        ]


def _negatives(row: Example, mined: Sequence[Example | None]) -> Example:
    """Return the values of a row for its mined negatives; the text of one that it lacks is a single token."""
    given = sum(name.startswith("text_") for name in row)
    lacking = {"input_ids": row["positive_input_ids"][:1], "text_0": NO_TEXT}
    found: Example = {}
    for i, one in enumerate(mined):
        found[f"negative{given - 2 + i}_input_ids"] = (one or lacking)["input_ids"]
        found[f"text_{given + i}"] = (one or lacking)["text_0"]
    return found
