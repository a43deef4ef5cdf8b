"""Record a run on a branch of a git remote, so that any worker can take up the next one.

First DVC's remote gets what the stages made. Then one commit has the recipe's stages in dvc.lock, the receipt, the blessing,
the metrics, the logs, and the .dvc files of imports that the flow has refreshed. It is made on top of the branch's head, and
again if another worker was faster: the stages of other recipes stay as they are there, and logs keep the lines of both. A run
that is recorded twice is one commit.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from flows import child_process
from flows.child_process import Logger
from flows.dvc_project import imports, lock_file
from flows.dvc_project.locks import recipe_lock
from flows.dvc_project.remote import default_remote
from flows.record.git_branch import GitBranch, MovedError
from flows.record.message import record_message
from params import EvergreenError, RecipeError, TransientError
from params.foundation.artifacts import Artifacts, write_text_atomically
from tasks.evaluation.report import Blessing
from tasks.stages import read_report

_LOCK = "dvc.lock"
_PUSHES = 30
"""How often to try while other workers push to the branch."""
_WAITS_S = (2.0, 10.0, 30.0)
"""How long to wait for a remote that does not answer."""


class Record(pydantic.BaseModel):
    """Where the flow records its runs."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    remote: str = pydantic.Field("origin", pattern=r"^\w[\w.-]*$")
    """Name of a remote of the project's git repository."""
    branch: str = pydantic.Field("main", pattern=r"^\w[\w./-]*$")
    """Name of a branch that is there."""

    @classmethod
    def parse(cls, text: str) -> Record:
        """Return what `remote/branch` names.

        Raises:
            RecipeError: it is not of that form.
        """
        remote, _, branch = text.partition("/")
        try:
            return cls(remote=remote, branch=branch)
        except pydantic.ValidationError:
            what = f"{text!r} names no branch of a remote"
            raise RecipeError("--record", what, "write remote/branch, such as origin/main") from None


@contextlib.contextmanager
def recording(artifacts: Artifacts, to: Record | None, outcomes: Mapping[str, str], log: Logger) -> Iterator[None]:
    """Record the run in the block, however it ends. If the run fails, its own error stays the error.

    Args:
        artifacts: the paths of the run.
        to: where to record it; None if nowhere.
        outcomes: what became of each stage that has ended, filled in by the block.
        log: where to say what is done.
    """
    try:
        yield
    except BaseException as error:
        if to:
            waits_s = _WAITS_S if isinstance(error, Exception) else ()  # who is being stopped has no time
            try:
                record(artifacts, to, log, outcomes, error=error, waits_s=waits_s)
            except (EvergreenError, OSError) as failure:
                log.error("the run was not recorded: %s", failure)  # noqa: TRY400  # it says all
        raise
    if to:
        record(artifacts, to, log, outcomes)


def ensure_recordable(artifacts: Artifacts, to: Record, outcomes: Mapping[str, str], log: Logger) -> None:
    """Make sure that a run whose model is to be published can be recorded: what no record has, later runs do not know.

    With `evaluation.gate.over: test_rows`, the verdict is recorded first: it spends error, and a server applies its rules for a branch
    only to a real push. Otherwise a trial push asks for access.

    Raises:
        EvergreenError: as `record` does.
    """
    blessing = read_report(artifacts, Blessing)
    if blessing.verdict != "publish":
        return
    if blessing.row_use:
        record(artifacts, to, log, outcomes)
        return
    branch = GitBranch(to.remote, to.branch, user=artifacts.recipe)

    def ask() -> None:
        with contextlib.suppress(MovedError):  # another worker pushed: the remote answers
            branch.push(branch.fetch(), dry_run=True)

    _patiently(ask, "ask whether the run can be recorded", log, _WAITS_S)


def record_unchanged(artifacts: Artifacts, to: Record, outcomes: Mapping[str, str]) -> None:
    """Record what exists locally although no flow had anything to do: an earlier run may not be recorded yet.

    Raises:
        EvergreenError: as `record` does; a `TransientError` too if a flow of the recipe runs.
    """
    log = logging.getLogger(__name__)
    with recipe_lock(artifacts, log):
        record(artifacts, to, log, outcomes)


def record(
    artifacts: Artifacts,
    to: Record,
    log: Logger,
    outcomes: Mapping[str, str],
    *,
    error: BaseException | None = None,
    waits_s: Sequence[float] = _WAITS_S,
) -> None:
    """Send what the recipe's stages have made to the DVC remote, then commit the record of it to a branch.

    Raises:
        RemoteRefusedError: a remote refuses, and would again; the work stays here for the next run.
        TransientError: a remote does not answer, also after `waits_s`.
        DataError: objects that the record would name are neither here nor on the DVC remote.
        RecipeError: a dvc.lock or a .dvc file is damaged.
    """
    message = record_message(artifacts, outcomes, error)
    _patiently(lambda: _record(artifacts, to, log, message), "record the run", log, waits_s)


def _patiently(work: Callable[[], None], what: str, log: Logger, waits_s: Sequence[float]) -> None:
    for wait_s in waits_s:
        try:
            work()
        except TransientError as failure:
            log.warning("tries again to %s in %g s: %s", what, wait_s, failure)
            time.sleep(wait_s)
        else:
            return
    work()


def _record(artifacts: Artifacts, to: Record, log: Logger, message: str) -> None:
    branch = GitBranch(to.remote, to.branch, user=artifacts.recipe)
    logs = _keep_logs(artifacts)
    paths = _files_beside_lock(artifacts)
    is_sent = False
    for attempt in range(_PUSHES):
        head = branch.fetch()
        files = _new_files(artifacts, paths, logs, branch, head)
        if not files:
            log.info("%s has this run", branch)
            _remember(artifacts, paths, branch, head)
            return
        if _LOCK in files and not is_sent:
            _send_objects(artifacts, log)  # first: a commit names no object that the remote lacks
            is_sent = True
        commit = branch.commit(head, files, message)
        try:
            branch.push(commit)
        except MovedError as error:
            log.info("%s has moved meanwhile: %s", branch, error)
            time.sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))  # noqa: S311
            continue
        _remember(artifacts, paths, branch, commit)
        log.info("recorded on %s: %s", branch, commit)
        return
    what = f"was somewhere else after each of {_PUSHES} attempts to add a commit"
    raise TransientError(str(branch), what, "run it again when fewer workers push to it: the work is kept")


def _send_objects(artifacts: Artifacts, log: Logger) -> None:
    """Send what dvc.lock records to the DVC remote, in a process of its own, as each of DVC's locks belongs to one."""
    if not default_remote():
        log.info("no default DVC remote is configured: only git gets this run")
        return
    child_process.run_child("flows.dvc_project.push", [artifacts.recipe], artifacts, log, name="dvc push")


def _keep_logs(artifacts: Artifacts) -> dict[str, bytes]:
    """Return the logs, with the lines of runs that were not recorded; keep all where `git reset` does not reach them."""
    logs = {}
    for path in artifacts.logs:
        kept = artifacts.unrecorded / path.name
        logs[str(path)] = lines = _merge_lines(_read(str(kept)) or b"", _read(str(path)) or b"")
        if lines:
            write_text_atomically(kept, lines.decode(errors="replace"))
    return logs


def _new_files(
    artifacts: Artifacts, paths: Sequence[str], logs: Mapping[str, bytes], branch: GitBranch, head: str
) -> dict[str, bytes]:
    """Return the files of the project that the commit `head` lacks, with their content there to be."""
    files = {path: _merge_lines(branch.read(head, path) or b"", lines) for path, lines in logs.items()}
    ours = _state(artifacts, paths, _read, where=_LOCK)
    if ours[_LOCK] and not any(_is_in(ours, artifacts, paths, branch, commit) for commit in branch.known(head)):
        theirs = (branch.read(head, _LOCK) or b"").decode()
        text = lock_file.merge(theirs, ours.pop(_LOCK), artifacts.recipe, where=str(branch))
        files |= {_LOCK: text.encode(), **{path: content for path, content in ours.items() if content is not None}}
        for path in filter(files.__contains__, paths):
            edited = branch.read(head, path)  # somebody may import from elsewhere now
            if path.endswith(".dvc") and edited and not imports.same_origin(files[path], edited):
                del files[path]
    return {path: content for path, content in files.items() if content and content != branch.read(head, path)}


def _remember(artifacts: Artifacts, paths: Sequence[str], branch: GitBranch, commit: str) -> None:
    """Note that the branch has had what exists locally, so that it is not taken for new when another worker has recorded more."""
    shutil.rmtree(artifacts.unrecorded, ignore_errors=True)
    if _is_in(_state(artifacts, paths, _read, where=_LOCK), artifacts, paths, branch, commit):
        branch.remember(commit)


def _is_in(ours: Mapping[str, Any], artifacts: Artifacts, paths: Sequence[str], branch: GitBranch, commit: str) -> bool:
    """Whether a commit has our state; a file that does not exist locally does not count."""
    theirs = _state(artifacts, paths, lambda path: branch.read(commit, path), where=str(branch))
    return all(theirs[path] == content for path, content in ours.items() if content is not None)


def _files_beside_lock(artifacts: Artifacts) -> list[str]:
    """Return the paths of the files that describe the recipe's last run, besides dvc.lock."""
    written = (artifacts.resolved_recipe, artifacts.blessing, artifacts.receipt, artifacts.report("evaluate"))
    return [*map(str, written), *imports.refreshed_import_paths(artifacts.recipe)]


def _state(artifacts: Artifacts, paths: Sequence[str], read: Any, *, where: str) -> dict[str, Any]:
    """Return what describes the recipe's last run: its stages in dvc.lock, and the content of the files beside it."""
    recorded = lock_file.stages_of((read(_LOCK) or b"").decode(), artifacts.recipe, where=where)
    return {_LOCK: recorded, **{path: read(path) for path in paths}}


def _merge_lines(theirs: bytes, ours: bytes) -> bytes:
    """Return `theirs`, followed by the lines that only `ours` has."""
    known = set(theirs.split(b"\n"))
    new = dict.fromkeys(line for line in ours.split(b"\n") if line not in known and line)
    end = b"" if theirs.endswith(b"\n") or not theirs else b"\n"
    return theirs + end + b"".join(line + b"\n" for line in new) if new else theirs


def _read(path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return Path(path).read_bytes()
    return None
