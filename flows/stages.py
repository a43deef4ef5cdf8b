"""Run one stage through DVC: ask whether it is stale, and if so let DVC run it, watched.

DVC is asked in this process (0.03 s) and runs stages in one of its own (0.5 s more): its locks tell owners apart by
process, so that two of its runs in one process would share them.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Literal

import params
from flows import child_process
from params import (
    DataError,
    EvergreenError,
    HubRefusedError,
    KilledError,
    ModelError,
    RecipeError,
    StorageError,
    TransientError,
    load,
)
from params.artifacts import Artifacts
from params.schema import Function, Sql

Outcome = Literal["ran", "restored", "unchanged"]
"""What became of a stage: its command ran, DVC had the result of the same work in its cache, or there was nothing to do."""

_ERRORS: dict[str, type[EvergreenError]] = {
    name: c
    for name, c in vars(params).items()
    if isinstance(c, type) and issubclass(c, EvergreenError) and c is not EvergreenError
}
_BY_EXIT_CODE = {c.exit_code: c for c in (DataError, HubRefusedError, ModelError, RecipeError, StorageError)}
_TO_END_S = 10.0
"""What a stopped training needs beyond `launch.grace_s`: to end its processes, and to say where the next start goes on."""
_BUSY = ("is busy, it is being blocked by", "Unable to acquire lock")


def changed(stage: str, recipe: str) -> bool:
    """Whether DVC would run `stage`.

    Raises:
        TransientError: another process works on the stage's artifacts.
        RecipeError: dvc.yaml has no such stage, or cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.stage.exceptions import StageNotFound

    name = f"{stage}@{recipe}"
    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(_wait_for_lock=True) as repo, repo.lock:
            (found,) = repo.stage.collect(name)
            return bool(found.changed())
    except LockError as error:
        raise _busy(name, str(error)) from None
    except StageNotFound:
        fix = "add the recipe to `recipes` at the top of dvc.yaml"
        raise RecipeError("dvc.yaml", f"there is no stage {name}", fix) from None
    except DvcException as error:
        raise RecipeError("dvc.yaml", f"{name}: {error}", "mend dvc.yaml") from None


def check(recipe: str, log: child_process.Logger) -> None:
    """Find what is wrong with a recipe before any stage starts.

    Raises:
        EvergreenError: every problem that was found.
    """
    outcome = child_process.run("tasks", ["check", str(recipe_path(recipe))], log)
    if outcome.status:
        raise _error("check", outcome.status, "\n".join(outcome.lines))


def run(stage: str, recipe: str, log: child_process.Logger, *, force: bool = False) -> Outcome:
    """Bring `stage` up to date; with `force`, run it whether it is stale or not.

    Raises:
        EvergreenError: the error of the stage; a `TransientError` when the same call may succeed later.
    """
    name = f"{stage}@{recipe}"
    force = force or (stage == "ingest" and _source_is_unwatched(recipe))
    if not force and not changed(stage, recipe):
        if (outdated := _outdated(stage, recipe, log)) is None:
            log.info("%s: nothing has changed", name)
            return "unchanged"
        log.warning("%s: %s", name, outdated)
        force = True
    # Without --wait-for-lock, which goes before the subcommand, a stage that ends while another DVC process holds the
    # project's lock for more than 3 s fails with its work uncommitted.
    arguments = ["--wait-for-lock", "repro", "--single-item", name, *(["--force"] if force else [])]
    outcome = child_process.run("dvc", arguments, log, grace_s=_grace_s(stage, recipe))
    text = "\n".join(outcome.lines)
    if outcome.status:
        raise _error(name, outcome.status, text)
    if "Running stage" in text:
        return "ran"
    return "restored" if "is cached - skipping run" in text else "unchanged"


def recipe_path(recipe: str) -> Path:
    """The file of a recipe."""
    return Path("params", f"{recipe}.yaml")


def _grace_s(stage: str, recipe: str) -> float:
    """How long a stage may take to stop: a training what it needs to write a checkpoint, to upload it, and to end."""
    if stage != "train":
        return child_process.GRACE_S
    launch = load(recipe_path(recipe)).launch
    to_upload_s = 0.0 if launch.mirror == "none" else launch.grace_s
    return max(child_process.GRACE_S, launch.grace_s + to_upload_s + _TO_END_S)


def _source_is_unwatched(recipe: str) -> bool:
    """Whether the rows come from where DVC cannot see that they changed."""
    source = load(recipe_path(recipe)).data.source
    return isinstance(source, Sql) or (isinstance(source, Function) and source.refresh)


def _outdated(stage: str, recipe: str, log: child_process.Logger) -> str | None:
    """What the Hub, which DVC cannot watch either, no longer holds as a stage left it; one that gives no answer is believed."""
    from tasks.publishing.stage import is_current, is_there

    looks = {
        "evaluate": (is_current, "another model has been published since the comparison"),
        "publish": (is_there, "the Hub no longer holds what the receipt says"),
    }
    if stage not in looks:
        return None
    holds, otherwise = looks[stage]
    try:
        return None if holds(Artifacts(recipe), load(recipe_path(recipe)).publish) else otherwise
    except EvergreenError as error:
        log.warning("%s@%s: could not ask the Hub: %s", stage, recipe, error)
        return None


def _error(name: str, status: int, text: str) -> EvergreenError:
    """The error that a stage printed, as an exception; without one, what its exit status says."""
    if any(sign in text for sign in _BUSY):
        return _busy(name, text)
    if status < 0:
        return KilledError(name, f"DVC was ended by signal {-status}", "start it again: training goes on where it was")
    inner = re.findall(r"exited with (-?\d+)", text)
    code = int(inner[-1]) if inner else status
    if code < 0 or code > 128:
        signal = -code if code < 0 else code - 128
        return KilledError(name, f"was ended by signal {signal}", "start it again: training goes on where it was")
    printed = re.findall(rf"^({'|'.join(_ERRORS)}): (.*?)\n  fix: (.*)$", text, re.MULTILINE | re.DOTALL)
    if printed:
        kind, what, fix = printed[-1]
        return _ERRORS[kind](name, what, fix.splitlines()[0])
    cls = TransientError if code == os.EX_TEMPFAIL else _BY_EXIT_CODE.get(code, EvergreenError)
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
    return cls(name, f"exited with {code}: {last}", "look at the lines above")


def _busy(name: str, text: str) -> TransientError:
    owner = re.search(r"\(PID (\d+)\): (.*)", text)
    who = f"process {owner[1]} ({owner[2]})" if owner else "another process"
    return TransientError(name, f"{who} works on its artifacts", "wait for it, or end it")
