"""Outputs that dvc.lock records and that do not exist locally: they come from DVC's cache or remote when a stage needs them.

So there is nothing to do in a fresh clone of a project whose stages have run elsewhere: a missing output is as good as
its hash. DVC's own `--allow-missing` has the same idea. But it takes a part of a folder for a change, and does not see that
an earlier stage has another output now if a stage reads only a part of that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.dvc_project.remote import DvcRemote
from params import DataError, RemoteRefusedError, TransientError


def is_stale_or_drop_outdated(repo: Any, stage: Any) -> bool:
    """Return whether `stage` has to run, or its outputs have to be repaired.

    If not, what exists of another version or only in part, and is in DVC's cache, is removed, so that it is not mistaken for the
    outputs that dvc.lock records.

    Raises:
        dvc.lock.LockError: another process uses the stage's artifacts.
        RemoteRefusedError: what is missing must be compared with the remote, which cannot be used.
    """
    remote = DvcRemote.of(repo)
    if not stage.changed():
        return remote is not None and any(map(_Recorded(repo, remote).is_outdated, stage.deps))
    if not remote or stage.changed_stage() or stage.is_callback or stage.always_changed:
        return True
    recorded = _Recorded(repo, remote)
    try:
        if not all(recorded.has(item) for item in (*stage.deps, *stage.outs)):
            return True
    except TransientError:  # whoever runs the stage asks again
        return True
    from dvc.rwlock import rwlock

    hardlink = repo.config["core"].get("hardlink_lock", False)
    for out in stage.outs:
        if out.exists and out.workspace_status():
            with rwlock(repo.tmp_dir, repo.fs, " ".join(sys.argv), [], [out.fs_path], hardlink):
                out.remove()
    return False


def restore_or_run(repo: Any, name: str, *, force: bool) -> None:
    """Bring a stage up to date: restore its outputs, or restore what it reads and run it."""
    remote = DvcRemote.of(repo)
    if not remote or not _prepare(repo, remote, name, force=force):
        repo.reproduce(name, single_item=True, force=force)


def restore_inputs(repo: Any, name: str, path: Path | None = None) -> None:
    """Bring the inputs of a stage, or only the one at `path`, to their recorded state, if DVC's cache or the remote has that.

    Without a remote, only those that do not exist locally are brought.
    """
    remote = DvcRemote.of(repo)
    (stage,) = repo.stage.collect(name)
    deps = [dep for dep in stage.deps if path is None or Path(dep.fs_path) == path.absolute()]
    recorded = _Recorded(repo, remote or DvcRemote(repo, ""))
    for together in [deps] if remote else [[dep] for dep in deps if not dep.exists]:
        recorded.restore(together)


def _prepare(repo: Any, remote: DvcRemote, name: str, *, force: bool) -> bool:
    """Restore the outputs of a stage, and return True; if it must run, restore what it reads."""
    ran: set[str] = set()
    while True:
        (stage,) = repo.stage.collect(name)
        recorded = _Recorded(repo, remote)
        if not force and _has_same_work(stage, recorded):
            if not recorded.restore(stage.outs):
                return True
            print(f"{name}: {remote} lacks its outputs, so that it runs again", flush=True)
        lost = {out.stage.addressing: out for out in recorded.restore(stage.deps) if out.stage.addressing not in ran}
        if not lost:
            break
        for earlier, out in lost.items():
            _refuse_stage_of_others(repo, remote, out)
            print(f"{name}: {remote} lacks {out}, so that {earlier} runs again", flush=True)
            restore_or_run(repo, earlier, force=False)
            ran.add(earlier)
    if not force:
        try:
            remote.fetch_run(stage)
        except (RemoteRefusedError, TransientError) as error:
            print(f"{name}: runs without asking whether another worker has done it: {error}", flush=True)
    return False


def _has_same_work(stage: Any, recorded: _Recorded) -> bool:
    """Whether dvc.lock records a stage with the command and the inputs of now; an output that DVC does not keep must be here."""
    if stage.changed_stage() or not all(recorded.has(dep) for dep in stage.deps):
        return False
    return all(out.use_cache or not out.workspace_status() for out in stage.outs)


def _refuse_stage_of_others(repo: Any, remote: DvcRemote, out: Any) -> None:
    """Fail if no stage of the project makes an output: a dvc.yaml that came with data may have any command."""
    from dvc.dvcfile import PROJECT_FILE

    is_of_project = Path(out.stage.path) == Path(repo.root_dir, PROJECT_FILE)
    if not out.stage.cmd or not is_of_project:
        raise DataError(str(out), f"is neither here nor on {remote}", f"`dvc push {out}` where it is")


@dataclass(frozen=True)
class _Recorded:
    """All outputs of the project, as dvc.lock and the .dvc files record them."""

    repo: Any
    remote: DvcRemote

    def has(self, item: Any) -> bool:
        """Whether a dependency or an output of a stage exists as the stage recorded it, or can be brought to that state."""
        if self.is_outdated(item):
            return False
        if not item.workspace_status():
            return True
        out = self._output(item)
        if not out or not out.use_cache or not item.hash_info:
            return False
        return bool(self._hash(out, item.fs_path) == item.hash_info) and not self._not_kept(item)

    def is_outdated(self, item: Any) -> bool:
        """Whether dvc.lock records a newer version of what a stage has read, which another worker has made: a base model."""
        out = self._output(item)
        is_whole = out is not None and out.use_cache and out.fs_path == item.fs_path
        return bool(is_whole and out.hash_info and out.hash_info != item.hash_info)

    def restore(self, items: Iterable[Any]) -> list[Any]:
        """Bring items to the state that the stages that make them recorded.

        Returns:
            The outputs that the remote lacks; if there are any, no item was changed.

        Raises:
            DataError: somebody has edited a file that no stage makes.
            RemoteRefusedError, TransientError: what is missing cannot be fetched.
        """
        missing, lost = [], []
        for item in items:
            out = self._output(item)
            if not out or not out.use_cache or not out.hash_info:
                continue
            if self._is_restored(out, item):
                continue
            if not out.stage.cmd and self.remote.fetch(self._not_kept(item)):
                what = "has changes that DVC does not have, and would be replaced by what its .dvc file names"
                path = Path(out.fs_path).relative_to(self.repo.root_dir)
                fix = f"keep them by `dvc add {path}`, or discard them by `dvc checkout --force {path}`"
                raise DataError(str(path), what, fix)
            missing.append((out, item.fs_path))
            if self.remote.fetch(self._objects(out, item.fs_path)):
                lost.append(out)
        for out, path in [] if lost else missing:
            print(f"restores {Path(path).relative_to(self.repo.root_dir)}", flush=True)
            if "failed" in out.stage.checkout(filter_info=path, force=True):
                raise DataError(path, "cannot be restored from DVC's cache", f"`dvc checkout {path}` says why")
        return lost

    def _is_restored(self, out: Any, item: Any) -> bool:
        """Whether an item is what is recorded at its place in an output."""
        expected = self._hash(out, item.fs_path)
        return bool(expected and item.exists and item.get_hash() == expected)

    def _output(self, item: Any) -> Any:
        """The output that an item is, or lies in; None if no stage makes it."""
        found = (out for out in self.repo.index.outs if item.fs.isin_or_eq(item.fs_path, out.fs_path))
        return next(found, None)

    def _hash(self, out: Any, path: str) -> Any:
        """The hash of what is recorded at `path` of an output; None if the remote does not have the folder's list."""
        return getattr(self._part(out, path), "hash_info", None)

    def _objects(self, out: Any, path: str) -> set[Any]:
        """The hashes of the objects that the file or folder at `path` of an output is made of."""
        from dvc_data.hashfile.tree import Tree

        part = self._part(out, path)
        if part is None:
            return {out.hash_info}
        return {info for _, _, info in part} if isinstance(part, Tree) else {part.hash_info}

    def _part(self, out: Any, path: str) -> Any:
        """What is recorded at `path` of an output; None if that is unknown."""
        if path == out.fs_path:
            return out
        tree = self.remote.tree(out.hash_info) if out.hash_info.isdir else None
        return tree and tree.get_obj(self.repo.cache.local, out.fs.relparts(path, out.fs_path))

    def _not_kept(self, item: Any) -> set[Any]:
        """The hashes of an item's local files that DVC's cache lacks; with none, it is a part of a version, or another one."""
        from dvc_data.hashfile.build import build
        from dvc_data.hashfile.tree import Tree

        if not item.exists:
            return set()
        cache = self.repo.cache.local
        _, _, here = build(cache, item.fs_path, item.fs, item.hash_name, ignore=item.dvcignore, dry_run=True)
        infos = [info for _, _, info in here] if isinstance(here, Tree) else [here.hash_info]
        return {info for info in infos if not cache.exists(info.value)}
