"""A disk that fills up while a run trains: the error says what is missing, and with room made the run goes on exactly."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.victims import Ended, Victim
from tests.support.project import wait_for

DISK = "4m"
"""Room for the checkpoints of the tiny model, each of about half a MiB."""
EX_IOERR = 74


@pytest.fixture(autouse=True)
def small_disk(victim: Victim) -> Iterator[None]:
    """A disk with little room below the checkpoints."""
    disk = victim.artifacts.scratch
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", disk]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        victim.project.end()
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("left_free", [150_000, 0], ids=["too little for a checkpoint", "not a byte"])
def test_full_disk_at_any_point_is_reported_and_the_next_run_is_exact(victim, left_free):
    process = victim.start()
    wait_for(lambda: victim.newest_step() >= 10, "two checkpoints", 120)
    ballast = victim.artifacts.scratch / "ballast"
    while process.poll() is None:  # again and again, as old checkpoints are deleted meanwhile
        fill(ballast, left_free)
        time.sleep(0.01)
    assert_full(victim.wait(process), victim)
    kept = victim.newest_step()
    assert kept >= 10

    fill(ballast, left_free)
    left = victim.run()
    assert_full(left, victim)
    assert left_free == 0 or "MiB are missing" in left.output
    assert victim.newest_step() == kept

    ballast.unlink()
    left = victim.run()
    assert left.status == 0, left.output
    assert (left.resumed_at, left.set_aside) == (kept, [])
    assert victim.final_differences() == []


def fill(ballast: Path, left_free: int) -> None:
    """Write until nothing more goes onto the disk, then give back a little."""
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, max(0, ballast.stat().st_size - left_free))


def assert_full(left: Ended, victim: Victim) -> None:
    assert left.status == EX_IOERR, left.output
    assert "\nStorageError: " in left.output
    assert re.search(r"MiB are missing|0 MiB free on that disk", left.output), left.output
    assert "Traceback" not in left.output
    assert victim.differences() == []
