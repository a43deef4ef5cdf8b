"""Measures many texts by all processes of a training together: the documents that queries search, and the texts that negatives are mined among."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import torch

from trainer.objectives.bases.lazy_imports import NDArray


def measure_texts(trainer: Any, model: Any, texts: Any) -> NDArray[np.float64]:
    """Return what `Objective.score_batch` measures of N texts, (N, L), in their order, on every process.

    The batches are the same ones for any number of processes, so the results are, too. `texts` are examples by number, and
    `trainer` is an EvergreenTrainer.
    """
    args = trainer.args
    size, processes = args.per_device_eval_batch_size, args.world_size
    batches, own = math.ceil(len(texts) / size), []
    for first in range(0, batches, processes):
        # where batches are left for some processes only, the others repeat the last one: a sharded model needs all of them
        start = min(first + args.process_index, batches - 1) * size
        trainer.heartbeat.beat("evaluating", trainer.state.global_step)
        batch = trainer.collate_on_device(texts.__getitems__(range(start, min(start + size, len(texts)))))
        with torch.no_grad(), trainer.compute_loss_context_manager():
            own.append(trainer.objective.score_batch(model, batch, trainer.processing_class).double().cpu().numpy())
    in_order = chain.from_iterable(zip(*trainer.collectives.gather(own), strict=True))
    return np.concatenate([*in_order][:batches])
