"""Which training sequences are of rows that the model has learned from before, and how many steps an epoch then has."""

from __future__ import annotations

import logging

import numpy as np

from trainer.data import tokens
from trainer.data.order import KnownRows
from trainer.job import Job
from trainer.loop.batch import total_steps
from trainer.start import read_known_row_ids

logger = logging.getLogger(__name__)


def read_known_rows(job: Job, rows: tokens.Sequences) -> KnownRows | None:
    """Return which sequences are known, and their share, as `training.replay` wants it; None if all are drawn alike."""
    if job.training.replay is None:
        return None
    ids = read_known_row_ids(job.start)
    known = np.isin(rows.row_ids(), [] if ids is None else ids)
    if known.all() or not known.any():
        logger.info("train: %s row is new: all are drawn alike", "no" if known.all() else "every")
        return None
    return KnownRows(known, job.training.replay.known)


def sequences_of_epoch(known: KnownRows | None, rows: int, global_batch_size: int) -> int:
    """Return how many sequences an epoch has, of `rows` in the train split."""
    return known.batches(global_batch_size) * global_batch_size if known else rows


def steps_of(job: Job) -> int:
    rows, size = tokens.read_split(job.tokens, "train"), job.training.global_batch_size
    return total_steps(job.training, sequences_of_epoch(read_known_rows(job, rows), rows.per_epoch, size))
