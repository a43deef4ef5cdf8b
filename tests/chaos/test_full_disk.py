"""A disk that is full during a training: the error says how much is missing, and after a clean-up the run continues exactly."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.victims import StartResult, Victim
from tests.support.project import wait_for

DISK = "4m"
"""Enough for the checkpoints of the tiny model, each of about half a MiB."""


@pytest.fixture(autouse=True)
def small_disk(victim: Victim) -> Iterator[None]:
    """Mount a small disk under the checkpoints."""
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
@pytest.mark.parametrize("free_bytes", [150_000, 0], ids=["too little for a checkpoint", "nothing"])
def test_full_disk_is_reported_and_the_next_run_is_exact(victim, free_bytes):
    process = victim.start()
    wait_for(lambda: victim.newest_step() >= 10, "two checkpoints", 120)
    ballast = victim.artifacts.scratch / "ballast"
    while process.poll() is None:  # repeatedly, because old checkpoints are deleted meanwhile
        fill(ballast, free_bytes)
        time.sleep(0.01)
    assert_disk_full(victim.wait(process), victim)
    newest = victim.newest_step()
    assert newest >= 10

    fill(ballast, free_bytes)
    result = victim.run()
    assert_disk_full(result, victim)
    assert free_bytes == 0 or "MiB are missing" in result.output
    assert victim.newest_step() == newest

    ballast.unlink()
    result = victim.run()
    assert result.status == 0, result.output
    assert (result.resumed_at, result.set_aside) == (newest, [])
    assert victim.final_differences() == []


def fill(ballast: Path, free_bytes: int) -> None:
    """Fill the disk up to the last `free_bytes`."""
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, max(0, ballast.stat().st_size - free_bytes))


def assert_disk_full(result: StartResult, victim: Victim) -> None:
    assert result.status == os.EX_IOERR, result.output
    assert "\nStorageError: " in result.output
    assert re.search(r"MiB are missing|0 MiB free on that disk", result.output), result.output
    assert "Traceback" not in result.output
    assert victim.differences() == []
