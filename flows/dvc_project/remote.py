"""The project's default DVC remote: what it has and is missing here, and what it gets.

It gets the objects that dvc.lock records, and the entries of DVC's run cache that lead to them. With these, a run that is
recorded nowhere else is not lost: a worker with the same inputs restores its outputs instead of running.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from params import DataError, EvergreenError, RemoteRefusedError, StorageError, TransientError
from params.foundation.artifacts import as_storage_error

_LATER = "run it again when the remote answers: nothing is lost"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


def read_default_remote_name() -> str | None:
    """Return the name of the default remote of the project in the working directory; None if none is configured."""
    name: str | None = _read_configuration()["core"].get("remote")
    return name


def read_cache_folder() -> Path | None:
    """Return the folder that `cache.dir` gives to DVC's cache, without links; None if that is the project's own."""
    folder = _read_configuration()["cache"].get("dir")
    return Path(folder).resolve() if folder else None


def require_default_remote_folder() -> None:
    """Check that the default remote is there, if it is a folder: a share that is not mounted is none.

    Raises:
        TransientError: it is not.
    """
    configuration = _read_configuration()
    name = configuration["core"].get("remote")
    url = configuration["remote"].get(name, {}).get("url", "") if name else ""
    if url and ("://" not in url or url.startswith("file://")):
        _require_folder_in_use(Path(url.removeprefix("file://")), f"the DVC remote `{name}`")


def _require_folder_in_use(folder: Path, remote: str) -> None:
    """Check that a remote's folder is there and has something in it: an empty one may be the place of a share that is not mounted."""
    if folder.is_dir() and any(folder.iterdir()):
        return
    what = f"{folder} is {'empty' if folder.is_dir() else 'no folder'}: a share may not be mounted there"
    raise TransientError(
        remote, what, f"mount it; for a new remote, make its first folder: mkdir -p {folder}/files/md5"
    )


def _read_configuration() -> Any:
    from dvc.config import Config, ConfigError

    try:
        return Config(".dvc")
    except ConfigError as error:
        fix = "correct .dvc/config or .dvc/config.local"
        raise RemoteRefusedError("DVC's configuration", str(error), fix) from None


@contextlib.contextmanager
def _errors_of_transfer() -> Iterator[list[BaseException]]:
    """Collect the error of each object that DVC does not transfer, which it only logs, each with a traceback."""
    found: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        found.extend([error] if error else [])
        return not error

    log = logging.getLogger("dvc_data.hashfile.transfer")
    log.addFilter(collect)
    try:
        yield found
    finally:
        log.removeFilter(collect)


@contextlib.contextmanager
def _noted_names_of_begun_files(names: set[str]) -> Iterator[None]:
    """Add to `names` the random name of each file that DVC begins to write, in any thread of this process."""
    from dvc_objects.fs import local, utils

    modules: tuple[Any, ...] = (local, utils)
    make_name = utils.tmp_fname

    def make_and_note(*prefix: str) -> str:
        name: str = make_name(*prefix)
        names.add(Path(name).name)
        return name

    for module in modules:
        module.tmp_fname = make_and_note
    try:
        yield
    finally:
        for module in modules:
            module.tmp_fname = make_name


@dataclass(frozen=True)
class DvcRemote:
    """The default remote of a DVC repository; without a name, DVC's cache in place of a remote: it has what is in it."""

    repo: Any
    name: str

    @classmethod
    def of(cls, repo: Any) -> DvcRemote | None:
        """Return the default remote; None if there is none, or if it keeps versions of files instead of objects."""
        name = repo.config["core"].get("remote")
        settings = repo.config["remote"].get(name, {})
        return None if not name or settings.get("worktree") or settings.get("version_aware") else cls(repo, name)

    def __str__(self) -> str:
        return f"the DVC remote `{self.name}`" if self.name else "DVC's cache"

    def fetch(self, infos: Iterable[Any]) -> set[Any]:
        """Bring objects, and the files of those that are folders, into DVC's cache; return those that the remote lacks.

        Raises:
            RemoteRefusedError: the remote cannot be used.
            TransientError: the remote does not answer, or a download failed.
            StorageError: the disk is full.
        """
        wanted = set(infos)
        lacking = self._bring(wanted)
        folders = [self.tree(info) for info in wanted - lacking if info.isdir]
        return lacking | self._bring({info for folder in folders if folder is not None for _, _, info in folder})

    def tree(self, info: Any) -> Any:
        """Return the list of files of a folder by its hash; None if neither the cache nor the remote has it."""
        from dvc_data.hashfile import load
        from dvc_objects.errors import ObjectFormatError

        if self._bring({info}):
            return None
        try:
            return load(self.repo.cache.local, info)
        except ObjectFormatError:
            return None

    def push(self, stages: Collection[Any]) -> int:
        """Send what `stages` have made, and how it was made; return how many objects the remote lacked.

        Raises:
            DataError: an object is neither here nor there.
            RemoteRefusedError, TransientError: as `fetch` does.
        """
        from dvc_data.hashfile.transfer import find_tree_by_obj_id

        cache = self.repo.cache.local
        made = {out.hash_info: out for stage in stages for out in stage.outs if out.use_cache and out.hash_info}
        for info, out in list(made.items()):
            # A folder that is not in the cache came from the remote, and so did its files.
            tree = find_tree_by_obj_id([cache], info) if info.isdir else None
            made |= {entry: out for _, _, entry in tree or ()}
        with self._asked(), self._errors_of_full_folder():
            if folder := self._folder():
                _require_folder_in_use(folder, str(self))
            sent, lacking = self._transfer(cache, self.repo.cloud.get_remote_odb(), made)
        if lacking:
            paths = sorted({str(made[info]) for info in lacking})
            what = f"{len(lacking)} objects of {', '.join(paths)} are neither in DVC's cache nor on the remote"
            raise DataError(str(self), what, "run the recipe again with --force, or restore DVC's cache")
        for stage in stages:
            self._push_run(stage)
        return len(sent)

    def fetch_run(self, stage: Any) -> None:
        """Bring the outputs of an earlier run of `stage` with the inputs that there are now, if the remote has them."""
        from dvc.stage.cache import _can_hash, _get_stage_hash
        from dvc.utils.serialize import load_yaml
        from dvc_data.hashfile.hash_info import HashInfo
        from dvc_objects.fs.generic import copy

        stage.save_deps()
        if not _can_hash(stage):
            return
        key = _get_stage_hash(stage)
        local = Path(self.repo.stage_cache.cache_dir, key[:2], key)
        if local.is_dir() and any(local.iterdir()):
            return
        with self._asked():
            fs, there = self._runs(key)
            entries = list(fs.find(there)) if there and fs.exists(there) else []
            for entry in entries:
                infos = {HashInfo("md5", out["md5"]) for out in load_yaml(entry, fs=fs).get("outs", ())}
                if not self.fetch(infos):
                    local.mkdir(parents=True, exist_ok=True)
                    copy(fs, entry, self.repo.cache.local.fs, str(local / fs.name(entry)))
                    return

    def _push_run(self, stage: Any) -> None:
        """Send the run cache's entry for what dvc.lock records of `stage`, if the stage has one."""
        from dvc.stage.cache import _can_hash, _get_cache_hash, _get_stage_hash
        from dvc.stage.serialize import to_single_stage_lockfile
        from dvc_objects.fs.generic import copy

        try:
            if not _can_hash(stage) or not all(out.hash_info for out in stage.outs):
                return
        except FileNotFoundError:  # DVC hashes what the stage reads, and what ran elsewhere may have nothing here
            return
        key, value = _get_stage_hash(stage), _get_cache_hash(to_single_stage_lockfile(stage))
        entry = Path(self.repo.stage_cache.cache_dir, key[:2], key, value)
        with self._asked(), self._errors_of_full_folder():
            fs, there = self._runs(key)
            if there and entry.exists() and not fs.exists(fs.join(there, value)):
                fs.makedirs(there, exist_ok=True)
                copy(self.repo.cache.local.fs, str(entry), fs, fs.join(there, value))

    def _runs(self, key: str) -> tuple[Any, str]:
        """Return the remote's file system, and the folder for the runs of a stage with equal inputs; empty if it has none."""
        odb = self.repo.cloud.get_remote_odb(hash_name="md5-dos2unix")  # the root of the remote
        has_runs = odb.fs.protocol not in {"http", "https"}  # which cannot list
        return odb.fs, odb.fs.join(odb.path, "runs", key[:2], key) if has_runs else ""

    def _bring(self, infos: Collection[Any]) -> set[Any]:
        """Bring objects into the cache; return those that the remote lacks. If all exist locally, it is not asked."""
        cache = self.repo.cache.local
        missing = {info for info in infos if not cache.exists(info.value)}
        if not missing or not self.name:
            return missing
        with self._asked():
            odb = self.repo.cloud.get_remote_odb()
            if folder := self._folder():
                _require_folder_in_use(folder, str(self))
            return self._transfer(odb, cache, missing)[1]

    def _folder(self) -> Path | None:
        """Return the folder of a remote that is one on this machine."""
        is_local = self.repo.cloud.get_remote_odb().fs.protocol == "local"
        return Path(self.repo.cloud.get_remote().path) if is_local else None

    @contextlib.contextmanager
    def _errors_of_full_folder(self) -> Iterator[None]:
        """Say that it is the remote's disk that takes no more, not the worker's, and remove what this process has begun there."""
        folder, begun = self._folder(), set[str]()
        try:
            with _noted_names_of_begun_files(begun):
                yield
        except OSError as error:
            named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if name]
            # Where DVC copies block by block, an error names no file.
            is_remotes = folder is not None and (not named or any(path.is_relative_to(folder) for path in named))
            if folder is None or not is_remotes or error.errno not in _FULL:
                raise
            for path in folder.rglob("*.tmp"):
                if path.name in begun:  # another worker may send now, too
                    with contextlib.suppress(OSError):
                        path.unlink()
            free = shutil.disk_usage(folder).free / 2**20
            what = f"{folder} takes no more: {os.strerror(error.errno)} ({free:.0f} MiB free on its disk)"
            raise StorageError(str(self), what, "free space there; the next run sends what is missing") from error

    def _transfer(self, source: Any, target: Any, infos: Collection[Any]) -> tuple[set[Any], set[Any]]:
        """Copy objects from one store to another; return those that were copied, and those that neither has."""
        lacking: set[Any] = set()
        kept = {"cache_odb": self.repo.cache.local, "validate_status": lambda status: lacking.update(status.missing)}
        with _errors_of_transfer() as errors:
            result = self.repo.cloud.transfer(source, target, infos, **kept)
        if result.failed:
            raise next(iter(errors), OSError(f"{len(result.failed)} of {len(infos)} objects were not transferred"))
        return result.transferred, lacking

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn the errors of the remote, of which each kind has its own, into ours."""
        from dvc.config import ConfigError
        from dvc.lock import LockError
        from dvc_objects.fs import errors

        refusals = (ConfigError, errors.ConfigError, errors.AuthError, errors.RemoteMissingDepsError)
        try:
            yield
        except (EvergreenError, LockError):
            raise
        except (*refusals, ImportError, PermissionError) as error:
            fix = "correct its settings (`dvc remote list`), install what it needs, or give this worker access"
            raise RemoteRefusedError(str(self), f"cannot be used: {error}", fix) from error
        except Exception as error:
            what = f"does not answer: {type(error).__name__}: {error}"
            raise as_storage_error(error, Path(".dvc")) or TransientError(str(self), what, _LATER) from error
