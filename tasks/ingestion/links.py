"""Links among files of data: one that leads out of the folder would make rows of a private file, and an archive of a stranger can hold one.

A link within the folder is followed, and so are those that DVC and git-annex make, to what they keep of this project, and those that `evergreen
reproduce` makes, to the same file of the project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from params import DataError
from params.foundation.object_stores import ObjectStore, copy_command, find_object_stores, is_kept

LINKED_PROJECT: Final = "EVERGREEN_LINKED_PROJECT"
"""Environment variable: the project whose files a temporary clone has links to."""
_WILD: Final = re.compile(r"[*?\[]")


def refuse_links_out_of_folder(
    root: Path, pattern: str, names: Iterable[str], key: str, within: Path | None = None
) -> None:
    """Raise DataError under `key` if a file that matches a pattern is elsewhere: not below the pattern's folder, or `within`.

    The pattern's folder, which somebody has named, may be a link itself.
    """
    base = _folder_of(root, pattern)
    here, allowed = base.resolve(), (within or base).resolve()
    folders, stores = dict[Path, Path](), list[ObjectStore]()
    for name in names:
        target = _target(root / name, folders)
        is_itself = target == here / os.path.relpath(root / name, base)
        if is_itself or _is_below(target, allowed) or _is_of_project(root / name, target):
            continue
        stores = stores or _stores(base)
        if not is_kept(target, stores):
            raise _error(key, name, target)


def refuse_linked_folders(root: Path, pattern: str, key: str) -> None:
    """Raise DataError under `key` if the folders that `**` stands for have a link to a folder elsewhere, before anybody looks in there."""
    if "**" not in pattern:
        return
    base = _folder_of(root, pattern)
    for folder, inner, _ in os.walk(base):
        for name in inner:
            path = Path(folder, name)
            if not path.is_symlink():
                continue
            target = path.resolve()
            if not (_is_below(target, base.resolve()) or _is_of_project(path, target)):
                raise _error(key, os.path.relpath(path, root), target)


def _stores(folder: Path) -> list[ObjectStore]:
    """Return what keeps files of the project that a folder is in, also if that is a temporary clone with links to another one."""
    project = os.environ.get(LINKED_PROJECT)
    return find_object_stores(folder) + (find_object_stores(Path(project)) if project else [])


def _folder_of(root: Path, pattern: str) -> Path:
    """Return the folder that a pattern names before its first wildcard, or in which the file is that it names."""
    is_file = (root / pattern).is_file()
    return root / os.path.dirname(pattern if is_file else _WILD.split(pattern)[0])  # noqa: PTH120 - of a text with a glob


def _is_below(target: Path, folder: Path) -> bool:
    """Whether a path is below a folder, and not in a hidden folder or file of it."""
    return target.is_relative_to(folder) and not any(part.startswith(".") for part in target.relative_to(folder).parts)


def _is_of_project(path: Path, target: Path) -> bool:
    """Whether a link of a temporary clone leads to the same file of the project, which is no link there."""
    project = os.environ.get(LINKED_PROJECT)
    if not project:
        return False
    same = Path(project) / os.path.relpath(path)
    return target == same.parent.resolve() / same.name


def _target(path: Path, folders: dict[Path, Path]) -> Path:
    """Return where a file is; `folders` has where those are that were looked at, because there may be many files."""
    if path.is_symlink():
        return path.resolve()
    if path.parent not in folders:
        folders[path.parent] = path.parent.resolve()
    return folders[path.parent] / path.name


def _error(key: str, name: str, target: Path) -> DataError:
    what = f"{name!a} is a link that leads out of its folder, to {str(target)!a}: it may make rows of a private file"
    fix = "remove it, or copy the file there; if it is yours, name the file or folder that it leads to"
    if command := copy_command(name, target):
        fix = f"`{command}` puts a copy there, if the file is yours; else remove the link"
    return DataError.at(key, what, fix)
