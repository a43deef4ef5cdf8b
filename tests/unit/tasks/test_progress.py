"""Progress lines in the log, and the end of a stage that makes no progress."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from params import EvergreenError, StalledError
from params.foundation import command_result
from tasks import progress as module
from tasks.progress import end_process_if_idle, iterate_with_progress
from tests.support.project import ROOT, wait_for

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def stalls(tmp_path: Path, code: str) -> tuple[subprocess.CompletedProcess[str], EvergreenError | None]:
    """Run a script with a time limit of two seconds, and the error that it reports."""
    script = tmp_path / "stage.py"
    head = (
        "import sqlite3, subprocess, time\nfrom params.foundation import command_result\n"
        "from tasks.progress import end_process_if_idle\n"
    )
    script.write_text(
        f"{head}with command_result.report_result_on_exit(), end_process_if_idle('ingest', 2.0):\n    {code}\n"
    )
    result = tmp_path / "result"
    environment = {**os.environ, **command_result.preallocate_result_file(result), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    found = command_result.read_result_file(result)
    return done, found and found.error


@pytest.mark.parametrize("code", ["time.sleep(600)", f"sqlite3.connect(':memory:').execute({ENDLESS!r}).fetchall()"])
def test_a_stage_that_hangs_ends_with_its_place_and_the_key(tmp_path, code):
    done, error = stalls(tmp_path, code)
    assert type(error) is StalledError
    assert done.returncode == error.exit_code
    assert re.search(r"made no progress for 2 s, at \S*stage\.py:5 in <module>", error.what)
    assert "launch.stage_timeout_s" in error.fix
    assert error.what not in done.stderr, "its starter says it"
    assert 'stage.py", line 5' in done.stderr


def test_its_children_end_with_it(tmp_path):
    code = "child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    done, _ = stalls(tmp_path, code)
    wait_for(lambda: not psutil.pid_exists(int(done.stdout)), "the end of the child", 5)


def test_a_stage_that_makes_progress_takes_as_long_as_it_needs(monkeypatch):
    def end(*_):
        ended.append(True)

    ended: list[bool] = []
    monkeypatch.setattr(module, "_STEP_S", 0.02)
    monkeypatch.setattr(module, "_end", end)
    with end_process_if_idle("ingest", 0.5):
        for _ in iterate_with_progress(range(20), what="rows"):
            time.sleep(0.1)
    assert not ended
    with end_process_if_idle("ingest", 0.5):
        wait_for(lambda: ended, "the end", 5)
