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
    if ids is None:
        logger.info("train: there is no published model to start from, so all rows are new")
        return None
    known = np.isin(rows.row_ids(), ids)
    if known.all() or not known.any():
        logger.info(
            "train: all rows are %s to the published model: they are drawn alike", "known" if known.all() else "new"
        )
        return None
    return KnownRows(known, job.training.replay.known)


def steps_of(job: Job) -> int:
    """Return the optimizer steps of a job."""
    rows = tokens.read_split(job.tokens, "train")
    return total_steps(job.training, sequences_of_epoch(job, len(rows), read_known_rows(job, rows)))


def sequences_of_epoch(job: Job, rows: int, known: KnownRows | None) -> int:
    """Return how many sequences an epoch has, of `rows` in the train split."""
    size = job.training.global_batch_size
    return known.batches(size) * size if known else rows
