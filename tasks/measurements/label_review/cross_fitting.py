"""What a linear model holds of the labels of train rows that it has not seen, from features that the untrained network makes of their texts.

The trained model has learned the wrong labels, too: features of it repeat them. So the features are those of the model before training, the
mean of the last hidden states of a text. A logistic regression on them, fitted on four fifths of the rows, then says which labels the last
fifth has (cross-fitting).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from xxhash import xxh3_128

from params.foundation.artifacts import flush_path_to_disk, translate_disk_errors, write_array
from tasks.evaluation.scoring import RowGroups
from tasks.progress import iterate_with_progress, reset_idle_timer
from trainer.data.shards import ROW, ROW_ID
from trainer.data.tokens import Sequences
from trainer.loop.metrics import EvaluationMetrics
from trainer.objectives.bases.lazy_imports import NDArray, PreTrainedModel, scipy, torch

MAX_ROWS: Final = 10_000
"""About so many train rows are looked at, at most. Of more, a hash of seed and row chooses a share of them, so that those of the last run stay."""
_SHARES: Final = 4
"""Of twice as many rows, the share is halved in so many steps. Between them, new rows push none out."""
FOLDS: Final = 5
_CHUNK: Final = 1000
"""About so many rows are read and kept together."""
_LOGIT_VARIANCE: Final = 10.0
_ITERATIONS: Final = 15
_LEAST_SPREAD: Final = 1e-6
"""A feature that spreads less says nothing."""
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
    kept: Path,
) -> TrainFeatures | None:
    """Read train rows, one sequence each; None if the network gives no hidden state for each token.

    What was read stays in `kept` for the next run, a file for the rows of each range of ids. Only rows of one range share batches, so that the
    features of a range do not depend on rows elsewhere, and are the same to the last bit whether they are read or kept.
    """
    ids, _ = sequences.numbers(ROW)
    places = np.arange(len(ids))
    if len(places) > MAX_ROWS:
        share = 2.0 ** -(math.ceil(_SHARES * math.log2(len(places) / MAX_ROWS)) / _SHARES)
        places = np.flatnonzero(sequences.hashes(seed) < share * 2.0**64)
    places = places[np.argsort(ids[places])]
    reader = _Reader(network, metrics, batch_size, batch_tokens)
    kept.mkdir(parents=True, exist_ok=True)
    labels, features, used = list[Any](), list[Any](), set[Path]()
    density = len(places) / float(np.ptp(ids) + 1)
    span = _CHUNK * 2 ** round(-math.log2(density))  # in powers, so that it changes rarely
    ranges = np.split(places, np.flatnonzero(np.diff(ids[places] // span)) + 1)
    for part in iterate_with_progress(ranges, what="evaluate: parts of the train rows", total=len(ranges)):
        some = sequences.__getitems__(part.tolist())
        path = kept / f"{reader.key(some)}.npy"
        used.add(path)
        if not path.exists():
            if (found := reader.read(some)) is None:
                return None
            with translate_disk_errors(path):
                write_array(partial := path.with_suffix(".partial.npy"), found)
                flush_path_to_disk(partial)
                partial.rename(path)
        features.append(np.load(path))
        labels += [example["labels"] for example in some]
    for path in set(kept.iterdir()) - used:
        path.unlink()
    return TrainFeatures(ids[places], np.concatenate(features), np.array(labels))


class _Reader:
    """The untrained network, which reads sequences."""

    def __init__(
        self, network: PreTrainedModel, metrics: EvaluationMetrics, batch_size: int, batch_tokens: int
    ) -> None:
        self._network, self._metrics, self._sizes = network, metrics, (batch_size, batch_tokens)
        digest = xxh3_128(repr((self._sizes, torch.__version__)).encode())
        for name, weight in network.base_model.state_dict().items():
            digest.update(name.encode())
            digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        self._network_key = digest.hexdigest()

    def key(self, examples: list[Any]) -> str:
        """Return what tells these sequences, as this network reads them, from others."""
        inputs = [{name: value for name, value in one.items() if name not in (ROW_ID, "labels")} for one in examples]
        return xxh3_128(f"{self._network_key} {json.dumps(inputs, sort_keys=True)}".encode()).hexdigest()

    def read(self, examples: list[Any]) -> NDArray[np.float32] | None:
        """Return the features of each of N sequences, (N, H)."""
        order = sorted(range(len(examples)), key=lambda i: len(examples[i]["input_ids"]), reverse=True)
        size, tokens = self._sizes
        found = list[Any]()
        with _mean_hidden_states(self._network) as states:
            for _ in self._metrics.batches(
                self._network, [examples[i] for i in order], batch_size=size, batch_tokens=tokens
            ):
                reset_idle_timer()
                if not states:
                    return None
                found.append(states.pop().cpu().numpy())
        features: NDArray[np.float32] = np.concatenate(found)[np.argsort(order)]
        return features


@contextlib.contextmanager
def _mean_hidden_states(network: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Yield a list to which each forward pass adds the mean hidden state of each text, of length 1, (B, H)."""
    kept = list[Any]()

    def keep(_: Any, __: Any, given: dict[str, Any], outputs: Any) -> None:
        hidden, mask = outputs[0], given.get("attention_mask")
        if mask is not None and hidden.shape[:2] == mask.shape:
            weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
            kept.append(torch.nn.functional.normalize((hidden * weights).sum(1).float()))

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
    features = (train.features - train.features.mean(0, dtype=np.float64)) / np.where(spread > _LEAST_SPREAD, spread, 1)
    features = np.concatenate([features, np.ones((len(features), 1))], 1)  # (N, H + 1)
    logits, judged = np.full(given.shape, -_SURE), np.zeros(given.shape, bool)
    for fold in range(FOLDS):
        reset_idle_timer()
        out, counts = folds == fold, given[folds != fold].sum(0)
        known = (counts if is_class else np.minimum(counts, (folds != fold).sum() - counts)) >= FOLDS - 1
        if known.any():
            weights = _fit_logistic_regression(features[~out], given[~out][:, known], is_class=is_class)
            logits[np.ix_(out, known)] = features[out] @ weights
        judged[out] = known
    if is_class:
        judged = np.repeat((judged & (given > 0)).any(1, keepdims=True), labels, 1)
    return np.where(judged, logits, _SURE * (2 * given - 1)), judged


def _fit_logistic_regression(
    features: NDArray[np.float64], given: NDArray[np.float64], *, is_class: bool
) -> NDArray[np.float64]:
    """Return weights (H + 1, C) by which `features` (N, H + 1) give logits of classes, or of each label by itself; `given` is (N, C), 0 or 1.

    A Gaussian prior lets logits have the variance `_LOGIT_VARIANCE` beforehand, however many features there are; the last weight, the bias,
    has none.
    """
    shape = (features.shape[1], given.shape[1])
    penalty = np.full((shape[0], 1), (shape[0] - 1) / _LOGIT_VARIANCE)
    penalty[-1] = 0

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(shape)
        logits = features @ weights
        if is_class:
            logs = scipy.special.log_softmax(logits, axis=1)
            loss, error = -(given * logs).sum(), np.exp(logs) - given
        else:
            loss, error = (np.logaddexp(0, logits) - given * logits).sum(), scipy.special.expit(logits) - given
        gradient = features.T @ error + penalty * weights
        return float(loss + (penalty * weights**2).sum() / 2), gradient.ravel()

    options = {"maxiter": _ITERATIONS, "maxcor": 5}
    found = scipy.optimize.minimize(
        loss_and_gradient, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options=options
    )
    weights: NDArray[np.float64] = found.x.reshape(shape)
    return weights
