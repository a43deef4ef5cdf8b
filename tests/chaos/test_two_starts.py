"""Two starts of one run never train together, and whichever trains, the end is the golden one."""

from __future__ import annotations

import signal

from tests.chaos.victims import EX_TEMPFAIL
from tests.support.project import wait_for


def test_only_one_of_two_starts_trains(victim):
    starts = [victim.start(log=f"{name}.log") for name in ("first", "second")]
    status = [start.wait(240) for start in starts]
    victim.project.started.clear()
    said = [(victim.project.root / f"{name}.log").read_text() for name in ("first", "second")]
    assert sorted(status) == [0, EX_TEMPFAIL], said
    loser = status.index(EX_TEMPFAIL)
    assert "TransientError: " in said[loser]
    assert f"a training of tiny is already running in process {starts[1 - loser].pid}" in said[loser]
    assert victim.final_differences() == []


def test_start_while_another_is_killed(victim):
    """The trainer of the first may still be about to end when the second wants to start its own."""
    first = victim.start(log="first.log")
    wait_for(lambda: victim.newest_step() >= 10, "a checkpoint", 120)
    first.send_signal(signal.SIGKILL)
    victim.project.started.remove(first)
    left = victim.run()
    while left.status == EX_TEMPFAIL:  # the kernel had not let go of the dead one's lock
        assert "already running" in left.output
        left = victim.run()
    first.wait()
    assert left.status == 0, left.output
    assert left.resumed_at is not None
    assert left.resumed_at >= 10
    assert victim.final_differences() == []
