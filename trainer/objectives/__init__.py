"""What is learned. An objective is one module here, named after itself, with one subclass of `Objective` in it.

`find(name)` imports the module; there is no list to keep. All that is particular to an objective stands in its file:
the columns it needs, how a row becomes tokens and tokens a batch, the model's head, the Trainer, how logits become
figures. torch and transformers are imported inside functions, so that `check` can ask an objective without them.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pydantic

from params import Problem, RecipeError
from params.loading import suggestion
from params.schema import ObjectiveChoice
from trainer.objectives.bases.objective import Objective


def names() -> list[str]:
    """The objectives there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def find(name: str) -> type[Objective[Any]]:
    """The objective class in `trainer/objectives/<name>.py`.

    Raises:
        RecipeError: there is no such module.
    """
    if name not in names():
        raise RecipeError("objective.name", f"there is no objective `{name}`", suggestion(name, names(), "objectives"))
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, Objective) and c.__module__ == module.__name__
    ]
    assert len(classes) == 1, f"{module.__name__} must define exactly one Objective"
    found: type[Objective[Any]] = classes[0]
    return found


def problems(choice: ObjectiveChoice) -> list[Problem]:
    """What is wrong with the recipe's `objective` section."""
    try:
        cls = find(choice.name)
        cls.options_class.model_validate(choice.options)
    except RecipeError as error:
        return [Problem(("objective", "name"), error.what, error.fix)]
    except pydantic.ValidationError as error:
        return [
            Problem(
                ("objective", *e["loc"]),
                f"{e['msg'][0].lower()}{e['msg'][1:]}, found {e['input']!r}",
                suggestion(str(e["loc"][-1]), list(cls.options_class.model_fields), "options"),
            )
            for e in error.errors()
        ]
    return []


def build(choice: ObjectiveChoice) -> Objective[Any]:
    """The objective that a recipe asks for.

    Raises:
        RecipeError: it does not exist, or its options are wrong.
    """
    found = problems(choice)
    if found:
        lines = "\n".join(f"{'.'.join(map(str, p.key))}: {p.what}; {p.fix}" for p in found)
        raise RecipeError("objective", f"cannot be built\n{lines}", "mend the keys above")
    cls = find(choice.name)
    return cls(cls.options_class.model_validate(choice.options))
