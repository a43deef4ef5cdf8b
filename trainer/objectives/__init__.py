"""What a model learns. An objective is one module here, with one subclass of `Objective`; its name is the module's.

`import_objective_class(name)` imports the module, or what an installed package brings under this name; there is no list of objectives. A module
without such a class is no objective: others may share it. A module holds everything that is specific to its objective:
the columns it needs, how a row becomes tokens and tokens a batch, the model's head, the Trainer, the scores and metrics.
Modules take numpy, scipy, torch and transformers from `bases.lazy_imports`, so that `check` needs none of them.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pydantic

from params import Problem, RecipeError
from params.foundation.errors import see_limits
from params.foundation.plugins import OBJECTIVES, Plugin, find_plugins
from params.problems import problems_error, suggestion, validation_problem
from params.schema import ObjectiveChoice
from trainer.objectives.bases.objective import Objective, PromptForm, Row

logger = logging.getLogger(__name__)


def objective_names() -> list[str]:
    """Return the names of all objectives, which are imported for that."""
    return sorted(objective_classes())


def objective_classes() -> dict[str, type[Objective[Any]]]:
    """Return all objectives by name; without one that is broken, which a warning says: it concerns whoever names it."""
    found = {}
    for name in [*_module_names(), *_installed_names()]:
        try:
            if cls := _class_named(name):  # other modules are shared by some
                found[name] = cls
        except RecipeError as error:
            _warn_once(f"{error.what}: {error.fix}")
    return found


def _installed_names() -> list[str]:
    try:
        return list(find_plugins(OBJECTIVES))
    except RecipeError as error:
        _warn_once(f"{error.what}: {error.fix}")
        return []


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def find_objective_class(name: str) -> type[Objective[Any]] | None:
    """Return the objective class of this name; None where `import_objective_class` says why there is none."""
    try:
        return import_objective_class(name)
    except RecipeError:
        return None


def import_objective_class(name: str) -> type[Objective[Any]]:
    """Return the objective class in `trainer/objectives/<name>.py`, or of an installed package; RecipeError if there is none, or it is broken."""
    found = _class_named(name)
    if found is None:
        fix = suggestion(name, objective_names(), "objectives") + see_limits("objective")
        what = f"; trainer/objectives/{name}.py defines no subclass of Objective" if name in _module_names() else ""
        raise RecipeError("objective.name", f"there is no objective `{name}`{what}", fix)
    return found


def _class_named(name: str) -> type[Objective[Any]] | None:
    known = sys.modules.get(f"{__name__}.{name}")  # a look at the folder takes longer than all else here
    if (known is not None and not hasattr(known, "__path__")) or name in _module_names():
        classes = _import_classes(name)
        return _only_one(name, classes) if classes else None
    plugin = find_plugins(OBJECTIVES).get(name)
    return _class_of_plugin(plugin) if plugin else None


def _class_of_plugin(plugin: Plugin) -> type[Objective[Any]]:
    try:
        found = plugin.load()
    except RecipeError as error:
        raise error.replace(where="objective.name") from error
    if not (isinstance(found, type) and issubclass(found, Objective)):
        what = f"`{plugin.name}` of the package {plugin}, {plugin.place}, is no subclass of Objective"
        raise RecipeError("objective.name", what, f"install another version of {plugin.package}")
    return found


def _module_names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]


def _import_classes(name: str) -> list[type[Objective[Any]]]:
    """Return the subclasses of Objective that a module here defines; RecipeError if it cannot be imported."""
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except Exception as error:
        what = f"trainer/objectives/{name}.py cannot be imported: {type(error).__name__}: {error}"
        raise RecipeError("objective.name", what, f"try `python -c 'import {__name__}.{name}'`") from error
    own = {c: None for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__}
    return [c for c in own if issubclass(c, Objective)]


def _only_one(name: str, classes: Sequence[type[Objective[Any]]]) -> type[Objective[Any]]:
    if len(classes) > 1:
        named = " and ".join(c.__name__ for c in classes)
        what = f"trainer/objectives/{name}.py defines {len(classes)} objectives, {named}, and a recipe names the file"
        raise RecipeError(
            "objective.name", what, "leave one class in it, and move what it extends to a file of its own"
        )
    return classes[0]


def find_option_problems(choice: ObjectiveChoice) -> list[Problem]:
    """Return what is wrong with the recipe's `objective` section."""
    try:
        cls = import_objective_class(choice.name)
        cls.options_class.model_validate(choice.options)
    except RecipeError as error:
        return [Problem(("objective", "name"), error.what, error.fix)]
    except pydantic.ValidationError as error:
        return [validation_problem(e, ("objective", *e["loc"]), cls.options_class) for e in error.errors()]
    return []


def build_objective(choice: ObjectiveChoice) -> Objective[Any]:
    """Return the objective that a recipe names, with its options; RecipeError if these are invalid."""
    if problems := find_option_problems(choice):
        raise problems_error(problems)
    cls = import_objective_class(choice.name)
    return cls(cls.options_class.model_validate(choice.options))


def prompt_form(section: Mapping[str, Any] | None, *, has_template: bool) -> PromptForm:
    """Return how a text is put to a model that learned by `section`, the objective of a recipe; None if that is not known.

    `has_template`: the tokenizer has a chat template. A model of an unknown objective is then taken for a chat model.
    """
    try:
        form = import_objective_class(str((section or {}).get("name"))).prompt_form(section or {})
    except RecipeError:  # of another project
        form = PromptForm(is_chat=True)
    return replace(form, is_chat=form.is_chat and has_template)


def needs_row_check(objective: Objective[Any], check: str) -> bool:
    """Whether a check, `reject_reason` or `unseen_label`, finds something that no expectation of a column does."""
    kinds = {"reject_reason": {"labels", "numbers", "optional", "records"}, "unseen_label": {"label", "labels"}}
    return overrides_method(objective, check) or not kinds[check].isdisjoint(objective.columns().values())


def why_row_unusable(objective: Objective[Any], row: Row) -> str | None:
    """Return why nothing can be made of a row, by `Objective.reject_reason`; a nested value may have any form."""
    for column, kind in objective.columns().items():
        if kind == "records" and not isinstance(row[column], list | None):
            return f"its {column} is no list"
    try:
        return objective.reject_reason(row)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return f"it has another form than the objective reads: {type(error).__name__}: {error}"


def content_of_row(objective: Objective[Any], row: Row) -> Mapping[str, Any]:
    """Return the content of a row, by `Objective.content`; of one that the objective cannot read, its columns as they are."""
    try:
        return objective.content(row)
    except (AttributeError, LookupError, TypeError, ValueError):
        return {column: row[column] for column in objective.columns()}


def input_of_row(objective: Objective[Any], row: Row) -> Mapping[str, Any]:
    """Return what a model is given of a row, by `Objective.input_content`; of one that the objective cannot read, its columns as they are."""
    try:
        return objective.input_content(row)
    except (AttributeError, LookupError, TypeError, ValueError):
        return {column: row[column] for column in objective.columns() if column not in objective.target_columns()}


def overrides_method(objective: Objective[Any], method: str) -> bool:
    """Whether an objective has its own form of an optional method, such as `reject_reason`: then it is worth a pass over all rows."""
    return getattr(type(objective), method) is not getattr(Objective, method)
