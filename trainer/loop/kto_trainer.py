"""The Trainer of single answers that are good or bad: before each step, it estimates the KL divergence of its whole global batch.

As in TRL's KTOTrainer, each prompt of the batch gets the answer of the row before it, and the divergence is the mean of what the model
gives such an answer more than the start model does, or 0. Here the batch is the global one, in the order of its rows. So the loss does
not depend on how the rows are spread over processes and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch

from trainer.loop.preference_trainer import PreferenceTrainer


class KTOTrainer(PreferenceTrainer):
    """Its objective has `reference_point`, which this sets, and `with_other_answers`."""

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As in PreferenceTrainer; the rows of the train split say how good and bad ones are weighted."""
        self.objective.weigh(*self._count())
        return super().train(resume_from_checkpoint, **kwargs)

    def _count(self) -> tuple[int, int]:
        """Return how many rows of the train split have good and bad answers."""
        rows: Any = self.train_dataset
        liked = rows.numbers("liked")[1]
        return int(liked.sum()), int(len(liked) - liked.sum())

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of one optimizer step, and set the reference point of its loss."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.objective.has_reference_point:
            self.objective.reference_point = self._divergence(batches).clamp(min=0.0)
        return batches, items

    def _divergence(self, batches: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """Return the mean log-probability of answers to other prompts minus that under the start model, in nats."""
        own = [self.objective.answers(batch) for batch in batches]
        by_process = self.collectives.gather(own)
        every = [*chain.from_iterable(chain.from_iterable(zip(*by_process, strict=True)))]  # in the order of the rows
        model = cast("Any", self.model_wrapped).eval()
        gains = []
        for batch, place in zip(batches, self.training_data.own_places(), strict=True):
            self.heartbeat.beat("training", self.state.global_step)
            others = [every[i - 1] for i in range(place.start, place.stop)]
            inputs = self._prepare_inputs(self.objective.with_other_answers(batch, others, self.processing_class))
            with torch.no_grad(), self.compute_loss_context_manager():
                logprobs = self.objective.logprobs(model, inputs)
            gains.append(logprobs - self.objective.reference_logprobs(inputs))
        model.train()
        return cast("torch.Tensor", self.accelerator.gather(torch.stack(gains).contiguous()).mean())
