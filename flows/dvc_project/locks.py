"""Locks: one run of a recipe at a time, and no lock outlives its owner.

DVC notes in .dvc/tmp/rwlock which process reads and writes which artifact. It cannot repair two things in that file: the
id of a dead owner that now belongs to another process (after a restart of a container, for example), which blocks for
ever; and a file that a kill cut short, on which every command fails.
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
from params.foundation.artifacts import Artifacts
from trainer.runtime.lifetime import exclusive

_GUARD_WAIT_S = 10.0


@contextlib.contextmanager
def recipe_lock(artifacts: Artifacts, log: Logger) -> Iterator[None]:
    """Hold the lock on the flow of this recipe; a `TransientError` if another flow holds it."""
    with exclusive(artifacts.flow_lock, f"a flow of the recipe `{artifacts.recipe}`"):
        clear_stale_locks(log)
        yield


def clear_stale_locks(log: Logger, root: Path = Path()) -> None:
    """Remove dead owners from DVC's lock file, and log how many."""
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    with _guard(path):
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            log.warning("removed %s, which a kill had cut short", path)
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
            log.info("removed %d dead owners from %s", len(dead), path)


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process with the owner's id also has the owner's command line."""
    try:
        command = " ".join(psutil.Process(owner["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return command.endswith(" ".join(owner["cmd"].split(" ")[1:]))


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Hold the lock under which DVC itself edits the file."""
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
