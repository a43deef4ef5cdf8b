"""Import the Python objects that a recipe names as `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from params.errors import RecipeError
from params.loading import suggestion
from params.schema import IMPORTABLE, Call

_NAME = re.compile(IMPORTABLE)


def resolve(name: str, key: str) -> Callable[..., Any]:
    """Return the function or class that a recipe names under `key`.

    Raises:
        RecipeError: there is no such object, its module cannot be imported, or the object cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            fix = "write package.module:name, as Python imports it in the project's root"
            raise RecipeError.at(key, f"{name}: there is no module `{error.name}`", fix) from error
        what = f"{name}: `{module_name}` imports {error.name}, which is not installed"
        raise RecipeError.at(key, what, f"pip install {error.name}") from error
    except Exception as error:
        what = f"{name}: `{module_name}` cannot be imported: {type(error).__name__}: {error}"
        raise RecipeError.at(key, what, f"try `python -c 'import {module_name}'`") from error
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)]
        what = f"{name}: `{module_name}` has no `{attribute}`"
        raise RecipeError.at(key, what, suggestion(attribute, known, "names"))
    found = getattr(module, attribute)
    if not callable(found):
        what = f"{name}: `{attribute}` is a value of type {type(found).__name__}, which cannot be called"
        raise RecipeError.at(key, what, "name a function or a class")
    resolved: Callable[..., Any] = found
    return resolved


def bind(call: Call, key: str, arity: int) -> Callable[..., Any]:
    """Return the function that a recipe names under `key`, with the recipe's arguments bound.

    The pipeline passes `arity` more positional arguments.

    Raises:
        RecipeError: as `resolve`, or the function does not take these arguments.
    """
    function = resolve(call.name, key)
    try:
        signature = inspect.signature(function)
        signature.bind(*range(arity), **call.arguments)
    except TypeError as error:
        what = f"{call.name}: cannot be called with {arity} values"
        what += f" and {sorted(call.arguments)}" if call.arguments else ""
        raise RecipeError.at(key, f"{what}: {error}", f"its signature is {signature}") from error
    return lambda *values: function(*values, **call.arguments)


def source_files(value: Any) -> Iterator[tuple[str, Path]]:
    """Yield every `package.module:name` in a part of a recipe with the file that defines it, without importing it."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from source_files(inner)
    elif isinstance(value, str) and _NAME.fullmatch(value):
        try:
            spec = importlib.util.find_spec(value.partition(":")[0])
        except ImportError:
            return
        if spec and spec.origin and spec.origin.endswith(".py"):
            yield value, Path(spec.origin)
