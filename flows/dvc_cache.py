"""DVC's cache: what neither the project nor a release uses, deleted by DVC.

The command `dvc gc` keeps what git has committed. The hashes of a release are in its own record, and perhaps nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from params import EvergreenError, TransientError


def unused(needed: Collection[str], *, remove: bool = False) -> int:
    """Return the bytes of the objects that are not in use; with `remove`, delete them.

    In use are the objects in dvc.lock, as it is here and on every branch and tag, and those in `needed` (MD5 hashes).

    Raises:
        TransientError: another process holds DVC's lock.
        EvergreenError: DVC cannot say what is in use.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.scm import NoSCM
    from dvc_data.hashfile.gc import gc

    # It warns, for each output, of branches on which dvc.lock is not committed: they use nothing.
    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(_wait_for_lock=True) as repo, repo.lock:  # without this lock, no stage can add an object
            has_git = not isinstance(repo.scm, NoSCM)
            by_remote = repo.used_objs(all_branches=has_git, all_tags=has_git, force=True)
            cache = repo.cache.local
            used = {info for infos in by_remote.values() for info in infos} | set(_with_files(cache, needed))
            hashes = {info.value for info in used}
            freed = sum(Path(cache.oid_to_path(found)).stat().st_size for found in cache.all() if found not in hashes)
            if remove:
                gc(cache, used)
            return freed
    except LockError as error:
        raise TransientError(".dvc", f"another process holds DVC's lock: {error}", "wait until it ends") from None
    except DvcException as error:
        raise EvergreenError(".dvc", f"DVC: {error}", "correct what it names; nothing was deleted") from None


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
