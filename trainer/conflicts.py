"""Which sections of a recipe about training do not fit together, or do not work on this machine.

`check` reports the conflicts before anything runs, and `trainer.build` refuses a job that has any.
"""

from __future__ import annotations

from typing import Any

from params import Problem
from params.schema import Launch, Model, Training
from trainer.loop import arguments
from trainer.model import network
from trainer.objectives.bases.objective import Objective


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
    if objective and model and training and launch:
        found += objective.conflicts(model=model, training=training, launch=launch)
    return found


def find_weight_conflicts(objective: Objective[Any], training: Training) -> list[Problem]:
    """Find why sources of rows cannot have weights: orders that have each row once."""
    found = []
    if training.streaming:
        what = "reads the rows from first to last, and sources have weights (data.sources)"
        found.append(Problem(("training", "streaming"), what, "set `streaming: false`, or all weights to 1"))
    if objective.batch_group:
        what = "learns from whole groups of rows, and sources have weights"
        found.append(Problem(("objective",), what, "set all weights in data.sources to 1, or choose another loss"))
    return found
