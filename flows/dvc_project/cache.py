"""DVC's cache: what neither the project nor a release uses, deleted by DVC.

The command `dvc gc` keeps what git has committed. The hashes of a release are in its own record, and perhaps nowhere else.
A cache that other projects may use is never emptied: nobody knows what they need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from flows.dvc_project import references
from flows.dvc_project.stage import open_dvc_repository


def folder() -> tuple[Path, str | None]:
    """Return the folder of the cache, and why other projects may use it; None if it is this project's alone."""
    with open_dvc_repository("DVC's cache") as repo:
        root, cache = Path(repo.root_dir).resolve(), Path(repo.cache.local_cache_dir).resolve()
        if not cache.is_relative_to(root):
            return cache, "it is outside of the project"
        return cache, "`cache.shared` says so" if repo.config["cache"].get("shared") else None


def measure_unused_objects(needed: Collection[str], *, remove: bool = False) -> int:
    """Return the bytes of the objects that are not in use; with `remove`, delete them.

    In use are the objects that the project has or can go back to (`flows.dvc_project.references`), and those in `needed` (MD5 hashes).

    Raises:
        TransientError: another process holds DVC's lock.
        EvergreenError: DVC or git cannot say what is in use.
    """
    from dvc_data.hashfile.gc import gc

    with open_dvc_repository("DVC's cache") as repo, repo.lock:  # without this lock, no stage can add an object
        cache = repo.cache.local
        used = {info for infos in repo.used_objs(force=True).values() for info in infos}
        used |= set(_with_files(cache, {*needed, *references.find_referenced_hashes()}))
        hashes = {info.value for info in used}
        freed = sum(Path(cache.oid_to_path(found)).stat().st_size for found in cache.all() if found not in hashes)
        if remove:
            gc(cache, used)
        return freed


def _with_files(cache: Any, hashes: Collection[str]) -> Iterator[Any]:
    """Yield DVC's objects for the hashes and, where one is of a folder in the cache, for the files in it."""
    from dvc_data.hashfile import load
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    for value in hashes:
        info = HashInfo("md5", value)
        yield info
        if info.isdir:
            with contextlib.suppress(FileNotFoundError, ObjectFormatError):
                folder = load(cache, info)
                assert isinstance(folder, Tree)
                yield from (file for _, _, file in folder)
