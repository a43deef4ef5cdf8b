"""The Trainer of objectives whose loss needs a whole global batch at once, such as one with in-batch negatives.

A global batch does not fit into memory as one. So a step has two passes (GradCache: Gao et al. 2021,
https://arxiv.org/abs/2101.06983). The first one embeds all micro-batches without gradients; the embeddings of all processes, in the
order of the rows, give the loss and its gradient for each embedding. The second one embeds each micro-batch again, with the same
dropout, and passes those gradients on. The result does not depend on how the rows are spread over processes and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from trainer.loop.trainer import EvergreenTrainer


class GlobalBatchTrainer(EvergreenTrainer):
    """Computes the loss of the whole global batch before the backward passes of its micro-batches.

    In place of `batch_loss`, its objective has `embed(model, batch)`, what the loss compares of each of B rows, (B, ...), and
    `global_loss(embeddings, labels)`, of all G rows of a global batch, (G, ...). Labels are what the objective's `label_name` names in a
    batch; None if it has no such. With `batch_group`, rows with the same integer are in one global batch, unless its rest is too small for them.
    """

    objective: Any
    _gradients: list[torch.Tensor]
    """Of the loss with respect to the embeddings of each micro-batch of this process, (B, ...)."""
    _loss: torch.Tensor
    """Of the global batch."""

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of one optimizer step, and compute the gradients of its loss with respect to their embeddings."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        embeddings, labels, name = [], [], self.objective.label_name
        model = cast("Any", self.model_wrapped).train()
        for i, batch in enumerate(batches):
            self.heartbeat.beat("training", self.state.global_step)
            inputs = self._prepare_inputs(batch)
            with self.micro_batch_seed(i), torch.no_grad(), self.compute_loss_context_manager():
                embeddings.append(self.objective.embed(model, inputs).float())
            labels += [inputs[name]] if name in inputs else []
        with torch.enable_grad():
            every = self._in_order(torch.stack(embeddings)).requires_grad_()
            self._loss = self.objective.global_loss(every, self._in_order(torch.stack(labels)) if labels else None)
            (gradient,) = torch.autograd.grad(self._loss, every)
        places = self.training_data.own_places()
        self._gradients = [gradient[place.start : place.stop] for place in places]
        return batches, items

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return this micro-batch's share of the loss, with the gradient that it has in the loss of the global batch."""
        embeddings = self.objective.embed(model, inputs)
        passed_on = (embeddings.float() * self._gradients[len(self.guard.micro_losses)]).sum() * self.args.world_size
        loss = passed_on + (self._loss.detach() / self.args.gradient_accumulation_steps - passed_on.detach())
        return (loss, {"embeddings": embeddings}) if return_outputs else loss

    def _in_order(self, own: torch.Tensor) -> torch.Tensor:
        """Return the values of all rows of the global batch, (G, ...), from those of this process's micro-batches, (A, B, ...)."""
        found = self.accelerator.gather(own[None].contiguous())  # (processes, A, B, ...)
        return cast("torch.Tensor", found.transpose(0, 1).flatten(0, 2))
