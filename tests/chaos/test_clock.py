"""A run does not depend on the time of day: neither a moved clock nor wrong times of files change it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.campaign import IS_LONG
from tests.chaos.victims import Victim

DAY_S = 86_400
MOVED_CLOCK = '''\
"""Moves the clock of every process that finds this file on its path, back and forth while it runs."""
import os, time

_real = time.time
_days = float(os.environ["MOVED_BY_DAYS"])


def _moved():
    return _real() + 86_400 * _days * (1 if int(time.monotonic() * 2) % 2 else -1)


time.time = _moved
time.time_ns = lambda: int(_moved() * 1e9)
'''


pytestmark = pytest.mark.skipif(not IS_LONG, reason="only `make chaos` moves the clock")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """A victim with two processes, so that the clock of the launcher that watches them is moved, too."""
    steps = {"training.max_steps": 60, "training.save_steps": 5, "training.eval_steps": 20}
    victim = Victim(tmp_path, steps | {"launch.num_processes": 2, "launch.micro_batch_size": 2})
    try:
        victim.train_golden()
        yield victim
    finally:
        victim.project.end()


def test_moved_clock_changes_nothing(victim, tmp_path):
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(MOVED_CLOCK)
    path = f"{tmp_path / 'clock'}{os.pathsep}{victim.project.root}"

    result = victim.wait(victim.start("checkpoint.retained:3", PYTHONPATH=path, MOVED_BY_DAYS="400"))
    assert result.status == os.EX_TEMPFAIL, result.output
    assert victim.newest_step() == 15
    assert victim.differences() == []

    # The newest checkpoint has the oldest time, and the other files of the run are from the future.
    now = time.time()
    for age_days, checkpoint in enumerate(victim.checkpoints()):
        for path_in_it in (*checkpoint.rglob("*"), checkpoint):
            os.utime(path_in_it, (now - (9000 - age_days) * DAY_S,) * 2)
    for file in (*victim.folder.glob("*.*"), *victim.folder.glob("rank-*"), victim.folder):
        if file.name.partition("-")[0] != "checkpoint":
            os.utime(file, (now + 4000 * DAY_S,) * 2)
    result = victim.wait(victim.start("checkpoint.optimizer:2", PYTHONPATH=path, MOVED_BY_DAYS="-3"))
    assert result.status == os.EX_TEMPFAIL, result.output
    assert (result.resumed_at, result.set_aside) == (15, [])
    assert victim.newest_step() == 20
    assert victim.differences() == []

    result = victim.run()
    assert result.status == 0, result.output
    assert (result.resumed_at, result.set_aside) == (20, [])
    assert victim.final_differences() == []
