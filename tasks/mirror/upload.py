"""mirror: copy the checkpoints of a training to a Hub while it goes on, so that another machine can take it up.

The train stage starts `python -m tasks mirror` beside the training, in a process of its own: whatever becomes of it is a
warning in the log and nothing more. What is sealed in the run's folder is hard-linked aside, where retention does not
reach it, and uploaded from there (tasks.mirror.branch). What is not uploaded in the end waits there for the next one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from params import CheckpointError, RecipeError, load
from params.artifacts import Artifacts
from params.schema import Launch
from tasks.mirror.queue import Waiting
from trainer.checkpoints.sealed import IDENTITY, step_of
from trainer.runtime.lifetime import die_with_parent, exclusive

if TYPE_CHECKING:
    from tasks.mirror.branch import Branch

logger = logging.getLogger(__name__)

_POLL_S = 0.1
"""How often the run's folder is looked at: a checkpoint must stay there for longer than that."""
_NICE = 5


@contextlib.contextmanager
def mirrored(artifacts: Artifacts, launch: Launch, run: str) -> Iterator[None]:
    """While inside, have the checkpoints of a run copied to the Hub, if `launch.mirror` asks for it.

    At the end the last one is waited for: `launch.stall_timeout_s` after a training that was finished, `launch.grace_s`
    after one that was not.
    """
    if launch.mirror == "none":
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks", "mirror", str(Artifacts(artifacts.recipe).recipe_path), "--run", run],
        cwd=artifacts.root,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the training; what it leaves is still to be copied
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    patience_s = launch.grace_s
    try:
        yield
        patience_s = launch.stall_timeout_s
    finally:
        _end(process, patience_s, artifacts)


def _end(process: subprocess.Popen[bytes], patience_s: float, artifacts: Artifacts) -> None:
    """Tell the mirror that nothing more comes, and let it finish."""
    assert process.stdin
    process.stdin.close()
    logger.info("train: waiting for the mirror, at most %g s; Ctrl-C ends that", patience_s)
    try:
        status: object = process.wait(patience_s)
        said = f"ended with exit status {status}, see above"
    except subprocess.TimeoutExpired:
        status, said = "none", f"was not done within {patience_s:g} s"
    finally:
        process.kill()
        process.wait()
    if status != os.EX_OK:
        again = f"`python -m tasks mirror {artifacts.recipe_path}` uploads what is left"
        logger.warning("train: the Hub may lack the last checkpoint: the mirror %s; %s", said, again)


def mirror(recipe_path: Path, *, run: str | None = None) -> None:
    """Upload what a run leaves until standard input ends; without a run, what earlier mirrors have left.

    Raises:
        RecipeError: the recipe asks for no mirror.
        HubRefusedError: the Hub would refuse again.
        TransientError: the Hub gives no clear answer; what waits is kept.
    """
    recipe = load(recipe_path)
    if recipe.launch.mirror == "none":
        raise RecipeError("launch.mirror", "is `none`, so that nothing goes to the Hub", "set it to `last` or `all`")
    if run:
        os.nice(_NICE)  # the training comes first
    artifacts = Artifacts(recipe_path.stem)
    place = artifacts.mirror
    with exclusive(artifacts.mirror_lock, f"a mirror of {artifacts.recipe}", wait_s=5.0):
        from tasks.hub_client.connection import open_hub
        from tasks.mirror.branch import Branch

        for other in place.glob("*"):
            if run not in (None, other.name):
                shutil.rmtree(other)
        runs = [place / run] if run else sorted(place.glob("*"))
        publish = recipe.publish
        hub = open_hub(artifacts, repo_id=publish.repo_id, endpoint=publish.endpoint, to_write=True)
        with hub as (api, _):
            branch = Branch(api, publish.repo_id, publish.private)
            logger.info("mirror: %s checkpoints go to %s", recipe.launch.mirror, branch.where)
            for folder in runs:
                waiting = Waiting(folder, keep_all=recipe.launch.mirror == "all")
                upload = _Upload(branch, waiting, artifacts.tokenizer, publish.timeout_s)
                if run:
                    threading.Thread(
                        target=_watch,
                        args=(waiting, artifacts.checkpoints / run, upload.ended),
                        daemon=True,
                    ).start()
                else:
                    upload.ended.set()
                upload.run()
                shutil.rmtree(folder, ignore_errors=True)


class _Upload:
    """What waits, uploaded one after the other until `ended` is set and nothing waits any more."""

    def __init__(self, branch: Branch, waiting: Waiting, tokenizer: Path, patience_s: float) -> None:
        self.ended = threading.Event()
        self._branch = branch
        self._waiting = waiting
        self._tokenizer = tokenizer
        self._patience_s = patience_s
        self._give_up: float | None = None
        self._further: dict[str, int] = {}
        """How far the branch was when this began, by run."""

    def run(self) -> None:
        from tasks.mirror.branch import retry_until_clear

        while True:
            is_last = self.ended.is_set()
            if not self._waiting.next():
                if is_last:
                    return
                self.ended.wait(_POLL_S)
                continue
            if line := retry_until_clear(
                self._branch, self._upload, self._wait, lambda said: logger.warning("mirror: %s", said)
            ):
                logger.info("mirror: %s", line)

    def _upload(self) -> str:
        """Upload what is next; each attempt takes what is newest by then."""
        from tasks.mirror.branch import BEST, LAST, additions

        folders, names, done = {}, [], []
        for sealed in self._waiting.next():
            is_best = sealed.name.startswith("best-")
            place = BEST if is_best else sealed.name if self._waiting.keep_all else LAST
            beside = sorted(self._tokenizer.glob("*")) if is_best else []
            done.append(sealed)
            try:
                if place == LAST and self._is_there(sealed):
                    continue
                folders[place] = additions(place, sealed, beside)
                names.append(sealed.name)
            except CheckpointError as error:
                logger.warning("mirror: %s is left out: %s %s", sealed.name, error.where, error.what)
        said = ""
        if folders:
            title = f"Keep {' and '.join(names)}"
            said = f"{' and '.join(names)} at {self._branch.where}: commit {self._branch.put(folders, title)}"
        for sealed in done:
            self._waiting.done(sealed)
        return said

    def _is_there(self, checkpoint: Path) -> bool:
        """Whether the branch has the same run at this step, or at a later one, from another machine."""
        run = (checkpoint / IDENTITY).read_text(encoding="utf-8")
        if run not in self._further:
            self._further[run] = self._branch.step_of_last(json.loads(run), checkpoint.parent / ".held")
        step, further = step_of(checkpoint), self._further[run]
        if step < further:
            said = (
                "mirror: %s stays here: the branch has step %d of this run; `python -m tasks fetch` goes on from there"
            )
            logger.warning(said, checkpoint.name, further)
        return step <= further

    def _wait(self, wait_s: float) -> bool:
        if not self.ended.wait(wait_s):
            return True
        self._give_up = self._give_up or time.monotonic() + self._patience_s
        if time.monotonic() + wait_s > self._give_up:
            return False
        time.sleep(wait_s)
        return True


def _watch(waiting: Waiting, run: Path, ended: threading.Event) -> None:
    """Look at the run's folder until standard input ends, and then once more."""
    try:
        while not (select.select([sys.stdin], [], [], _POLL_S)[0] and not os.read(sys.stdin.fileno(), 4096)):
            waiting.look(run)
        waiting.look(run)
    finally:
        ended.set()
