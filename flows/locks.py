"""Locks: no two runs of one recipe at a time, and none that outlives its owner.

DVC notes in .dvc/tmp/rwlock who reads and writes which artifact, by process id. Two things in it it does not mend
itself: an id that was given to another process since (after a restart of a container, for example), which it takes for
the owner for ever; and a file cut short by a kill, on which every command fails.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from flows.child_process import Logger
from params.artifacts import Artifacts
from trainer.runtime.lifetime import exclusive

_GUARD_WAIT_S = 10.0


def recipe_lock(artifacts: Artifacts) -> contextlib.AbstractContextManager[None]:
    """Hold the kernel's lock on this recipe's flow, whoever started it.

    Raises:
        TransientError: another flow runs this recipe in this project.
    """
    return exclusive(artifacts.flow_lock, f"a flow of the recipe `{artifacts.recipe}`")


def clear_stale_locks(log: Logger, root: Path = Path()) -> None:
    """Take dead owners out of DVC's lock file, and log what was taken out."""
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    with _guard(path):
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            log.warning("%s was cut short by a kill: removed", path)
            path.unlink()
            return
        writers: dict[str, dict[str, Any]] = content.get("write", {})
        readers: dict[str, list[dict[str, Any]]] = content.get("read", {})
        dead = [f"writer {w['pid']} of {p}" for p, w in writers.items() if not _lives(w)]
        dead += [f"reader {r['pid']} of {p}" for p, rs in readers.items() for r in rs if not _lives(r)]
        if dead:
            living = {p: [r for r in rs if _lives(r)] for p, rs in readers.items()}
            content = {
                "write": {p: w for p, w in writers.items() if _lives(w)},
                "read": {p: rs for p, rs in living.items() if rs},
            }
            path.write_text(json.dumps(content), encoding="utf-8")
            log.info("%s named %d dead owners: removed", path, len(dead))


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process with the owner's id also has its command line."""
    try:
        command = " ".join(psutil.Process(owner["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return command.endswith(" ".join(owner["cmd"].split(" ")[1:]))


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    """The lock under which DVC itself edits the file."""
    import zc.lockfile

    give_up = time.monotonic() + _GUARD_WAIT_S
    while True:
        try:
            guard = zc.lockfile.LockFile(f"{path}.lock")
            break
        except zc.lockfile.LockError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        guard.close()
