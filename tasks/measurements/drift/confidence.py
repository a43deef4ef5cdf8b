"""The part of drift that needs a model: whether the champion is less sure of the new train rows than of the held-out ones.

It learned from neither. The train rows that it did learn from would not do: a model is surer of those than of any others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from params import DataError, ModelError
from tasks.evaluation.champion import ChampionStatus
from tasks.evaluation.scoring import RowGroups, RowScores, score_rows
from tasks.measurements.drift import two_sample
from tasks.measurements.drift.report import CONFIDENCE_ERROR_SHARE, ChampionConfidence, DriftReport, MeasuredChange
from tasks.progress import iterate_with_progress
from tasks.shards.split_rows import SplitRows
from tasks.tokenization.encoding import RowEncoder
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.lazy_imports import PreTrainedModel
from trainer.objectives.bases.objective import Objective

_UNSURE = 25
"""New rows that people are asked to look at."""
_MAX_HELD_OUT = 10_000
_PERMUTATIONS = 1999


def why_confidence_not_comparable(
    objective: Objective[Any], drift: DriftReport | None, published: ChampionStatus
) -> str:
    """Return why the champion's confidence cannot be compared; empty if it can. `drift` is what validate found, if it looked."""
    if drift is None:
        return "validate did not look for new rows (validation.drift)"
    if not objectives.overrides_method(objective, "confidence"):
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


def measure_champion_confidence(
    network: PreTrainedModel,
    encoder: RowEncoder,
    drift: DriftReport,
    held_out: RowScores,
    *,
    train: SplitRows,
    batch_size: int,
    split: str,
    seed: int,
) -> ChampionConfidence:
    """Score the new rows, a sample that fits into memory, and compare; what goes wrong is a reason, because this only reports."""
    objective, ids = encoder.objective, drift.new_row_ids
    try:
        picked = iterate_with_progress(train.pick(ids), what="evaluate: new rows for the champion", total=len(ids))
        examples = [example for row in picked for encoded in encoder.encode([row]) for example in encoded.examples]
        if not examples:
            return ChampionConfidence(reason=f"{train.folder}: the new rows give no sequence of tokens")
        new = score_rows(
            network,
            sorted(examples, key=objective.length, reverse=True),
            metrics=EvaluationMetrics(objective, state=encoder.state, tokenizer=encoder.tokenizer, metrics=None),
            batch_size=batch_size,
            name="champion on new rows",
            groups=RowGroups.read(train, ids),
        )
    except (DataError, ModelError) as error:
        return ChampionConfidence(reason=f"{error.where}: {error.what}")
    return compare_champion_confidence(objective, drift, held_out, new, split=split, seed=seed)


def compare_champion_confidence(
    objective: Objective[Any], drift: DriftReport, held_out: RowScores, new: RowScores, *, split: str, seed: int
) -> ChampionConfidence:
    """Compare the champion's scores of new rows with those of a held-out split: the mean falls, and not by chance."""
    random = np.random.default_rng(seed)
    if len(held_out) > _MAX_HELD_OUT:
        held_out = held_out.take(np.sort(random.choice(len(held_out), _MAX_HELD_OUT, replace=False)))
    known, found = (objective.confidence(scores.columns) for scores in (held_out, new))
    assert known is not None
    assert found is not None
    sides = two_sample.ObservationUnits.of(len(known), len(found), (held_out.groups, new.groups))
    error = (1 - drift.confidence) * CONFIDENCE_ERROR_SHARE
    permutations = max(_PERMUTATIONS, math.ceil(2 / error) - 1)
    values = np.concatenate([known, found])
    before, now, p_value = two_sample.mean_decrease_test(
        values, sides, two_sample.PermutationSettings(permutations, random)
    )
    change = MeasuredChange(
        what="confidence of the published model",
        measure="fall of the mean",
        effect=round(before - now, 4),
        floor=drift.min_confidence_fall,
        p_value=p_value,
        moved=p_value <= error and before - now >= drift.min_confidence_fall,
        detail=f"mean {now:.3f} on {len(new):,} new rows, {before:.3f} on {len(held_out):,} {split} rows",
    )
    least = np.argsort(found, kind="stable")[:_UNSURE]
    unsure = zip(new.row_ids[least].tolist(), found[least].round(4).tolist(), strict=True)
    return ChampionConfidence(revision=drift.revision, change=change, unsure=tuple(unsure))
