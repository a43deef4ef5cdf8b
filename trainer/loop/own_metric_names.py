"""The names of a recipe's own metrics, against those of the metrics that its objective computes."""

from __future__ import annotations

from typing import Any

from params import Problem, RecipeError
from params.sections.evaluation import OwnMetrics
from trainer.objectives.bases.objective import Objective

_DIRECTIONS = ("evaluation", "metrics", "directions")


def find_metrics_computed_twice(
    own: OwnMetrics | None, objective: Objective[Any] | type[Objective[Any]]
) -> list[Problem]:
    """Return which of the recipe's own metrics have the name of one that the objective computes, in training or in evaluate alone.

    The function would give its values, and `directions` would turn the gate around.
    """
    known = objective.metrics
    name = (objective if isinstance(objective, type) else type(objective)).__module__.rpartition(".")[2]
    return [
        Problem((*_DIRECTIONS, metric), f"{name} already computes {metric}", "give your metric another name")
        for metric in (own.directions if own else ())
        if metric in known
    ]


def refuse_metrics_computed_twice(own: OwnMetrics | None, objective: Objective[Any]) -> None:
    """Raise a RecipeError if one of the recipe's own metrics has the name of one that the objective computes."""
    for problem in find_metrics_computed_twice(own, objective):
        raise RecipeError.at(".".join(map(str, problem.key)), problem.what, problem.fix)
