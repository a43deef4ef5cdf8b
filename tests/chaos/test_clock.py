"""Nothing is decided by the time of day: neither a clock that was moved nor odd dates of files change a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.campaign import IS_LONG
from tests.chaos.victims import EX_TEMPFAIL, Victim

DAY_S = 86_400
MOVED_CLOCK = '''\
"""Every process whose path has this file in it finds the clock moved, and moved back and forth as it runs."""
import os, time

_real = time.time
_days = float(os.environ["MOVED_BY_DAYS"])


def _moved():
    return _real() + 86_400 * _days * (1 if int(time.monotonic() * 2) % 2 else -1)


time.time = _moved
time.time_ns = lambda: int(_moved() * 1e9)
'''


pytestmark = pytest.mark.skipif(not IS_LONG, reason="`make chaos` moves the clock too")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """Of two processes, so that the launcher which watches them finds the clock moved too."""
    steps = {"training.max_steps": 60, "training.save_steps": 5, "training.eval_steps": 20}
    made = Victim(tmp_path, steps | {"launch.num_processes": 2, "launch.micro_batch_size": 2})
    try:
        made.train_golden()
        yield made
    finally:
        made.project.end()


def test_moved_clock_changes_nothing(victim, tmp_path):
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(MOVED_CLOCK)
    path = f"{tmp_path / 'clock'}{os.pathsep}{victim.project.root}"

    left = victim.wait(victim.start("checkpoint.retained:3", PYTHONPATH=path, MOVED_BY_DAYS="400"))
    assert left.status == EX_TEMPFAIL, left.output
    assert victim.newest_step() == 15
    assert victim.differences() == []

    # The newest looks oldest, the run's own files come from the future, and the code is newer than all of them.
    now = time.time()
    for age_days, checkpoint in enumerate(victim.checkpoints()):
        for path_in_it in (*checkpoint.rglob("*"), checkpoint):
            os.utime(path_in_it, (now - (9000 - age_days) * DAY_S,) * 2)
    for file in (*victim.folder.glob("*.*"), *victim.folder.glob("rank-*"), victim.folder):
        if file.name.partition("-")[0] != "checkpoint":
            os.utime(file, (now + 4000 * DAY_S,) * 2)
    left = victim.wait(victim.start("checkpoint.optimizer:2", PYTHONPATH=path, MOVED_BY_DAYS="-3"))
    assert left.status == EX_TEMPFAIL, left.output
    assert (left.resumed_at, left.set_aside) == (15, [])
    assert victim.newest_step() == 20
    assert victim.differences() == []

    left = victim.run()
    assert left.status == 0, left.output
    assert (left.resumed_at, left.set_aside) == (20, [])
    assert victim.final_differences() == []
