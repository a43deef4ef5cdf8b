"""The objectives that `evergreen new` can propose."""

from __future__ import annotations

from trainer import objectives
from trainer.objectives.advice.base import NewRecipeAdvice


def proposable_objectives() -> dict[str, NewRecipeAdvice]:
    """Return the objectives that can be proposed, in the order in which those that fit as well are."""
    found = {name: objectives.import_objective_class(name).advice for name in objectives.objective_names()}
    known = {name: advice for name, advice in found.items() if isinstance(advice, NewRecipeAdvice)}
    return dict(sorted(known.items(), key=lambda item: item[1].place))
