"""The Trainer of preferences: the reference is the model as training found it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from params import RecipeError
from params.foundation.artifacts import write_text_atomically
from trainer.loop.reference_trainer import ReferenceTrainer

Reference = Callable[[Mapping[str, Any]], torch.Tensor]
"""From a batch to its log-probabilities under the start model, as the objective's `logprobs`: of pairs (2, B), of single answers (B,)."""
PRECOMPUTED = "reference.json"
"""File in a run's folder with precomputed log-probabilities, by row id."""


class PreferenceTrainer(ReferenceTrainer):
    """Trains objectives of preferences."""

    objective: Any

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As in EvergreenTrainer; the model before a checkpoint is loaded is the reference."""
        if getattr(self.objective.options, "reference", "model") == "precomputed":
            self.objective.reference_logprobs = self._precomputed()
        else:
            self.keep_start_model()
            self.objective.reference_logprobs = self._start_model_logprobs
        return super().train(resume_from_checkpoint, **kwargs)

    def _start_model_logprobs(self, batch: Mapping[str, Any]) -> torch.Tensor:
        with torch.no_grad(), self.accelerator.autocast(), self.start_model() as model:
            return cast("torch.Tensor", self.objective.logprobs(model, batch))

    def _precomputed(self) -> Reference:
        """Return a reference that looks up log-probabilities, computed once per run and kept for later starts."""
        path = Path(self.args.output_dir) / PRECOMPUTED
        known = self.collectives.gather(_read(path) if self.args.process_index == 0 else None)[0]
        if known is None:
            known = {row: pair for part in self.collectives.gather(self._own_logprobs()) for row, pair in part.items()}
            if self.args.should_save:
                write_text_atomically(path, json.dumps(known))

        def reference(batch: Mapping[str, Any]) -> torch.Tensor:
            rows = batch["row_id"].tolist()
            if unknown := [row for row in rows if row not in known]:
                what = f"`precomputed` covers the pairs of the tokenize stage only: row {unknown[0]} is not among them"
                raise RecipeError("objective.reference", what, "use `model`, or the rows of the tokenize stage")
            return torch.tensor([known[row] for row in rows], dtype=torch.float64, device=batch["row_id"].device).T

        return reference

    def _own_logprobs(self) -> dict[int, list[float]]:
        """Return log-probabilities of chosen and rejected completion by row id, for this process's part of the pairs."""
        size = self.args.per_device_eval_batch_size
        found: dict[int, list[float]] = {}
        model = cast("Any", self.model).to(self.args.device).eval()
        splits: Any = (self.train_dataset, self.eval_dataset)
        batches = [(split, start) for split in splits for start in range(0, len(split), size)]
        for split, start in batches[self.args.process_index :: self.args.world_size]:
            self.heartbeat.beat("evaluating")
            batch = self.collate_on_device([split[i] for i in range(start, min(start + size, len(split)))])
            with torch.no_grad(), self.accelerator.autocast():
                logprobs = self.objective.logprobs(model, batch)
            found.update(zip(batch["row_id"].tolist(), logprobs.T.tolist(), strict=True))
        return found


def _read(path: Path) -> dict[int, list[float]] | None:
    """Return what an earlier start computed; None if there is no file that can be read."""
    try:
        return {int(row): pair for row, pair in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError):
        return None
