"""The Trainer of embeddings with mined negatives: the model as training found it says once, before the first step, which are hard."""

from __future__ import annotations

import json
import logging
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from params.foundation.artifacts import write_text_atomically
from trainer.loop.global_batch_trainer import GlobalBatchTrainer
from trainer.loop.single_texts import measure_texts
from trainer.objectives.bases.lazy_imports import NDArray
from trainer.objectives.bases.vectors.hard_negatives import BLOCK, MinedRows, find_minable_texts, mine_negatives

logger = logging.getLogger(__name__)
MINED: Final = "mined_negatives.json"
"""File in a run's folder with the mined negatives of each row; the folder's name is a hash of all that they depend on."""


class MiningTrainer(GlobalBatchTrainer):
    """Adds `objective.mined_negatives` to each row before it trains."""

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As in GlobalBatchTrainer; the model before a checkpoint is loaded finds the negatives."""
        rows, documents = cast("Any", self).train_dataset, self._metrics.documents
        path, count = Path(self.args.output_dir) / MINED, self.objective.options.mined_negatives
        known = _read(path, (len(rows), count)) if self.args.process_index == 0 else None
        if (mined := self.collectives.gather(known)[0]) is None:
            mined = self._mine(rows, documents)
            if self.args.should_save:
                write_text_atomically(path, json.dumps(mined.tolist()))
                each = f"{(mined >= 0).sum() / len(mined):.2f} of {count} for each row"
                logger.info("train: mined hard negatives, %s; %d rows have none", each, (mined < 0).all(1).sum())
        self.train_dataset: Any = MinedRows(rows, documents, mined)
        return super().train(resume_from_checkpoint, **kwargs)

    def _mine(self, rows: Any, documents: Any) -> NDArray[np.int64]:
        """Return where the negatives of each of N rows are, (N, M), on every process; each has mined those of some blocks of anchors."""
        texts, options = find_minable_texts(rows, documents), self.objective.options
        model = cast("Any", self.model).to(self.args.device).eval()
        anchors = measure_texts(self, model, texts.anchors)[:, :-1].astype(np.float32)
        parts = [measure_texts(self, model, part)[:, :-1] for part in texts.candidates if len(part)]
        candidates, own = np.concatenate(parts).astype(np.float32), []
        starts = range(0, len(anchors), BLOCK)
        for start in starts[self.args.process_index :: self.args.world_size]:
            self.heartbeat.beat("evaluating")
            block = slice(start, start + BLOCK)
            found = mine_negatives(
                anchors[block],
                candidates,
                texts.relevant[block],
                texts.itself[block],
                count=options.mined_negatives,
                margin=options.mining_margin,
            )
            own.append(found)
        by_process = self.collectives.gather(own)
        turns = max(map(len, by_process))
        in_order = chain.from_iterable([part[turn] for part in by_process if turn < len(part)] for turn in range(turns))
        of_anchors = np.concatenate([*in_order])
        return np.where(of_anchors < 0, -1, texts.sources[of_anchors])[texts.anchor_of_row]


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.int64] | None:
    """Return what an earlier start has mined; None if there is no file that can be read."""
    try:
        found = np.array(json.loads(path.read_text(encoding="utf-8")), np.int64)
    except (OSError, ValueError):
        return None
    return found if found.shape == shape else None
