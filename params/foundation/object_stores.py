"""Where DVC and git-annex keep the content of a project's files, which may then be links that lead there."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

ObjectStore: TypeAlias = tuple[Path, re.Pattern[str]]
"""A folder, and how the paths of objects in it read."""
_DVC: Final = re.compile(r"(files/md5/)?[0-9a-f]{2}/[0-9a-f]{30}")
"""As DVC 3 names them, or DVC 2."""
_ANNEX: Final = re.compile(r"(modules/.+/)?annex/objects/.+")
"""In the folder `.git` of a repository, also for its submodules."""


def find_object_stores(folder: Path) -> list[ObjectStore]:
    """Return the stores of the projects that a folder is in. Those of other projects are not: a link of a stranger may lead there."""
    tops = dict.fromkeys(top for own in (folder.absolute(), folder.resolve()) for top in (own, *own.parents))
    return [
        *((top / ".git", _ANNEX) for top in tops if (top / ".git").is_dir()),
        *((cache.resolve(), _DVC) for top in tops if (top / ".dvc").is_dir() for cache in _caches_of_dvc(top / ".dvc")),
    ]


def is_kept(target: Path, stores: Iterable[ObjectStore]) -> bool:
    """Whether a file, by its real path, is an object of one of the stores."""
    return any(
        target.is_relative_to(place) and objects.fullmatch(target.relative_to(place).as_posix())
        for place, objects in stores
    )


def copy_command(name: str, target: Path) -> str | None:
    """Return the command that puts an object in the place of the link that leads to it; None if the target is no such object."""
    path, shown = target.as_posix(), shlex.quote(name)
    if re.fullmatch(rf".*/\.git/{_ANNEX.pattern}", path):
        return f"git annex unlock {shown}"
    return f"dvc unprotect {shown}" if re.fullmatch(rf".*/{_DVC.pattern}", path) else None


def _caches_of_dvc(settings: Path) -> Iterator[Path]:
    """Yield the usual cache of a project, and those that DVC's settings name: of the project, the user and the machine."""
    yield settings / "cache"
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for file in (settings / "config", settings / "config.local", user / "dvc/config", Path("/etc/xdg/dvc/config")):
        found = configparser.ConfigParser(interpolation=None, strict=False)
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            found.read(file, encoding="utf-8")
        if place := found.get("cache", "dir", fallback="").strip("\"'"):
            yield settings / Path(place).expanduser()
