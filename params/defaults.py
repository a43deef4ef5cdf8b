"""Defaults of an objective, which are in its own file, trainer/objectives/<name>.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectiveDefaults:
    """The defaults of an objective; an objective of your own has those below, unless it names others.

    Learning rate and epochs are as in TRL, with larger batches, because a model is compared with its predecessor, and noise
    hides what is better.
    """

    learning_rate: float = 2e-5
    """For all weights of a pretrained model. The size of the model changes it: `evergreen new` writes one that fits."""
    epochs: float = 3.0
    global_batch_size: int = 32
    micro_batch_size: int = 8
    best_metric: str = "loss"
    group_by_length: bool = False
