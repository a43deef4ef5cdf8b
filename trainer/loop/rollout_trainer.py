"""The Trainer of objectives that learn from completions of their model: it samples a round of them for several steps.

    step      0         1         2         3         4
    sampled   for 0, 1, 2, 3                          for 4, 5, 6, 7
    learned   of 0      of 1      of 2      of 3      of 4

The prompts of coming steps are known, because the order of rows is a function of the position. Each process samples for
its own places in their global batches, all at once. What is sampled and not yet learned is part of a checkpoint, a file
of each process; on another number of processes each takes from all files what has its places.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from params import CheckpointError, ModelError
from trainer.data.randomness import seeded
from trainer.loop.trainer import EvergreenTrainer
from trainer.objectives.bases.generative import GenerativeObjective
from trainer.objectives.bases.rollout import Rollout, TrainingSample, token_logprobs, training_batch
from trainer.objectives.bases.sampling import decode_completions, sample

_FILE = "rollouts_{}.pt"
"""What a process has sampled and not yet learned, and what its log has gathered of it since the last line."""
Sums = dict[str, list[float]]
"""Figures by name: their sum, and of how many."""


class RolloutTrainer(EvergreenTrainer):
    """Trains objectives of trainer.objectives.bases.generative."""

    loss_is_scaled_for_ga = True
    _reference: PreTrainedModel | None
    _rollouts: dict[tuple[int, int], Rollout]
    _sums: Sums

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """As EvergreenTrainer's; what the model is before a checkpoint is loaded, is the reference."""
        self._check_length()
        self._reference = None
        if self._task.needs_ref_logprobs and not hasattr(self.model, "disable_adapter"):
            self._reference = copy.deepcopy(self.model).eval().requires_grad_(requires_grad=False)
        return super().train(resume_from_checkpoint, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of one optimizer step, and what the sum of its losses is divided by."""
        super().get_batch_samples(epoch_iterator, num_batches, device)  # the rows; completions were sampled before
        step = self.state.global_step
        if step % self._task.steps_per_round == 0:
            self._begin_round(step)
        taken = [[self._rollouts.pop((step, place)) for place in places] for places in self._order.own_places()]
        for rollout in (rollout for rollouts in taken for rollout in rollouts):
            _add(self._sums, {name: (value, 1) for name, value in self._task.rollout_metrics(rollout).items()})
        training_samples = [
            [training_sample for rollout in rollouts for training_sample in self._task.training_samples(rollout)]
            for rollouts in taken
        ]
        own = (
            sum(map(len, training_samples)),
            sum(len(training_sample.completion) for of in training_samples for training_sample in of),
        )
        sequences, tokens = (sum(numbers) for numbers in zip(*self.agreement.gather(own), strict=True))
        # A process without anything to learn takes part all the same: the others wait for its gradients.
        idle = [[TrainingSample(rollouts[0].prompt, rollouts[0].completions[0], 0.0)] for rollouts in taken]
        padding = int(self.processing_class.pad_token_id)
        batches = [training_batch(of or nothing, padding) for of, nothing in zip(training_samples, idle, strict=True)]
        return batches, max(self._task.loss_denominator(sequences=sequences, tokens=tokens), 1.0)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The micro-batch's part of the loss of the whole global batch; gradients are a mean over processes."""
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        losses, figures = self._task.losses(outputs.logits, inputs)
        tokens = float(inputs["completion_mask"].sum())
        _add(self._sums, {name: (float(figure.sum()), tokens) for name, figure in figures.items()})
        loss = losses.sum() * self.args.world_size / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As Trainer's; a line of training steps also has the figures of what they learned from."""
        if "loss" in logs and "learning_rate" in logs:
            logs = logs | self._means(self._sums)
            self._sums = {}
        super().log(logs, start_time)

    @property
    def _task(self) -> GenerativeObjective[Any]:
        return cast("GenerativeObjective[Any]", self.objective)

    # A round of completions

    def _begin_round(self, step: int) -> None:
        """Sample, for this process's places in the steps of a round, and judge."""
        steps = min(self._task.steps_per_round, self.state.max_steps - step)
        coming = list(self._order.coming(steps))
        own = [place for places in self._order.own_places() for place in places]
        asked = [(step + ahead, place, tickets[place]) for ahead, tickets in enumerate(coming) for place in own]
        data = cast("Any", self.callback_handler.train_dataloader).dataset
        examples = [example for _, example in data.__getitems__([ticket for _, _, ticket in asked])]
        rows = self._task.collate(examples, self.processing_class)["reward_rows"]
        count = self._task.options.num_generations
        with seeded(self.args.seed, "round", step), self.accelerator.autocast():
            completions, terminated = sample(
                self._network,
                [example["input_ids"] for example in examples for _ in range(count)],
                tokenizer=self.processing_class,
                options=self._task.options,
                keys=[(self.args.seed, at, place, i) for at, place, _ in asked for i in range(count)],
                on_token=lambda: self._heartbeat.beat("training", step),
            )
        texts = decode_completions(completions, self.processing_class)
        rewards = self._task.rewards(texts, [row for row in rows for _ in range(count)])
        made = []
        for i, ((at, place, _), example, row) in enumerate(zip(asked, examples, rows, strict=True)):
            of = slice(i * count, (i + 1) * count)
            rollout = Rollout(at, place, row, list(example["input_ids"]), completions[of], terminated[of], rewards[of])
            rollout.reference_completion = example.get("reference_completion")
            made.append(rollout)
        if self._task.needs_old_logprobs:
            self._look("old_logprobs", made, self._network)
        if self._task.needs_ref_logprobs:
            with self._start_model() as model:
                self._look("ref_logprobs", made, model)
        self._rollouts = {(rollout.step, rollout.place): rollout for rollout in made}
        if self._task.logs_rounds:
            sums: Sums = {}
            for rollout in made:
                _add(sums, {f"round_{k}": (value, 1) for k, value in self._task.rollout_metrics(rollout).items()})
            self.log({"round": float(step // self._task.steps_per_round), **self._means(sums)})

    @torch.no_grad()
    def _look(self, name: str, rollouts: Sequence[Rollout], model: Any) -> None:
        """Note the log-probabilities of completions under `model`, without dropout."""
        was_training = model.training
        model.eval()
        for start in range(0, len(rollouts), self._train_batch_size):
            self._heartbeat.beat("training", self.state.global_step)
            part = rollouts[start : start + self._train_batch_size]
            training_samples = [TrainingSample(rollout.prompt, c, 1.0) for rollout in part for c in rollout.completions]
            batch = training_batch(training_samples, int(self.processing_class.pad_token_id))
            batch = {key: value.to(self.args.device) for key, value in batch.items()}
            with self.accelerator.autocast():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            temperature = self._task.options.temperature
            found = token_logprobs(logits, batch["input_ids"], batch["completion_mask"], temperature)
            values = iter([row[learned].cpu() for row, learned in zip(found, batch["completion_mask"], strict=True)])
            for rollout in part:
                setattr(rollout, name, [next(values).clone() for _ in rollout.completions])
        model.train(was_training)

    @property
    def _network(self) -> PreTrainedModel:
        network: PreTrainedModel = self.accelerator.unwrap_model(self.model)
        return network

    @contextmanager
    def _start_model(self) -> Iterator[Any]:
        """The model as it was before training: a copy, or the model without its adapters."""
        if self._reference is not None:
            yield self._reference
            return
        network = cast("Any", self._network)
        with network.disable_adapter():
            yield network

    def _check_length(self) -> None:
        """Models with learned positions fail in the midst of a text that is longer than they have positions."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        longest = max(len(ids) for ids in cast("Any", self.train_dataset)["input_ids"])
        wanted = longest + self._task.options.max_new_tokens
        if isinstance(positions, int) and wanted > positions:
            what = f"the longest prompt and objective.max_new_tokens are {wanted} tokens, the model has {positions} positions"
            raise ModelError("objective.max_new_tokens", what, "lower it, or tokenization.max_length")

    # Figures

    def _means(self, own: Sums) -> dict[str, float]:
        """The means of figures over all processes."""
        together = _added(self.agreement.gather(own))
        return {name: value / of for name, (value, of) in together.items() if of}

    # Checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = {"rollouts": [asdict(rollout) for rollout in self._rollouts.values()], "sums": self._sums}
        torch.save(state, Path(output_dir) / _FILE.format(self.args.process_index))

    def _init_training_state(
        self,
        max_steps: Any,
        num_update_steps_per_epoch: Any,
        num_train_epochs: Any,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        place = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        self._rollouts, self._sums = {}, {}
        if resume_from_checkpoint is not None:
            self._restore(Path(resume_from_checkpoint))
        return place

    def _restore(self, checkpoint: Path) -> None:
        rank, step = self.args.process_index, self.state.global_step
        try:
            count = len(list(checkpoint.glob(_FILE.format("*"))))
            files = [checkpoint / _FILE.format(number) for number in range(count)]
            states = [torch.load(file, weights_only=True) for file in files]
            rollouts = [Rollout(**known) for state in states for known in state["rollouts"]]
            sums = [state["sums"] for state in states]
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            what = f"its completions cannot be read: {error!r}"
            raise CheckpointError(str(checkpoint), what, "go on from another one") from error
        own = [place for places in self._order.own_places() for place in places]
        self._rollouts = {(r.step, r.place): r for r in rollouts if r.place in set(own)}
        in_round = step % self._task.steps_per_round and step < self.state.max_steps
        if in_round and any((step, place) not in self._rollouts for place in own):
            what = f"it lacks completions that step {step + 1} learns from"
            raise CheckpointError(str(checkpoint), what, "go on from another one")
        if count == self.args.world_size:
            self._sums = sums[rank]
        elif rank == 0:
            self._sums = _added(sums)


def _add(sums: Sums, figures: dict[str, tuple[float, float]]) -> None:
    for name, (value, of) in figures.items():
        known = sums.setdefault(name, [0.0, 0.0])
        known[0] += value
        known[1] += of


def _added(parts: Sequence[Sums]) -> Sums:
    names = sorted({name for part in parts for name in part})
    found = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: [sum(v for v, _ in values), sum(of for _, of in values)] for name, values in found.items()}
