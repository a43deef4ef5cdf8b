"""Whether the champion is less sure of the new train rows than of the held-out ones, the part of drift that needs a model.

It learned from neither. The train rows that it did learn from would not do: a model is surer of those than of any others.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from params import DataError, ModelError
from params.foundation.hashing import file_sha256
from tasks.drift import two_sample
from tasks.drift.report import CONFIDENCE_ERROR_SHARE, ChampionConfidence, Change, DriftReport
from tasks.evaluation.champion import ChampionStatus
from tasks.evaluation.groups import RowGroups
from tasks.evaluation.scoring import Scores, score
from tasks.progress import progress
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.encoding import Encoder, sort_longest_first, write_sequences
from trainer import objectives
from trainer.data.shards import Manifest, Shard
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.objective import Example, Objective

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MAX_HELD_OUT = 10_000
_PERMUTATIONS = 1999


def reason_not_comparable(objective: Objective[Any], drift: DriftReport | None, published: ChampionStatus) -> str:
    """Return why the champion's confidence cannot be compared; empty if it can. `drift` is what validate found, if it looked."""
    if drift is None:
        return "validate did not look for new rows (validation.drift)"
    if not objectives.overrides(objective, "confidence"):
        return "without labels, the scores of this objective do not say how sure a model is"
    if published.champion is None:
        return f"no model was published yet as {drift.repo_id}"
    if published.folder is None:
        return "the model of this run is the published one"
    revision = published.champion.tag or published.champion.commit
    if drift.revision == revision:
        return drift.reason or ("" if drift.new_row_ids else "there are no new rows")
    seen = drift.reason or f"it compared with {drift.revision}"
    return f"validate did not look at {revision}, which is published now: {seen}"


def score_new_rows(
    network: PreTrainedModel, encoder: Encoder, rows: SplitRows, drift: DriftReport, *, batch_size: int, folder: Path
) -> Scores:
    """Return the champion's scores of the new rows; `folder` does not exist yet and holds their tokens meanwhile.

    Raises:
        DataError: the rows cannot be encoded.
        ModelError: a score is not finite.
    """
    folder.mkdir()
    path, first = folder / "00000.arrow", min(drift.new_row_ids)

    def examples() -> Iterator[Example]:
        picked = rows.pick(drift.new_row_ids)
        for row in progress(picked, what="evaluate: new rows for the champion", total=len(drift.new_row_ids)):
            for encoded in encoder.encode([row]):
                yield from encoded.examples

    try:
        lengths, _ = write_sequences(examples(), path, first_row_id=first)
        if not lengths:
            raise DataError(str(rows.folder), "the new rows give no sequence of tokens", "add rows")
        sort_longest_first(path, lengths)
        sha256 = file_sha256(path)
        Manifest.write(folder, [Shard(name=path.name, rows=len(lengths), first_row_id=first, sha256=sha256)])
        return score(
            network,
            Sequences(folder),
            objective=encoder.objective,
            metrics=EvaluationMetrics(
                encoder.objective, state=encoder.state, tokenizer=encoder.tokenizer, metrics=None
            ),
            batch_size=batch_size,
            name="champion on new rows",
            groups=RowGroups.read(rows, drift.new_row_ids),
        )
    finally:
        shutil.rmtree(folder)


def compare_confidence(
    objective: Objective[Any], drift: DriftReport, held_out: Scores, new: Scores, *, split: str, seed: int
) -> ChampionConfidence:
    """Compare the champion's scores of new rows with those of a held-out split: the mean falls, and not by chance."""
    random = np.random.default_rng(seed)
    if len(held_out) > _MAX_HELD_OUT:
        held_out = held_out.take(np.sort(random.choice(len(held_out), _MAX_HELD_OUT, replace=False)))
    known, found = (objective.confidence(scores.columns) for scores in (held_out, new))
    assert known is not None
    assert found is not None
    sides = two_sample.Observations.of(len(known), len(found), (held_out.groups, new.groups))
    error = (1 - drift.confidence) * CONFIDENCE_ERROR_SHARE
    permutations = max(_PERMUTATIONS, math.ceil(2 / error) - 1)
    values = np.concatenate([known, found])
    before, now, p_value = two_sample.mean_decrease_test(values, sides, two_sample.Permutations(permutations, random))
    change = Change(
        what="confidence of the published model",
        measure="fall of the mean",
        effect=round(before - now, 4),
        floor=drift.min_confidence_fall,
        p_value=p_value,
        moved=p_value <= error and before - now >= drift.min_confidence_fall,
        detail=f"mean {now:.3f} on {len(new):,} new rows, {before:.3f} on {len(held_out):,} {split} rows",
    )
    return ChampionConfidence(revision=drift.revision, change=change)


def measure_confidence(
    network: PreTrainedModel,
    encoder: Encoder,
    drift: DriftReport,
    held_out: Scores,
    *,
    train: SplitRows,
    batch_size: int,
    split: str,
    seed: int,
    folder: Path,
) -> ChampionConfidence:
    """Score the new rows and compare; what goes wrong is a reason, because this only reports."""
    try:
        new = score_new_rows(network, encoder, train, drift, batch_size=batch_size, folder=folder)
    except (DataError, ModelError) as error:
        return ChampionConfidence(reason=f"{error.where}: {error.what}")
    return compare_confidence(encoder.objective, drift, held_out, new, split=split, seed=seed)
