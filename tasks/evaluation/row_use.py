"""How often earlier comparisons have used the held-out rows (`evaluation.gate.over: test_rows`).

Held-out rows usually change a little from run to run. Each verdict in the log therefore has a sketch of its rows: the 64
smallest hashes of their inputs (bottom-k sketch, Cohen and Kaplan 2007, https://doi.org/10.1145/1281100.1281133). Today's rows
whose hash is below the largest in a sketch are a random sample, and the sketch says which of them that comparison used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from params.sections.evaluation import Gate
from tasks.evaluation.report import HeldOutRowUse
from tasks.hub_client.repository_name import RepositoryName, name_repository
from tasks.release_log.events import ReleaseEvent, SketchOf
from tasks.shards.split_rows import SplitRows
from trainer.data.shards import ROW_ID
from trainer.objectives.bases.objective import Objective

RowHashes = NDArray[np.uint64]  # (N,), ascending and distinct
_SKETCH_SIZE = 64


def hash_texts(texts: Iterable[str]) -> RowHashes:
    """Hash texts. `data.split` uses another hash: with the same one, held-out rows would all have similar hashes."""
    digests = b"".join(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.unique(np.frombuffer(digests, np.uint64))


def hash_rows_of_split(
    rows: SplitRows, row_ids: NDArray[np.int64], objective: Objective[Any]
) -> dict[SketchOf, RowHashes]:
    """Hash the rows of a split that are in `row_ids`, as sketches have them now and as older ones do.

    A row is known by the words of its input: neither a new column nor a corrected target nor other white space makes it a new one. A row
    without an input, such as the text of a completion alone, is known by its whole text.
    """
    scored, inputs, texts = set(row_ids.tolist()), list[str](), list[str]()
    for row in rows.rows():
        if row[ROW_ID] in scored:
            texts.append(objective.text(row))
            given = objective.input_text(row)
            inputs.append(given if given.strip() else texts[-1])
    words = (" ".join(given.split()) for given in inputs)
    return {"words": hash_texts(words), "inputs": hash_texts(inputs), "texts": hash_texts(texts)}


def make_row_sketch(hashes: RowHashes) -> tuple[str, ...]:
    """Return the smallest hashes, in hexadecimal."""
    return tuple(f"{value:016x}" for value in hashes[:_SKETCH_SIZE].tolist())


def estimate_reused_row_share(earlier: Sequence[str], hashes: RowHashes) -> float:
    """Estimate which share of rows is among the rows of an earlier sketch; 1, which is cautious, if nothing can be said."""
    found = np.array([int(value, 16) for value in earlier], np.uint64)
    sample = hashes if len(found) < _SKETCH_SIZE else hashes[hashes <= found[-1]]  # a smaller sketch holds all rows
    return float(np.isin(sample, found).mean()) if len(sample) else 1.0


class ComparisonId(NamedTuple):
    """What makes a comparison another one. Whoever evaluates again with the same of all these gets the same result."""

    repository: RepositoryName
    weights: str | None
    commit: str | None
    """The champion's commit; None for the untrained model."""
    data: str | None
    metric: str | None


def measure_row_use(
    gate: Gate, hashes: Mapping[SketchOf, RowHashes], entries: Iterable[ReleaseEvent], comparison: ComparisonId
) -> HeldOutRowUse:
    """Return how often comparisons in the logs of all recipes, other than this one, have used today's rows.

    What counts is the repository: a recipe that publishes there under another name uses the same rows. Where names do not tell whether two
    are one (`RepositoryName.may_be`), it counts.

    A comparison with error e counts e / (today's error) times, so that the errors of all add up to that of
    `gate.confidence`, even if `gate.comparisons` was changed in between.
    """
    earlier: dict[ComparisonId, float] = {}
    for one in entries:
        where = name_repository(one.endpoint, one.repo_id)
        made = ComparisonId(where, one.weights, one.commit, one.data, one.metric)
        is_here = where.may_be(comparison.repository)
        if one.event == "verdict" and one.row_sketch and one.confidence and is_here and made != comparison:
            error = (1 - one.confidence) / (1 - gate.comparison_confidence)
            uses = error * estimate_reused_row_share(one.row_sketch, hashes[one.row_sketch_of])
            earlier[made] = max(uses, earlier.get(made, 0.0))
    return HeldOutRowUse(uses=sum(earlier.values()), comparisons=gate.planned_comparisons)
