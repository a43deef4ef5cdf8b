"""What a linear model holds of the labels of train rows that it has not seen, from features that the trained network makes of their texts.

The trained model itself has learned the wrong labels, too. So it only makes features: the mean of the last hidden states of a text. Linear
discriminants of them, fitted on four fifths of the rows, then say which labels the last fifth has (cross-fitting).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tasks.evaluation.scoring import RowGroups
from tasks.progress import iterate_with_progress
from trainer.data.shards import ROW_ID

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trainer.data.tokens import Sequences
    from trainer.loop.metrics import EvaluationMetrics

MAX_ROWS: Final = 10_000
"""Most train rows that are looked at; of more, seed and number of rows choose them by chance."""
FOLDS: Final = 5
_CHUNK: Final = 1000
_SHRINKAGE: Final = 0.1
"""Share of the covariance that is that of independent features of equal variance: few rows say little of many features."""
_SURE: Final = 60.0
"""A logit that leaves no doubt."""


class TrainFeatures(NamedTuple):
    """The features of N train rows."""

    row_ids: NDArray[np.int64]
    """(N,), ascending."""
    features: NDArray[np.float32]
    """(N, H)."""
    labels: NDArray[Any]
    """(N,) integers, the class of each row; or (N, L) floats, 1 for each label that a row has."""


def measure_features(
    network: PreTrainedModel,
    sequences: Sequences,
    metrics: EvaluationMetrics,
    *,
    batch_size: int,
    batch_tokens: int,
    seed: int,
) -> TrainFeatures | None:
    """Read train rows, one sequence each; None if the network gives no hidden state for each token."""
    places = np.arange(len(sequences))
    if len(places) > MAX_ROWS:
        places = np.sort(np.random.default_rng([seed, len(places)]).choice(places, MAX_ROWS, replace=False))
    row_ids, labels, features = list[int](), list[Any](), list[Any]()

    def batches() -> Iterator[list[Any]]:
        for start in range(0, len(places), _CHUNK):
            some = sequences.__getitems__(places[start : start + _CHUNK].tolist())
            some.sort(key=lambda example: len(example["input_ids"]), reverse=True)
            for examples, _ in metrics.batches(network, some, batch_size=batch_size, batch_tokens=batch_tokens):
                yield examples

    total = math.ceil(len(places) / batch_size)
    with _mean_hidden_states(network) as kept:
        for examples in iterate_with_progress(batches(), what="evaluate: batches of train rows", total=total):
            row_ids += [example[ROW_ID] for example in examples]
            labels += [example["labels"] for example in examples]
            if not kept:
                return None
            features.append(kept.pop().float().cpu().numpy())
    order = np.argsort(row_ids)
    return TrainFeatures(np.array(row_ids)[order], np.concatenate(features)[order], np.array(labels)[order])


@contextlib.contextmanager
def _mean_hidden_states(network: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Yield a list to which each forward pass adds the mean hidden state of each text, (B, H)."""
    kept = list[Any]()

    def keep(_: Any, __: Any, given: dict[str, Any], outputs: Any) -> None:
        hidden, mask = outputs[0], given.get("attention_mask")
        if mask is not None and hidden.shape[:2] == mask.shape:
            weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
            kept.append((hidden * weights).sum(1) / weights.sum(1))

    handle = network.base_model.register_forward_hook(keep, with_kwargs=True)
    try:
        yield kept
    finally:
        handle.remove()


def assign_folds(train: TrainFeatures, groups: RowGroups | None, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row, (N,): each has its share of each class, and rows of a group are in one fold."""
    chance = np.random.default_rng(seed).permutation(len(train.row_ids))
    by = train.labels if train.labels.ndim == 1 else np.zeros_like(chance)
    folds = np.empty_like(chance)
    folds[np.lexsort((chance, by))] = np.arange(len(chance)) % FOLDS
    if groups is not None:
        _, first, own = np.unique(groups.of(train.row_ids), return_index=True, return_inverse=True)
        folds = folds[first][own]
    return folds


def cross_fit(
    train: TrainFeatures, folds: NDArray[np.int64], labels: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return logits of so many labels for each row, (N, C), and for which of the labels each row is judged, (N, C).

    Of a label with few rows outside of a row's fold, nothing can be said: there the logits agree with what the row says.
    """
    is_class = train.labels.ndim == 1
    given = np.eye(labels)[train.labels] if is_class else train.labels  # (N, C)
    spread = train.features.std(0, dtype=np.float64)
    features = (train.features - train.features.mean(0, dtype=np.float64)) / np.where(spread > 0, spread, 1)
    logits, judged = np.empty(given.shape), np.empty(given.shape, bool)
    for fold in range(FOLDS):
        out = folds == fold
        weights, bias, known = _discriminants(features[~out], given[~out], is_class=is_class)
        logits[out] = features[out] @ weights + bias
        judged[out] = known
    if is_class:
        logits[~judged] = -_SURE
        judged = np.repeat((judged & (given > 0)).any(1, keepdims=True), labels, 1)
    return np.where(judged, logits, _SURE * (2 * given - 1)), judged


def _discriminants(
    features: NDArray[np.float64], given: NDArray[np.float64], *, is_class: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return weights (H, C), bias (C,) and which labels have enough rows, (C,), of linear discriminants; `given` is (N, C), 0 or 1.

    The logits are those of Gaussians with one covariance: of all classes, or of the rows with and without each label (Hastie, Tibshirani and
    Friedman 2009, The Elements of Statistical Learning, section 4.3). Without classes, the covariance within the two sides of a label
    follows from that of all rows by the formula of Sherman and Morrison, so one factorization serves all labels.
    """
    rows, width = features.shape
    counts = given.sum(0)
    known = counts >= FOLDS - 1 if is_class else np.minimum(counts, rows - counts) >= FOLDS - 1
    sums = given.T @ features  # (C, H)
    means = sums / np.maximum(counts, 1)[:, None]
    share = np.clip(counts / rows, 0.5 / rows, 1 - 0.5 / rows)
    within = features - given @ means if is_class else features - features.mean(0)
    covariance = within.T @ within / rows
    level = max(float(np.trace(covariance)) / width, np.finfo(float).tiny)
    covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * level * np.eye(width)
    if is_class:
        weights = np.linalg.solve(covariance, means.T)
        return weights, np.log(share) - (means.T * weights).sum(0) / 2, known
    others = (features.sum(0) - sums) / np.maximum(rows - counts, 1)[:, None]
    apart = means - others
    weights = np.linalg.solve(covariance, apart.T)
    between = (1 - _SHRINKAGE) * share * (1 - share) * (apart.T * weights).sum(0)
    weights = weights / np.maximum(1 - between, 1e-6)
    return weights, np.log(share / (1 - share)) - ((means + others).T * weights).sum(0) / 2, known
