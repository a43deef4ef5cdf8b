"""Record a run on a branch of a git remote, so that any worker can take up the next one.

First DVC's remote gets what the stages made. Then one commit has the recipe's stages in dvc.lock, the choice of the start, the receipt, the
blessing, the metrics, the logs, and the .dvc files of imports that the flow has refreshed. It is made on top of the branch's head, and
again if another worker was faster: the stages of other recipes stay as they are there, and logs keep the lines of both. A run
that is recorded twice is one commit.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from flows import child_process
from flows.child_process import Logger
from flows.dvc_project import lock_file, update
from flows.dvc_project.remote import read_default_remote_name, require_default_remote_folder
from flows.record.git_branch import BranchMovedError, RemoteGitBranch
from params import EvergreenError, RecipeError, StorageError, TransientError
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from params.foundation.stages import STAGES
from tasks.evaluation.report import Blessing, EvaluationReport
from tasks.release_log.receipt import Receipt
from tasks.report.timings import read_timings
from tasks.stages import read_report

T = TypeVar("T")
_LOCK = "dvc.lock"
_STATUS = {"kept": "kept the champion", "dry-run": "dry run of"}
_PUSHES = 30  # how often to try while other workers push to the branch
_WAITS_S = (2.0, 10.0, 30.0)  # how long to wait for a remote that does not answer


class RecordTarget(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    remote: str = pydantic.Field("origin", pattern=r"^\w[\w.-]*$")  # name of a remote of the project's git repository
    branch: str = pydantic.Field("main", pattern=r"^\w[\w./-]*$")  # name of a branch that is there

    @classmethod
    def parse(cls, text: str) -> RecordTarget:
        """Return what `remote/branch` names."""
        remote, _, branch = text.partition("/")
        try:
            return cls(remote=remote, branch=branch)
        except pydantic.ValidationError:
            what = f"{text!r} names no branch of a remote"
            raise RecipeError("--record", what, "write remote/branch, such as origin/main") from None

    def git_branch(self, artifacts: Artifacts) -> RemoteGitBranch:
        return RemoteGitBranch(self.remote, self.branch, user=artifacts.recipe)


class UnrecordedRunError(Exception):
    """A run did what it should, and could not be recorded; `reason` says why, `cause` also how the run ended."""

    def __init__(self, artifacts: Artifacts, outcomes: Mapping[str, str], cause: EvergreenError) -> None:
        what = f"{cause.what}; the run itself: {_end(artifacts, outcomes, None)}, which is not recorded"
        self.reason, self.cause = cause, cause.replace(what=what)
        super().__init__(str(self.cause))


@contextlib.contextmanager
def record_run_after_block(
    artifacts: Artifacts, to: RecordTarget | None, outcomes: Mapping[str, str], log: Logger
) -> Iterator[list[str]]:
    """Record the run in the block, however it ends. If the run fails, its own error stays the error.

    The block fills in `outcomes`, what became of each stage that has ended. The list that it gets then has the command that shows
    the recorded report, if there is one.

    Raises:
        UnrecordedRunError: the run did not fail, but could not be recorded.
    """
    shown: list[str] = []
    try:
        yield shown
    except BaseException as error:
        if to:
            waits_s = _WAITS_S if isinstance(error, Exception) else ()  # who is being stopped has no time
            try:
                command = record_run_on_branch(artifacts, to, log, outcomes, error=error, waits_s=waits_s)
                shown += filter(None, [command])
            except (EvergreenError, OSError) as failure:
                log.error("the run was not recorded: %s", failure)  # noqa: TRY400  # it says all
        raise
    if to:
        try:
            shown += filter(None, [record_run_on_branch(artifacts, to, log, outcomes)])
        except (EvergreenError, OSError) as failure:
            if isinstance(failure, OSError):
                failure = StorageError(str(artifacts.kept), str(failure), "correct that: the next run records this one")
            raise UnrecordedRunError(artifacts, outcomes, failure) from failure


def ensure_recordable_before_publish(
    artifacts: Artifacts, to: RecordTarget, outcomes: Mapping[str, str], log: Logger
) -> None:
    """Make sure that a run whose model is to be published can be recorded: what no record has, later runs do not know.

    With `evaluation.gate.over: test_rows`, the verdict is recorded first: it spends error, and a server applies its rules for a branch
    only to a real push. Otherwise a trial push asks for access. A DVC remote that is a folder must be mounted.
    """
    blessing = read_report(artifacts, Blessing)
    if blessing.verdict != "publish":
        return
    if blessing.row_use:
        record_run_on_branch(artifacts, to, log, outcomes)
        return
    branch = to.git_branch(artifacts)

    def ask() -> None:
        require_default_remote_folder()
        with contextlib.suppress(BranchMovedError):  # another worker pushed: the remote answers
            branch.push(branch.fetch(), dry_run=True)

    _patiently(ask, "ask whether the run can be recorded", log, _WAITS_S)


def record_run_on_branch(
    artifacts: Artifacts,
    to: RecordTarget,
    log: Logger,
    outcomes: Mapping[str, str],
    *,
    error: BaseException | None = None,
    waits_s: Sequence[float] = _WAITS_S,
) -> str | None:
    """Send what the recipe's stages have made to the DVC remote, then commit the record of it to a branch.

    Returns:
        A command that shows the report in the commit; None if the commit has none, or the branch has the run already.

    Raises:
        RemoteRefusedError: a remote refuses, and would again; the work stays here for the next run.
        TransientError: a remote does not answer, also after `waits_s`.
        DataError: objects that the record would name are neither here nor on the DVC remote.
        RecipeError: a dvc.lock or a .dvc file is damaged.
    """
    message, branch = compose_commit_message(artifacts, outcomes, error), to.git_branch(artifacts)
    commit = _patiently(lambda: _Recorder(artifacts, branch, log).record(message), "record the run", log, waits_s)
    return commit and f"git fetch {to.remote} && git show {commit}:./{artifacts.recorded_page} > report.html"


def _patiently(work: Callable[[], T], what: str, log: Logger, waits_s: Sequence[float]) -> T:
    for wait_s in waits_s:
        try:
            return work()
        except TransientError as failure:
            log.warning("tries again to %s in %g s: %s", what, wait_s, failure)
            time.sleep(wait_s)
    return work()


@dataclass(frozen=True)
class _Recorder:
    """What one recipe's run has left here, and the branch that gets it."""

    artifacts: Artifacts
    branch: RemoteGitBranch
    log: Logger

    @cached_property
    def paths(self) -> list[str]:
        """The files that describe the recipe's last run, besides dvc.lock."""
        run = self.artifacts
        written = (run.resolved_recipe, run.start_choice, run.blessing, run.receipt, run.report("evaluate"))
        return [*map(str, written), *update.find_dvc_files_to_refresh(run.recipe)]

    def record(self, message: str) -> str | None:
        """Record the run, and return the commit that has its report; None if the branch has the run.

        What names no object of DVC is recorded although the DVC remote does not take them, which is then raised.
        """
        logs, page = self.keep_logs(), _render_report(self.artifacts)
        for attempt in range(_PUSHES):
            head = commit = self.branch.fetch()
            files = self.new_files(logs, head)
            # First: a commit names no object that the remote lacks.
            if failure := self.sending_error if _LOCK in files else None:
                files = {path: content for path, content in files.items() if path in logs}
            if files:
                files |= page
                commit = self.branch.commit(head, files, message)
                if not self.takes(commit, attempt):
                    continue
            self.forget_recorded_lines(logs)
            if self.is_in(self.state(_read, where=_LOCK), commit):
                self.branch.remember(commit)
            if failure:
                raise failure
            self.log.info("recorded on %s: %s" if files else "%s has this run: %s", self.branch, commit)
            return commit if files and page else None
        what = f"was somewhere else after each of {_PUSHES} attempts to add a commit"
        raise TransientError(str(self.branch), what, "run it again when fewer workers push to it: the work is kept")

    def takes(self, commit: str, attempt: int) -> bool:
        """Push a commit, and return whether the branch has it; if it has moved meanwhile, wait for a moment."""
        try:
            self.branch.push(commit)
        except BranchMovedError as error:
            self.log.info("%s has moved meanwhile: %s", self.branch, error)
            time.sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))  # noqa: S311
            return False
        return True

    @cached_property
    def sending_error(self) -> EvergreenError | None:
        """Send what dvc.lock records to the DVC remote, and return why that failed; each of DVC's locks belongs to a process."""
        module, recipe = "flows.dvc_project.push", self.artifacts.recipe
        try:
            if read_default_remote_name():
                child_process.run_python_module(module, [recipe], self.artifacts, self.log, name="dvc push")
            else:
                self.log.info("no default DVC remote is configured: only git gets this run")
        except EvergreenError as error:
            return error
        return None

    def keep_logs(self) -> dict[str, bytes]:
        """Return the logs, with the lines of runs that were not recorded; keep all where `git reset` does not reach them."""
        logs = {}
        with self.logs_held():
            for path in self.artifacts.logs:
                kept = self.artifacts.unrecorded / path.name
                logs[str(path)] = lines = _merge_lines(_read(str(kept)) or b"", _read(str(path)) or b"")
                if lines:
                    write_text_atomically(kept, lines.decode(errors="replace"))
        return logs

    def forget_recorded_lines(self, logs: Mapping[str, bytes]) -> None:
        """Forget the kept lines that a commit has, so that they are not taken for new when another worker has recorded more."""
        with self.logs_held():
            for path, recorded in logs.items():
                kept = self.artifacts.unrecorded / Path(path).name
                if left := _merge_lines(recorded, _read(str(kept)) or b"").removeprefix(recorded).lstrip(b"\n"):
                    write_text_atomically(kept, left.decode(errors="replace"))  # of a run in another clone
                else:
                    kept.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.artifacts.unrecorded.rmdir()

    def logs_held(self) -> AbstractContextManager[None]:
        """Hold the lock of the logs, which runs in several clones may share."""
        return hold_file_lock(self.artifacts.log_lock, f"a write to the logs of {self.artifacts.recipe}", wait_s=30.0)

    def new_files(self, logs: Mapping[str, bytes], head: str) -> dict[str, bytes]:
        """Return the files of the project that the commit `head` lacks, with their content there to be."""
        files = {path: _merge_lines(self.branch.read(head, path) or b"", lines) for path, lines in logs.items()}
        ours = self.state(_read, where=_LOCK)
        if ours[_LOCK] and not any(self.is_in(ours, commit) for commit in self.branch.known(head)):
            files |= self.files_of_state(ours, head)
        return {path: content for path, content in files.items() if content and content != self.branch.read(head, path)}

    def files_of_state(self, ours: Mapping[str, Any], head: str) -> dict[str, bytes]:
        """Return dvc.lock as it is in `head`, but with the recipe's stages of here, and the files beside it."""
        theirs = (self.branch.read(head, _LOCK) or b"").decode()
        text = lock_file.with_recipe_stages(theirs, ours[_LOCK], self.artifacts.recipe, where=str(self.branch))
        files = {_LOCK: text.encode()}
        for path in self.paths:
            content = ours[path]
            if content is not None and not self.imports_from_elsewhere(path, content, head):
                files[path] = content
        return files

    def imports_from_elsewhere(self, path: str, content: bytes, head: str) -> bool:
        """Whether a .dvc file has another source in `head`, as somebody who has edited it there since wants."""
        if not path.endswith(".dvc"):
            return False
        edited = self.branch.read(head, path)
        return bool(edited and not update.is_same_import_source(content, edited))

    def is_in(self, ours: Mapping[str, Any], commit: str) -> bool:
        """Whether a commit has our state; a file that does not exist locally does not count."""
        theirs = self.state(lambda path: self.branch.read(commit, path), where=str(self.branch))
        return all(theirs[path] == content for path, content in ours.items() if content is not None)

    def state(self, read: Callable[[str], bytes | None], *, where: str) -> dict[str, Any]:
        """Return what describes the recipe's last run: its stages in dvc.lock, and the content of the files beside it."""
        recorded = lock_file.parse_recipe_stages((read(_LOCK) or b"").decode(), self.artifacts.recipe, where=where)
        return {_LOCK: recorded, **{path: read(path) for path in self.paths}}


def _render_report(artifacts: Artifacts) -> dict[str, bytes]:
    """Return the run's report, by its path, without rows of the data, which nobody could take out of git again; empty if it has none."""
    if not artifacts.page.exists():  # no stage has ended here
        return {}
    from tasks.report.page import render_report_page

    with contextlib.suppress(EvergreenError, OSError):
        page = render_report_page(artifacts, timings=read_timings(artifacts), quote_rows=False)
        return {str(artifacts.recorded_page): page.encode()}
    return {}


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


def compose_commit_message(artifacts: Artifacts, outcomes: Mapping[str, str], error: BaseException | None) -> str:
    """Return the message of the commit: how the run ended, the gate's verdict with its reasons, the main metric, the stages.

    It quotes no error, because errors quote rows.
    """
    lines = [f"Record {artifacts.recipe}: {_end(artifacts, outcomes, error)}", ""]
    if "evaluate" in outcomes:
        blessing, evaluated = read_report(artifacts, Blessing), read_report(artifacts, EvaluationReport)
        models = {"champion": evaluated.champion, "untrained": evaluated.untrained}
        compared = ", ".join(f"{name} {found[blessing.metric]:.4g}" for name, found in models.items() if found)
        lines += [f"verdict: {blessing.verdict}", *(f"- {reason}" for reason in blessing.reasons)]
        lines.append(f"{blessing.metric}: {evaluated.model[blessing.metric]:.4g}{compared and f' ({compared})'}")
        lines.append(f"rows: {evaluated.rows} of the {evaluated.split} split")
    by_outcome = {outcome: [s for s in STAGES if outcomes.get(s) == outcome] for outcome in outcomes.values()}
    lines += [f"{outcome}: {', '.join(names)}" for outcome, names in by_outcome.items()]
    return "\n".join([*lines, "", "[skip ci]", ""])


def _end(artifacts: Artifacts, outcomes: Mapping[str, str], error: BaseException | None) -> str:
    if error:
        stage = error.where.partition("@")[0] if isinstance(error, EvergreenError) else ""
        if stage not in STAGES:  # the first that has not ended
            stage = next((stage for stage in STAGES if stage not in outcomes), "the run")
        if stage == "publish" and "evaluate" in outcomes and read_report(artifacts, Blessing).verdict == "refuse":
            return "the gate refused the model"
        return f"{stage} {f'failed: {type(error).__name__}' if isinstance(error, Exception) else 'was stopped'}"
    if "publish" in outcomes:
        receipt = read_report(artifacts, Receipt)
        return " ".join(filter(None, (_STATUS.get(receipt.status, receipt.status), receipt.tag or receipt.commit)))
    return f"evaluated, verdict {read_report(artifacts, Blessing).verdict}"
