"""Formats of files. A format is one module here, with one subclass of `Format`; it is found by its suffixes.

There is no list of formats. A module without such a class is no format: others may share it. Installed packages bring more of them, as
entry points in the group `evergreen.formats` that have the names of suffixes; docs/add-a-format.md says how.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path, PurePath

from params.foundation.plugins import find_plugins
from tasks.ingestion.batches import Batches
from tasks.ingestion.encodings import format_suffix, translate_read_errors
from tasks.ingestion.formats.base import Format, WantedRows

_GROUP = "evergreen.formats"


def find_format(name: str | PurePath) -> Format | None:
    """Return the format of a file by its name; None if nothing reads it. What is built in comes first.

    Raises:
        RecipeError: an installed package says that it reads such files, and cannot be imported.
    """
    suffix = format_suffix(name)
    return _built_in_formats().get(suffix) or _installed_format(suffix)


def format_of(name: str | PurePath) -> Format:
    """Return the format of a file that has one."""
    found = find_format(name)
    assert found, f"{name} has been matched by a pattern, which refuses other files"
    return found


def readable_suffixes() -> list[str]:
    """Return the suffixes of all files that can be read; those of text may have one of `COMPRESSIONS` behind it."""
    return list(dict.fromkeys([*_built_in_formats(), *(f".{name}" for name in sorted(find_plugins(_GROUP)))]))


def read_rows_of_file(path: Path, name: str, wanted: WantedRows = WantedRows()) -> Batches:  # noqa: B008 - it is frozen
    """Yield the rows of one file, which errors call `name`.

    Raises:
        DataError: the file is empty, unreadable or malformed.
    """
    with translate_read_errors(path, name):
        yield from format_of(path).batches(path, name, wanted)


def read_file_columns(path: Path, name: str) -> set[str] | None:
    """Return the columns that a file says to have, by a look at its beginning; None if only its rows name theirs."""
    with translate_read_errors(path, name):
        return format_of(path).columns(path, name)


def can_be_cut(path: Path, name: str) -> bool:
    """Whether a file can be read from any row on."""
    return format_of(path).can_be_cut(path, name)


@cache
def _built_in_formats() -> dict[str, Format]:
    """Return the formats in this folder, by suffix."""
    found = dict[str, Format]()
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        for cls in own:
            if issubclass(cls, Format) and cls is not Format:
                found |= dict.fromkeys(cls.suffixes, cls())
    return found


def _installed_format(suffix: str) -> Format | None:
    """Return the format that an installed package brings for a suffix."""
    plugin = find_plugins(_GROUP).get(suffix.removeprefix("."))
    if plugin is None:
        return None
    found: Format = plugin.load()()
    found.package = str(plugin)  # its files are read anew by another version
    return found
