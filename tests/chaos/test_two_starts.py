"""Two starts of one run never train at the same time, and the one that trains ends like the golden run."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.project import wait_for


@pytest.mark.slow
def test_only_one_of_two_starts_trains(victim):
    starts = [victim.start(log=f"{name}.log") for name in ("first", "second")]
    status = [start.wait(240) for start in starts]
    victim.project.started.clear()
    outputs = [(victim.project.root / f"{name}.log").read_text() for name in ("first", "second")]
    assert sorted(status) == [0, os.EX_TEMPFAIL], outputs
    loser = status.index(os.EX_TEMPFAIL)
    assert "TransientError: " in outputs[loser]
    assert f"a training of tiny is already running in process {starts[1 - loser].pid}" in outputs[loser]
    assert victim.final_differences() == []


@pytest.mark.slow
def test_start_while_another_is_killed(victim):
    """The trainer of the first start may still be running when the second one starts its own."""
    first = victim.start(log="first.log")
    wait_for(lambda: victim.newest_step() >= 10, "a checkpoint", 120)
    first.send_signal(signal.SIGKILL)
    victim.project.started.remove(first)
    result = victim.run()
    while result.status == os.EX_TEMPFAIL:  # the kernel has not yet released the lock of the killed start
        assert "already running" in result.output
        result = victim.run()
    first.wait()
    assert result.status == 0, result.output
    assert result.resumed_at is not None
    assert result.resumed_at >= 10
    assert victim.final_differences() == []
