"""Which sections of a recipe about training do not fit together, or do not work on this machine.

`check` reports the conflicts before anything runs, and `trainer.build` refuses a job that has any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from params import Problem
from params.schema import Launch, Model, Training
from trainer.loop import arguments
from trainer.loop.optimizers import known_optimizers, steps_in_backward
from trainer.model import network
from trainer.objectives import overrides_method
from trainer.objectives.bases.objective import Objective

_START_FROM_CHAMPION: Final = "set `model.start: champion`, or remove it"


def find_training_conflicts(
    *, objective: Objective[Any] | None, model: Model | None, training: Training | None, launch: Launch | None
) -> list[Problem]:
    """Return the conflicts within and between sections; those of a section that is None are left out."""
    found: list[Problem] = []
    if training:
        found += arguments.find_argument_problems(training.arguments)
    if training and launch:
        found += arguments.find_launch_conflicts(training, launch)
    if model and launch:
        found += network.find_model_conflicts(model, launch)
    if objective and model and training:
        found += find_continual_conflicts(objective, model, training, launch)
    if objective and model and training and launch:
        found += objective.conflicts(model=model, training=training, launch=launch)
    return found


def find_continual_conflicts(
    objective: Objective[Any], model: Model, training: Training, launch: Launch | None
) -> Iterator[Problem]:
    """Yield what does not fit together in a training that goes on from the published model."""
    if training.replay:
        yield from _replay_conflicts(objective, model, training)
    if model.start == "best" and training.resume not in {"auto", "never"}:
        what = "a checkpoint belongs to one start, and `model.start: best` has two"
        yield Problem(("training", "resume"), what, "remove one of the two")
    if model.start == "best" and overrides_method(objective, "set_reference"):
        what = "the metrics compare with the model that a training starts from, so those of two starts say nothing of each other"
        yield Problem(("model", "start"), what, "set `start: champion`; the gate compares what comes of it")
    if training.stay_close:
        yield from _stay_close_conflicts(model, training, launch)


def _replay_conflicts(objective: Objective[Any], model: Model, training: Training) -> Iterator[Problem]:
    key = ("training", "replay")
    if model.start == "base":
        what = "which rows are known is a question of the published model, and the training does not start from it"
        yield Problem(key, what, _START_FROM_CHAMPION)
    if objective.batch_group:
        yield Problem(key, f"rows with the same {objective.batch_group} share a global batch", "remove it")
    if training.global_batch_size < 2:
        what = "a global batch of one sequence cannot hold both a new and a known row"
        yield Problem(key, what, "set training.global_batch_size to 2 or more")


def _stay_close_conflicts(model: Model, training: Training, launch: Launch | None) -> Iterator[Problem]:
    key, fix = ("training", "stay_close"), "remove one of the two"
    if model.lora:
        yield Problem(key, "with adapters, the weights of the start do not move", fix)
    if training.optimizer in known_optimizers() and steps_in_backward(training.optimizer):
        yield Problem(key, f"{training.optimizer} changes weights before their whole gradient is known", fix)
    if launch and launch.accelerate_config:
        yield Problem(key, "with FSDP or DeepSpeed, no process has the whole weights", fix)
    if model.config and model.start == "base":
        yield Problem(key, "the training starts from random weights", _START_FROM_CHAMPION)


def find_weight_conflicts(objective: Objective[Any], training: Training) -> list[Problem]:
    """Find why sources of rows cannot have weights: orders that have each row once."""
    found = []
    if training.streaming:
        what = "reads the rows from first to last, and sources have weights (data.sources)"
        found.append(Problem(("training", "streaming"), what, "set `streaming: false`, or all weights to 1"))
    if training.replay:
        what = "draws known and new rows by its own share, and sources have weights (data.sources)"
        found.append(Problem(("training", "replay"), what, "remove it, or set all weights to 1"))
    if objective.batch_group:
        what = "learns from whole groups of rows, and sources have weights"
        found.append(Problem(("objective",), what, "set all weights in data.sources to 1, or choose another loss"))
    return found
