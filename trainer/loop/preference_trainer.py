"""The Trainer of preferences: the loss is the objective's, the reference is the model as training found it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from params import RecipeError
from params.artifacts import write_whole
from trainer.loop.trainer import EvergreenTrainer

Reference = Callable[[Mapping[str, Any]], torch.Tensor]
"""From a batch to its log-probabilities (2, B) under the start model."""
AHEAD = "reference.json"
"""File in a run's folder with the log-probabilities that were computed ahead."""


class PreferenceObjective(Protocol):
    """What this Trainer needs of its objective."""

    reference_logprobs: Reference | None

    @property
    def precomputes_reference(self) -> bool:
        """Whether the reference's log-probabilities are computed once, before training."""

    def completion_logprobs(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return log-probabilities of chosen and rejected completions, (2, B)."""

    def score_pairs(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return losses (B,), and rewards and log-probabilities (2, B)."""


class PreferenceTrainer(EvergreenTrainer):
    """Trains `dpo`: micro-batches hold the same number of pairs, so the mean over a global batch is the mean of theirs."""

    loss_is_scaled_for_ga = False

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As EvergreenTrainer's; before a checkpoint is loaded, the model is the reference."""
        objective = cast("PreferenceObjective", self.objective)
        objective.reference_logprobs = self._ahead() if objective.precomputes_reference else self._start_model()
        return super().train(resume_from_checkpoint, **kwargs)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The mean over the pairs of a micro-batch."""
        losses, _, _ = cast("PreferenceObjective", self.objective).score_pairs(model, inputs)
        loss = losses.mean()
        return (loss, {}) if return_outputs else loss

    def _start_model(self) -> Reference:
        """The start model, without dropout: a copy, or the model itself with its adapters switched off."""
        objective, own = cast("PreferenceObjective", self.objective), cast("Any", self.model)
        adapted = hasattr(own, "disable_adapter")  # peft's
        frozen = own if adapted else copy.deepcopy(own).to(self.args.device).eval().requires_grad_(requires_grad=False)

        def reference(batch: Mapping[str, Any]) -> torch.Tensor:
            with torch.no_grad(), self.accelerator.autocast():
                if not adapted:
                    return objective.completion_logprobs(frozen, batch)
                learns = own.training
                own.eval()
                with own.disable_adapter():
                    found = objective.completion_logprobs(own, batch)
                own.train(learns)
                return found

        return reference

    def _ahead(self) -> Reference:
        """Log-probabilities of all pairs, computed once a run; the file that holds them serves every later start."""
        path = Path(self.args.output_dir) / AHEAD
        known = self.agreement.gather(_read(path) if self.args.process_index == 0 else None)[0]
        if known is None:
            known = {row: pair for part in self.agreement.gather(self._share_ahead()) for row, pair in part.items()}
            if self.args.should_save:
                write_whole(path, json.dumps(known))

        def reference(batch: Mapping[str, Any]) -> torch.Tensor:
            rows = batch["row_id"].tolist()
            if unknown := [row for row in rows if row not in known]:
                what = f"`precomputed` knows the pairs of the tokenize stage, and row {unknown[0]} is none of them"
                raise RecipeError("objective.reference", what, "use `model`, or the rows of the tokenize stage")
            return torch.tensor([known[row] for row in rows], dtype=torch.float64, device=batch["row_id"].device).T

        return reference

    def _share_ahead(self) -> dict[int, list[float]]:
        """This process's share of the pairs: row ids, and log-probabilities of the chosen and the rejected completion."""
        size = self.args.per_device_eval_batch_size
        found: dict[int, list[float]] = {}
        objective, own = (
            cast("PreferenceObjective", self.objective),
            cast("Any", self.model).to(self.args.device).eval(),
        )
        splits: Any = (self.train_dataset, self.eval_dataset)
        batches = [(split, at) for split in splits for at in range(0, len(split), size)]
        for split, at in batches[self.args.process_index :: self.args.world_size]:
            self._heartbeat.beat("evaluating")
            examples = [split[i] for i in range(at, min(at + size, len(split)))]
            batch = self._prepare_inputs(self.data_collator(examples))
            with torch.no_grad(), self.accelerator.autocast():
                log_probs = objective.completion_logprobs(own, batch)
            found.update(zip(batch["row_id"].tolist(), log_probs.T.tolist(), strict=True))
        return found


def _read(path: Path) -> dict[int, list[float]] | None:
    """What an earlier start computed; None where there is no such file, or none that can be read."""
    try:
        return {int(row): pair for row, pair in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError):
        return None
