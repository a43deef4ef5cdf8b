"""Files that `dvc import`, `dvc import-url` or `dvc import-db` brought, and that a recipe with `refresh: true` reads."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

from flows.dvc_project.stage import open_dvc_repository
from params import EvergreenError, load
from params.foundation.artifacts import Artifacts
from params.schema import Files


def refreshed_import_stages(repo: Any, recipe: str) -> list[Any]:
    """Return DVC's import stages whose files the recipe keeps up to date; empty if the recipe cannot be read.

    Args:
        repo: the project's DVC repository.
        recipe: name of the recipe.
    """
    if not (source := _refreshed_source(recipe)):
        return []
    places = [_place(repo, pattern) for pattern in source.patterns.values()]
    outs = [(Path(out.fs_path), out.stage) for out in repo.index.outs if out.stage.is_import]
    return [stage for path, stage in outs if any(_overlap(path, place) for place in places)]


def refreshed_import_paths(recipe: str) -> list[str]:
    """Return the paths of the .dvc files of `refreshed_import_stages`."""
    if not _refreshed_source(recipe):
        return []
    with open_dvc_repository(recipe) as repo:
        return [stage.relpath for stage in refreshed_import_stages(repo, recipe)]


def _refreshed_source(recipe: str) -> Files | None:
    with contextlib.suppress(EvergreenError):
        source = load(Artifacts(recipe).recipe_path).data.source
        if isinstance(source, Files) and source.refresh:
            return source
    return None


def same_origin(ours: bytes, theirs: bytes) -> bool:
    """Whether two versions of a .dvc file import the same thing, although at different times."""
    from dvc.utils.serialize import YAMLFileCorruptedError, parse_yaml

    def origin(text: bytes) -> Any:
        (dep,) = parse_yaml(text.decode(errors="replace"), "an import")["deps"]
        repo = {key: value for key, value in dep.get("repo", {}).items() if key != "rev_lock"}
        return dep.get("path"), repo, dep.get("db")

    try:
        return bool(origin(ours) == origin(theirs))
    except (YAMLFileCorruptedError, KeyError, TypeError, ValueError, AttributeError):
        return False


def _place(repo: Any, pattern: str) -> Path:
    """The file that a pattern of the recipe names, or the folder in which all that it matches lies."""
    parts = itertools.takewhile(lambda part: not set(part) & set("*?["), Path(pattern).parts)
    return Path(os.path.normpath(Path(repo.root_dir, *parts)))


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
