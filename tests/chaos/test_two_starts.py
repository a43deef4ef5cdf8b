"""Two starts of one run never train together, and whichever trains, the end is the golden one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.chaos.victims import EX_TEMPFAIL, Victim
from tests.project import wait_for


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A project whose golden run has ended."""
    steps = {"training.max_steps": 60, "training.save_steps": 5, "training.eval_steps": 20}
    victim = Victim(tmp_path_factory.mktemp("twice"), steps)
    try:
        victim.train_golden()
        yield victim
    finally:
        victim.project.end()


def test_of_two_at_once_one_trains(trained):
    starts = [trained.start(log=f"{name}.log") for name in ("first", "second")]
    status = [start.wait(240) for start in starts]
    said = [(trained.project.root / f"{name}.log").read_text() for name in ("first", "second")]
    assert sorted(status) == [0, EX_TEMPFAIL], said
    loser = status.index(EX_TEMPFAIL)
    assert "TransientError: " in said[loser]
    assert f"a training of tiny is already running in process {starts[1 - loser].pid}" in said[loser]
    assert trained.final_differences() == []


def test_a_start_in_the_moment_in_which_another_is_killed(trained):
    """The trainer of the first may still be about to end when the second wants to start its own."""
    trained.forget()
    first = trained.start(log="first.log")
    wait_for(lambda: trained.newest_step() >= 10, "a checkpoint", 120)
    first.send_signal(signal.SIGKILL)
    while True:
        second = trained.start()
        left = trained.wait(second)
        if left.status != EX_TEMPFAIL:
            break
        assert "already running" in left.said  # the kernel had not let go of the dead one's lock
        time.sleep(0.01)
    assert left.status == 0, left.said
    assert left.resumed_at is not None
    assert left.resumed_at >= 10
    assert trained.final_differences() == []
