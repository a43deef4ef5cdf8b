"""What a user might write, and name in a recipe."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState


class Careful(Trainer):
    """A loss, an optimizer, a schedule and an order of the rows of its own."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        self.times = getattr(self, "times", 0) + 1
        loss = loss + 0.01 * outputs.logits.square().mean() / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate, momentum=0.9)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, step_size=2, gamma=0.5)
        return self.lr_scheduler

    def get_train_dataloader(self):
        """The first half of the rows nine times as often as the second."""
        rows = len(self.train_dataset)
        weights = [9.0 if i < rows // 2 else 1.0 for i in range(rows)]
        sampler = WeightedRandomSampler(weights, rows, replacement=True)
        return DataLoader(self.train_dataset, sampler=sampler, batch_size=99, collate_fn=self.data_collator)


class OwnStep(Trainer):
    """Overrides what it may not."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)

    def _save_checkpoint(self, model, trial):
        pass


class OwnBatches(Trainer):
    """Makes its batches itself."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_sampler=[[0, 1], [2, 3]], collate_fn=self.data_collator)


class InOrder(Trainer):
    """Reads the rows as they come."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, shuffle=False, collate_fn=self.data_collator)


class Counter(TrainerCallback, ExportableState):
    """Counts steps, from where it was told to begin, and over interruptions."""

    def __init__(self, start=0):
        self.count = start

    def on_step_end(self, args, state, control, **_):
        self.count += 1

    def state(self):
        return {"args": {"start": 0}, "attributes": {"count": self.count}}


class StopsAt(TrainerCallback):
    """Has enough after some steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def mean_loss(outputs, labels, num_items_in_batch):
    """The mean over each micro-batch: what the gradient is then depends on how the global batch is split."""
    from trainer.losses import cross_entropy

    return cross_entropy(outputs, labels, None)


def whole_sequences(prediction):
    """The share of sequences of which every token is predicted."""
    right = (prediction.predictions[:, :-1] == prediction.label_ids[:, 1:]) | (prediction.label_ids[:, 1:] == -100)
    assert len(right) == len(prediction.losses) == len(prediction.inputs)
    return {"whole": right.all(1).mean(), "half": right.mean()}


def last_token(logits, labels):
    """A class per sequence."""
    return logits.argmax(-1)


def accuracy(prediction, offset=0.0):
    """As the objective's own."""
    return {"own_accuracy": (prediction.predictions == prediction.label_ids).mean() + offset}


def broken(prediction):
    raise ZeroDivisionError("no rows")


def looks_up_a_key(prediction):
    return {"whole": {"precision": 1.0}["recall"]}


def one_number(prediction):
    return 0.5


def value_for_each_row(prediction):
    return {"whole": prediction.predictions}


def mean_error(prediction):
    """As the objective's own."""
    return {"own_mae": abs(prediction.predictions - prediction.label_ids).mean()}


def looks_up_a_key_of_two(logits, labels):
    return {"precision": 1.0}["recall"]


def mean_of_batch(logits, labels):
    return logits.mean()


def two_outputs(logits, labels):
    return logits, labels


def loss_of_known_labels(outputs, labels, num_items_in_batch, *, factor, state):
    """A number that shows what it gets."""
    return outputs.logits.sum() + factor * len(state["labels"])
