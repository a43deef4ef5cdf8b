"""mirror: copy a training's checkpoints to a Hub while it runs, so that another machine can continue it.

The train stage starts `evergreen mirror` in a separate process, whose failure is only a warning in the log. Sealed
checkpoints are hard-linked into a queue, where retention does not delete them, and uploaded from there (tasks.mirror.branch).
The next mirror uploads what is left in the queue.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import select
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from params import CheckpointError, RecipeError
from params.foundation.artifacts import Artifacts, link_or_copy
from params.foundation.file_lock import hold_file_lock
from params.schema import Launch, Publish
from tasks.recipes.loading import load
from trainer.checkpoints.sealed import IDENTITY, MANIFEST, list_checkpoints, read_checkpoint_step
from trainer.runtime.lifetime import die_with_parent

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository

logger = logging.getLogger(__name__)
_RUN_KEY = re.compile("[0-9a-f]{16}")

_POLL_S = 0.1
"""How often to look at the run's folder; each checkpoint stays there longer than this."""
_NICE = 5
_TRIES = 2
"""How often to link a folder that is not complete."""
_ROOM = 3
"""With less free disk than this many checkpoints, older ones are dropped from the queue: the training needs the space."""


@contextlib.contextmanager
def upload_during_run(artifacts: Artifacts, launch: Launch, run: str) -> Iterator[None]:
    """Inside the block, copy the checkpoints of a run to the Hub, if `launch.mirror` asks for it.

    At the end, wait for the last upload: for `launch.stall_timeout_s` after a finished training, else for `launch.grace_s`.
    """
    if launch.mirror == "none":
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks", "mirror", str(Artifacts(artifacts.recipe).recipe_path), "--run", run],
        cwd=artifacts.root,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C stops the training, whose last checkpoint is uploaded then
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    wait_s = launch.grace_s
    try:
        yield
        wait_s = launch.stall_timeout_s
    finally:
        assert process.stdin
        process.stdin.close()  # tells the mirror that the training has ended
        logger.info("train: waiting for the mirror, at most %g s; Ctrl-C ends the wait", wait_s)
        try:
            outcome = f"ended with exit status {process.wait(wait_s)}, see above"
        except subprocess.TimeoutExpired:
            outcome = f"was not done within {wait_s:g} s"
        finally:
            process.kill()
            process.wait()
        if process.returncode != os.EX_OK:
            fix = f"`evergreen mirror {artifacts.recipe_path}` uploads what is left"
            logger.warning("train: the Hub may lack the last checkpoint: the mirror %s; %s", outcome, fix)


def mirror(recipe_path: Path, *, run: str | None = None) -> None:
    """Upload the checkpoints of a run until standard input ends; without a run, those that earlier mirrors left.

    Raises:
        RecipeError: the recipe asks for no mirror, or no run has such a key.
        HubRefusedError: the Hub would refuse again.
        TransientError: the Hub gives no clear answer; the queue is kept.
    """
    recipe = load(recipe_path)
    if recipe.launch.mirror == "none":
        raise RecipeError("launch.mirror", "is `none`, so nothing is uploaded", "set it to `last` or `all`")
    if run and not _RUN_KEY.fullmatch(run):
        raise RecipeError(
            "--run", f"{run!a} is no key of a run: it has 16 hexadecimal digits", "name a folder in .scratch"
        )
    if run:
        os.nice(_NICE)  # the training has priority
    artifacts = Artifacts(recipe_path.stem)
    queues = artifacts.mirror
    with hold_file_lock(artifacts.mirror_lock, f"a mirror of {artifacts.recipe}", wait_s=5.0):
        from tasks.hub_client.connection import open_repository

        for other in queues.glob("*"):
            if run not in (None, other.name):
                shutil.rmtree(other)
        publish = recipe.publish
        with open_repository(
            artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True
        ) as repository:
            for folder in [queues / run] if run else sorted(queues.glob("*")):
                queue = UploadQueue(folder, keep_all=recipe.launch.mirror == "all")
                uploader = _Uploader(repository, queue, artifacts.tokenizer, publish)
                if run:
                    run_folder = artifacts.checkpoints / run
                    threading.Thread(target=_watch, args=(queue, run_folder, uploader.ended), daemon=True).start()
                else:
                    uploader.ended.set()
                uploader.run()
                shutil.rmtree(folder, ignore_errors=True)


class _Uploader:
    """Uploads a queue until the training has ended and the queue is empty."""

    def __init__(self, repository: HubRepository, queue: UploadQueue, tokenizer: Path, publish: Publish) -> None:
        from tasks.hub_client.repository import RetryPolicy
        from tasks.mirror.branch import CheckpointsBranch, repository_with_checkpoint_timeouts

        self.ended = threading.Event()
        """Set when the training has ended."""
        self._branch = CheckpointsBranch(repository, publish.private)
        self._queue = queue
        self._tokenizer = tokenizer
        self._step_at_start: dict[str, int] = {}
        """The step of the branch before the first upload, by run."""
        # During the training there is no hurry; afterwards `publish.timeout_s` limits the wait for a clear answer.
        self._last = repository_with_checkpoint_timeouts(repository, publish, "mirror")
        meanwhile = RetryPolicy(attempts=math.inf, sleep=self._sleep)
        self._meanwhile = replace(self._last, timeout_s=math.inf, retries=meanwhile)
        logger.info("mirror: %s checkpoints go to %s", "all" if queue.keep_all else "last", self._branch.where)

    def run(self) -> None:
        """Upload what is in the queue, and what comes, until the training has ended."""
        while True:
            has_ended = self.ended.is_set()
            if self._queue.next():
                repository = self._last if has_ended else self._meanwhile
                with contextlib.suppress(_TrainingEndedError):
                    if line := repository.retry_until_clear(self._upload):
                        logger.info("mirror: %s", line)
            elif has_ended:
                return
            else:
                self.ended.wait(_POLL_S)

    def _sleep(self, seconds: float) -> None:
        if self.ended.wait(seconds):
            raise _TrainingEndedError

    def _upload(self) -> str:
        """Upload the next of the queue; each attempt takes what is newest by then."""
        from tasks.mirror.branch import BEST, LAST, folder_upload_operations

        folders, names, done = {}, [], []
        for sealed in self._queue.next():
            is_best = sealed.name.startswith("best-")
            of_checkpoint = sealed.name if self._queue.keep_all else LAST
            folder = BEST if is_best else of_checkpoint
            done.append(sealed)
            try:
                if folder == LAST and self._is_behind(sealed):
                    continue
                folders[folder] = folder_upload_operations(folder, sealed, self._tokenizer if is_best else None)
                names.append(sealed.name)
            except CheckpointError as error:
                logger.warning("mirror: %s is left out: %s %s", sealed.name, error.where, error.what)
        line = ""
        if folders:
            title = f"Keep {' and '.join(names)}"
            commit = self._branch.put(folders, title, squash=not self._queue.keep_all)
            line = f"{' and '.join(names)} at {self._branch.where}: commit {commit}"
        for sealed in done:
            self._queue.remove(sealed)
        return line

    def _is_behind(self, checkpoint: Path) -> bool:
        """Return whether another machine has uploaded this step of the same run, or a later one."""
        identity = (checkpoint / IDENTITY).read_text(encoding="utf-8")
        if identity not in self._step_at_start:
            self._step_at_start[identity] = self._branch.step_of_last(json.loads(identity))
        step, there = read_checkpoint_step(checkpoint), self._step_at_start[identity]
        if step < there:
            message = "mirror: %s stays here: the branch has step %d of this run; `evergreen fetch` gets it"
            logger.warning(message, checkpoint.name, there)
        return step <= there


class _TrainingEndedError(Exception):
    """The training ended during a wait."""


def _watch(queue: UploadQueue, run: Path, ended: threading.Event) -> None:
    """Queue what is new in the run's folder until standard input ends, and then once more."""
    try:
        while not (select.select([sys.stdin], [], [], _POLL_S)[0] and not os.read(sys.stdin.fileno(), 4096)):
            queue.collect(run)
        queue.collect(run)
    finally:
        ended.set()


class UploadQueue:
    """Checkpoints and best weights to upload.

    `folder` holds the hard links of one run. Without `keep_all`, only the newest checkpoint is uploaded.
    """

    def __init__(self, folder: Path, *, keep_all: bool) -> None:
        self.keep_all = keep_all
        self._folder = folder
        self._tries: Counter[tuple[str, int]] = Counter()
        self._taken: set[Path] = set()
        self._lock = threading.Lock()

    def collect(self, run: Path) -> None:
        """Add what is new in a run's folder; drop what newer uploads replace, and older checkpoints if the disk is nearly full.

        Best weights are linked after the checkpoints, so they are at least as new as those that the checkpoints refer to.
        """
        checkpoints = list_checkpoints(run)
        for sealed in (*(reversed(checkpoints) if self.keep_all else checkpoints[:1]), *_best(run)):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                self._link_once(sealed)
        with self._lock:
            best = _best(self._folder)
            replaced = [p for p in self._folder.glob("best-*") if p not in best and p not in self._taken]
            for path in (*self._older_checkpoints_to_drop(), *replaced):
                shutil.rmtree(path, ignore_errors=True)

    def _link_once(self, sealed: Path) -> None:
        """Link a folder that was not linked as it is; what is incomplete may be being deleted: the second time it is damaged."""
        stamp = (sealed.name, (sealed / MANIFEST).stat().st_mtime_ns)
        if self._tries[stamp] == _TRIES:
            return
        self._tries[stamp] += 1
        damage = self._link(sealed)
        if damage is None:
            self._tries[stamp] = _TRIES
        elif self._tries[stamp] == _TRIES:
            logger.warning("mirror: %s is left out: %s", sealed, damage)

    def _older_checkpoints_to_drop(self) -> list[Path]:
        checkpoints = list_checkpoints(self._folder)
        older = [p for p in checkpoints[1:] if p not in self._taken]
        if not older or not self.keep_all:
            return older
        size = sum(p.stat().st_size for p in checkpoints[0].rglob("*"))
        if shutil.disk_usage(self._folder).free > _ROOM * size:
            return []
        logger.warning("mirror: no room on the disk: not uploaded: %s", ", ".join(p.name for p in older))
        return older

    def next(self) -> list[Path]:
        """Return what to upload next: a checkpoint, best weights, both or neither. They stay until `remove`."""
        with self._lock:
            checkpoints = list_checkpoints(self._folder)
            found = [*(checkpoints[-1:] if self.keep_all else checkpoints[:1]), *_best(self._folder)]
            self._taken = set(found)
            return found

    def remove(self, sealed: Path) -> None:
        """Remove what was uploaded, or cannot be."""
        with self._lock:
            self._taken.discard(sealed)
            shutil.rmtree(sealed, ignore_errors=True)

    def _link(self, sealed: Path) -> str | None:
        """Link a folder, whole or not at all; return the reason if it failed."""
        partial, target = self._folder / ".partial", self._folder / sealed.name
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(sealed, partial, copy_function=link_or_copy)
            names = {p.relative_to(partial).as_posix() for p in partial.rglob("*") if p.is_file()}
            if names != {MANIFEST, *json.loads((partial / MANIFEST).read_text(encoding="utf-8"))}:
                return "files are missing"
        except (OSError, ValueError) as error:
            return str(error)
        with self._lock:
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        return None


def _best(folder: Path) -> list[Path]:
    return sorted(folder.glob("best-*"), key=lambda path: int(path.name.removeprefix("best-")))[-1:]
