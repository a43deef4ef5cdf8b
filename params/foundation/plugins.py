"""What installed packages bring: objects that the entry points of their metadata name, each in the group of its kind.

A package says in its pyproject.toml:

    [project.entry-points."evergreen.objectives"]
    reversal = "our_objectives.reversal:Reversal"

What is built in comes first: a group is only looked at for a name that Evergreen itself does not have, because that reads the metadata of
every installed package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from params.foundation.errors import RecipeError

OBJECTIVES: Final = "evergreen.objectives"
"""The group of objectives; a recipe names one as it names a built-in one."""
FUNCTIONS: Final = "evergreen.functions"
"""The group of what else a recipe may name as `package.module:name`: losses, rewards, metrics, callbacks, Trainers."""


@dataclass(frozen=True)
class Plugin:
    """An object that an installed package brings under a name."""

    name: str
    package: str
    version: str
    entry_point: EntryPoint

    @property
    def place(self) -> str:
        """Where the object is defined, as `package.module:name`."""
        return f"{self.entry_point.module}:{self.entry_point.attr}"

    def load(self) -> Any:
        """Import the object.

        Raises:
            RecipeError: that fails.
        """
        try:
            return self.entry_point.load()
        except Exception as error:
            what = f"`{self.name}` of the package {self}, {self.place}, cannot be imported: {type(error).__name__}: {error}"
            fix = f"try `python -c 'import {self.entry_point.module}'`, or install another version of {self.package}"
            raise RecipeError(self.entry_point.group, what, fix) from error

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@functools.cache
def find_plugins(group: str) -> Mapping[str, Plugin]:
    """Return what installed packages bring in a group, such as `evergreen.objectives`, by name; nothing is imported.

    Raises:
        RecipeError: two packages bring the same name, and a recipe cannot say which one it means.
    """
    found: dict[str, Plugin] = {}
    for point in entry_points(group=group):
        assert point.dist, "the metadata of an installed package has it"
        plugin = Plugin(point.name, point.dist.name, point.dist.version, point)
        other = found.setdefault(point.name, plugin)
        if other is not plugin:
            what = f"`{point.name}` is brought by two installed packages, {other} and {plugin}"
            raise RecipeError(group, what, "uninstall one of them")
    return found
