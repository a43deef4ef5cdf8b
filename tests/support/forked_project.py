"""The project's modules, imported once for all forks: one in an unedited copy of the project takes them for those of the copy.

A fork in a copy that a test has edited, or in no copy, forgets them and imports what is there.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("params", "trainer", "tasks", "flows")
_BELOW = tuple(f"{package}." for package in PACKAGES)
_ENGINES = ("flows.retrain", "flows.server", "flows.watch", "flows.run")
"""They import Prefect's engines, which configure logs when they are imported."""
_files: dict[str, tuple[int, int, bytes]] = {}
"""Size, time and content of each file of the project, by its path in it."""
_places: list[tuple[dict[str, Any], str]] = []
"""Where the modules name files of the project, beside what Python says of a module."""
_environment: dict[str, str] = {}
"""Variables that the modules set when they are imported."""


def import_all() -> None:
    """Import the modules that commands of the project share."""
    before = dict(os.environ)
    for package in PACKAGES:
        for found in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not found.name.startswith(_ENGINES) and not found.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # of a package that is not installed
                    importlib.import_module(found.name)
    for name, status in _scan(ROOT):
        _files[name] = (status.st_size, status.st_mtime_ns, (ROOT / name).read_bytes())
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, Path) and value.is_relative_to(ROOT):
                _places.append((vars(module), name))
    _environment.update({name: value for name, value in os.environ.items() if before.get(name) != value})
    os.environ.clear()
    os.environ.update(before)


def use_in_fork(path: Sequence[str], *started: str) -> None:
    """Take over the modules, if the first project on `path` has the same ones; those that are `started` run again."""
    root = next((folder for folder in map(Path, path) if Path(folder, "params/__init__.py").exists()), None)
    if root != ROOT:
        if root is None or not _is_unedited(root):
            forget()
            return
        _move(root)
    for name in started:
        if name.startswith(PACKAGES):
            sys.modules.pop(name, None)
    for name, value in _environment.items():
        os.environ.setdefault(name, value)


def forget() -> None:
    """Let the project's modules be imported again."""
    for module in modules():
        del sys.modules[module.__name__]


def modules() -> list[ModuleType]:
    """The modules of the project that this process has imported."""
    return [module for name, module in sys.modules.items() if name.startswith(_BELOW) or name in PACKAGES]


def _scan(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files that decide what the modules are and do; recipes do not."""
    folders = [*PACKAGES]
    while folders:
        with os.scandir(root / (folder := folders.pop())) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_dir():
                    folders += [name] if entry.name != "__pycache__" else []
                elif folder != "params" or entry.name.endswith(".py"):
                    yield name, entry.stat()


def _is_unedited(root: Path) -> bool:
    if not all((root / package).is_dir() for package in PACKAGES):
        return False
    found = dict(_scan(root))
    return found.keys() == _files.keys() and all(
        status.st_size == size and (status.st_mtime_ns == time or (root / name).read_bytes() == content)
        for (name, status), (size, time, content) in zip(found.items(), map(_files.get, found), strict=True)
    )


def _move(root: Path) -> None:
    """Let the modules be those of the folder `root`."""

    def moved(path: str) -> str:
        return str(root) + path.removeprefix(str(ROOT))

    for module in modules():
        if (spec := module.__spec__) is None or spec.origin is None:
            continue
        spec.origin = module.__file__ = spec.loader.path = moved(spec.origin)  # type: ignore[union-attr]
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = module.__path__ = [moved(one) for one in module.__path__]  # type: ignore[assignment]
    for names, name in _places:
        names[name] = root / names[name].relative_to(ROOT)
