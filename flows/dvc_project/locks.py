"""Locks: one run of a recipe at a time, and no lock outlives its owner.

DVC notes in .dvc/tmp/rwlock which process reads and writes which artifact. It cannot repair two things in that file: the
id of a dead owner that now belongs to another process (after a restart of a container, for example), which blocks for
ever; and a file that a kill cut short, on which every command fails.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from flows import child_process
from flows.child_process import Logger
from params.foundation.artifacts import Artifacts
from params.foundation.file_lock import hold_file_lock
from trainer.runtime import fork_server


@contextlib.contextmanager
def hold_recipe_lock(artifacts: Artifacts, log: Logger) -> Iterator[None]:
    """Hold the lock on the flow of this recipe; a `TransientError` if another flow holds it."""
    with hold_file_lock(artifacts.flow_lock, f"a flow of the recipe `{artifacts.recipe}`"):
        remove_dead_lock_owners(log)
        yield


def remove_dead_lock_owners(log: Logger, root: Path = Path()) -> None:
    """Remove dead owners from DVC's lock file."""
    from dvc.lock import Lock

    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    with Lock(f"{path}.lock", wait=True):  # under which DVC itself edits the file
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            log.warning("removed %s, which a kill had cut short", path)
            path.unlink()
            return
        readers = {used: list(filter(_lives, owners)) for used, owners in found.get("read", {}).items()}
        writers = {used: owner for used, owner in found.get("write", {}).items() if _lives(owner)}
        content = {"write": writers, "read": {used: owners for used, owners in readers.items() if owners}}
        if content != found:
            path.write_text(json.dumps(content), encoding="utf-8")
            log.debug("removed dead owners from %s", path)


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process with the owner's id also has the owner's command line, or is a fork for a command that has it."""
    try:
        command = " ".join(psutil.Process(owner["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    arguments = " ".join(owner["cmd"].split(" ")[1:])
    if f" -m {fork_server.__name__} " not in command:
        return command.endswith(arguments)
    # A fork has the command line of its server; the command that it stands for lives as long as the fork.
    commands = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return any(f" -m {child_process.__name__} " in own and own.endswith(f" {arguments}") for own in commands)
