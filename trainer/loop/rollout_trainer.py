"""The Trainer of objectives that learn from their model's own completions: it samples one round of them for several steps.

    step       0         1         2         3         4
    samples    for 0, 1, 2, 3                          for 4, 5, 6, 7
    trains on  those of 0  of 1    of 2      of 3      of 4

The prompts of later steps are known, because the order of the rows is a function of the position. Each process samples for
its own places in the global batches of a round, all at once. Completions that were sampled and not yet trained on are part
of a checkpoint, one file per process. On another number of processes, each reads all files and keeps its places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

from params import ModelError
from trainer.data.randomness import seeded
from trainer.data.tokens import Sequences
from trainer.loop.reference_trainer import ReferenceTrainer
from trainer.objectives.bases.rewards.generative import GenerativeObjective
from trainer.objectives.bases.rewards.rollout import (
    Rollout,
    TrainingSample,
    collate_training_samples,
    completion_token_logprobs,
    sample_completions,
)

_FILE = "rollouts_{}.pt"
"""A process's completions that were not yet trained on, and its metrics since the last log line."""
Sums = dict[str, list[float]]
"""By metric: the sum of its values, and their number."""


class RolloutTrainer(ReferenceTrainer):
    """Trains objectives of trainer.objectives.bases.generative."""

    objective: GenerativeObjective[Any]
    _rollouts: dict[tuple[int, int], Rollout]
    """Completions that were not yet trained on, by step and place."""
    _sums: Sums
    """Metrics since the last log line."""

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As in EvergreenTrainer; the model before a checkpoint is loaded is the reference.

        Raises:
            ModelError: the longest prompt and its completion do not fit into the model's positions.
        """
        positions = getattr(self.model.config, "max_position_embeddings", None)
        longest = int(cast("Sequences", self.train_dataset).lengths().max())
        needed = longest + self.objective.options.max_new_tokens
        if isinstance(positions, int) and needed > positions:
            what = f"the longest prompt and objective.max_new_tokens are {needed} tokens, the model has {positions} positions"
            raise ModelError("objective.max_new_tokens", what, "lower it, or tokenization.max_length")
        if self.objective.needs_ref_logprobs:
            self.keep_start_model()
        return super().train(resume_from_checkpoint, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of one optimizer step, and what the sum of its losses is divided by."""
        super().get_batch_samples(epoch_iterator, num_batches, device)  # only moves on in the data
        step = self.state.global_step
        if step % self.objective.steps_per_round == 0:
            self._start_round(step)
        rollouts = [[self._rollouts.pop((step, place)) for place in own] for own in self.training_data.own_places()]
        samples = [self._samples_of(micro_batch) for micro_batch in rollouts]
        own = (sum(map(len, samples)), sum(len(one.completion) for micro_batch in samples for one in micro_batch))
        sequences, tokens = (sum(numbers) for numbers in zip(*self.collectives.gather(own), strict=True))
        # A micro-batch without samples still runs, with weight 0: other processes wait for its gradients.
        idle = [[TrainingSample(first.prompt, first.completions[0], 0.0)] for first, *_ in rollouts]
        padding = int(self.processing_class.pad_token_id)
        batches = [collate_training_samples(some or none, padding) for some, none in zip(samples, idle, strict=True)]
        return batches, max(self.objective.loss_denominator(sequences=sequences, tokens=tokens), 1.0)

    def _samples_of(self, rollouts: Iterable[Rollout]) -> list[TrainingSample]:
        """Return what a micro-batch learns from its rollouts, whose metrics the next log line has."""
        samples = []
        for rollout in rollouts:
            samples += self.objective.training_samples(rollout)
            _add(self._sums, {name: (value, 1) for name, value in self.objective.rollout_metrics(rollout).items()})
        return samples

    def note(self, metrics: Mapping[str, tuple[float, float]]) -> None:
        _add(self._sums, metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in Trainer; a line about training steps also has the metrics of their rollouts."""
        if "loss" in logs and "learning_rate" in logs:
            logs = logs | self._means(self._sums)
            self._sums = {}
        super().log(logs, start_time)

    # A round of completions

    def _start_round(self, step: int) -> None:
        """Sample completions for this process's places in the steps of a round, and compute their rewards."""
        rollouts = self._sample_round(step)
        if self.objective.needs_old_logprobs:
            self._add_logprobs("old_logprobs", rollouts, self.accelerator.unwrap_model(self.model))
        if self.objective.needs_ref_logprobs:
            with self.start_model() as model:
                self._add_logprobs("ref_logprobs", rollouts, model)
        self._rollouts = {(rollout.step, rollout.place): rollout for rollout in rollouts}
        if self.objective.logs_rounds:
            sums: Sums = {}
            for rollout in rollouts:
                _add(sums, {f"round_{k}": (value, 1) for k, value in self.objective.rollout_metrics(rollout).items()})
            self.log({"round": float(step // self.objective.steps_per_round), **self._means(sums)})

    def _sample_round(self, step: int) -> list[Rollout]:
        steps = min(self.objective.steps_per_round, self.state.max_steps - step)
        own_places = [place for places in self.training_data.own_places() for place in places]
        own = [
            (step + offset, place, keys[place])
            for offset, keys in enumerate(self.training_data.upcoming(steps))
            for place in own_places
        ]
        examples = self.training_data.examples([key for _, _, key in own])
        rows = self.objective.collate(examples, self.processing_class)["reward_rows"]
        count = self.objective.options.num_generations
        with seeded(self.args.seed, "round", step), self.accelerator.autocast():
            completions, terminated = sample_completions(
                self.accelerator.unwrap_model(self.model),
                [example["input_ids"] for example in examples for _ in range(count)],
                tokenizer=self.processing_class,
                options=self.objective.options,
                keys=[(self.args.seed, at, place, i) for at, place, _ in own for i in range(count)],
                on_token=lambda: self.heartbeat.beat("training", step),
            )
        texts = self.processing_class.batch_decode(completions, skip_special_tokens=True)
        rewards = self.objective.rewards(texts, [row for row in rows for _ in range(count)], self.args.device)
        rollouts = []
        for i, ((at, place, _), example, row) in enumerate(zip(own, examples, rows, strict=True)):
            of = slice(i * count, (i + 1) * count)
            rollout = Rollout(at, place, row, list(example["input_ids"]), completions[of], terminated[of], rewards[of])
            rollout.reference_completion = example.get("reference_completion")
            rollouts.append(rollout)
        return rollouts

    @torch.no_grad()
    def _add_logprobs(self, name: str, rollouts: Sequence[Rollout], model: Any) -> None:
        """Set the attribute `name` of rollouts to their log-probabilities under `model`, without dropout."""
        was_training = model.training
        model.eval()
        size = self.args.train_batch_size
        for start in range(0, len(rollouts), size):
            self.heartbeat.beat("training", self.state.global_step)
            part = rollouts[start : start + size]
            samples = [TrainingSample(rollout.prompt, ids, 1.0) for rollout in part for ids in rollout.completions]
            batch = collate_training_samples(samples, int(self.processing_class.pad_token_id))
            batch = {key: value.to(self.args.device) for key, value in batch.items()}
            with self.accelerator.autocast():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            temperature = self.objective.options.temperature
            logprobs = completion_token_logprobs(logits, batch["input_ids"], batch["completion_mask"], temperature)
            values = iter([row[mask].cpu() for row, mask in zip(logprobs, batch["completion_mask"], strict=True)])
            for rollout in part:
                setattr(rollout, name, [next(values).clone() for _ in rollout.completions])
        model.train(was_training)

    def _means(self, own: Sums) -> dict[str, float]:
        merged = _merge(self.collectives.gather(own))
        return {name: value / count for name, (value, count) in merged.items() if count}

    # Checkpoints

    def save_extra_state(self, folder: Path) -> None:
        state = {"rollouts": [asdict(rollout) for rollout in self._rollouts.values()], "sums": self._sums}
        torch.save(state, folder / _FILE.format(self.args.process_index))

    def load_extra_state(self, checkpoint: Path | None) -> None:
        self._rollouts, self._sums = {}, {}
        if checkpoint is None:
            return
        count = len(list(checkpoint.glob(_FILE.format("*"))))
        states = [torch.load(checkpoint / _FILE.format(number), weights_only=True) for number in range(count)]
        own = {place for places in self.training_data.own_places() for place in places}
        rollouts = (Rollout(**fields) for state in states for fields in state["rollouts"])
        self._rollouts = {(rollout.step, rollout.place): rollout for rollout in rollouts if rollout.place in own}
        if count == self.args.world_size:
            self._sums = states[self.args.process_index]["sums"]
        elif self.args.process_index == 0:
            self._sums = _merge([state["sums"] for state in states])


def _add(sums: Sums, values: Mapping[str, Sequence[float]]) -> None:
    for name, (value, count) in values.items():
        entry = sums.setdefault(name, [0.0, 0.0])
        entry[0] += value
        entry[1] += count


def _merge(parts: Sequence[Sums]) -> Sums:
    found: Sums = {}
    for part in parts:
        _add(found, part)
    return dict(sorted(found.items()))
