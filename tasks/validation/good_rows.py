"""Write the rows that pass: in source order, and in the shards of the raw rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from params.artifacts import SPLITS
from tasks.validation.raw_rows import PartWork, Positions, RawRows, within
from trainer.data.shards import Shard


def write_good_rows(folder: Path, rows: RawRows, quarantined: Positions) -> None:
    """Write the rows of each split but those at the positions in `quarantined`; a shard without good rows has no file.

    A shard without bad rows is copied. What is left of the others is kept for the next run.
    """
    bad = [len(within(quarantined, part.start, part.stop)) for part in rows.parts]
    mixed = [part for part, count in zip(rows.parts, bad, strict=True) if 0 < count < part.shard.rows]
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
    paths = [folder / part.split / part.shard.name for part in mixed]
    written = iter(rows.run(write_part, mixed, what="good rows", columns=(), skip=quarantined, paths=paths))
    kept: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for part, count in zip(rows.parts, bad, strict=True):
        if not count:
            shutil.copyfile(part.path, folder / part.split / part.shard.name)
            kept[part.split].append(part.shard)
        elif count < part.shard.rows:
            kept[part.split].append(part.shard.model_copy(update=next(written)))
    for split in SPLITS:
        rows.splits[split].write_manifest(folder / split, kept[split])


def write_part(work: PartWork) -> dict[str, Any]:
    """Write the good rows of one shard, and return what the manifest says of the new one."""
    keep = np.ones(work.part.shard.rows, np.bool_)
    keep[work.skip] = False
    return work.part.rows.write_some(work.part.shard, keep, work.files[0])
