"""Process groups that stop within a grace period, and processes that end as any other."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.project import ROOT, wait_for
from trainer.runtime.lifetime import stop_process_group


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


class TestStopGroup:
    STUBBORN = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    ORDERLY = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('on', flush=True); time.sleep(60)"

    @pytest.mark.parametrize(
        ("code", "grace_s", "status", "at_most_s"), [(ORDERLY, 30.0, 7, 10.0), (STUBBORN, 1.0, -signal.SIGKILL, 10.0)]
    )
    def test_stop_group_kills_after_the_grace(self, code, grace_s, status, at_most_s) -> None:
        process = start(code)
        assert process.stdout is not None
        process.stdout.readline()
        begin = time.monotonic()
        stop_process_group(process, grace_s)
        took_s = time.monotonic() - begin
        process.stdout.close()
        assert process.returncode == status
        assert took_s < at_most_s
        assert status != -signal.SIGKILL or took_s >= grace_s

    def test_stop_group_kills_remaining_children(self) -> None:
        process = start("import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)")
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait()
        assert is_alive(child)
        stop_process_group(process, 10.0)
        process.stdout.close()
        wait_for(lambda: not is_alive(child), "the end of the group", 5)


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("return 7", 7, ""),
        ("return None", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('wrong')", 1, "wrong\n"),
        ("raise ValueError('odd')", 1, "ValueError: odd\n"),
    ],
)
def test_a_process_that_runs_and_ends_leaves_what_any_other_leaves(tmp_path, end, status, said):
    """Its threads end, the functions of atexit are called, and what stands in the buffers of open files is written."""
    done = run_to_end(
        tmp_path,
        f"""
        global kept, packed
        kept = open("open", "w")
        kept.write("kept")
        packed = gzip.open("packed.gz", "wt")  # flushed, it lacks its end
        packed.write("packed")
        print("printed", end="")
        atexit.register(lambda: open("atexit", "w").write("called"))
        threading.Thread(target=write_late, args=["thread"]).start()
        {end}
        """,
    )
    assert (done.returncode, done.stdout) == (status, "printed")
    assert done.stderr.endswith(said)
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == b"packed"
    (tmp_path / "packed.gz").unlink()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "open": "kept",
        "atexit": "called",
        "thread": "late",
    }


@pytest.mark.parametrize(
    "body",
    [
        "print('lost')",
        "pipe = subprocess.Popen('cat', stdin=-1, text=True).stdin; pipe.write('kept'); ctypes.CDLL(None).printf(b'by C')",
    ],
)
def test_only_output_that_is_written_ends_well(tmp_path, body):
    """A pipe and what C has buffered are flushed though no file on disk is open; output on a full disk is lost, and the status says so."""
    with Path("/dev/full" if "lost" in body else tmp_path / "output").open("w") as output:
        done = run_to_end(tmp_path, f"global pipe\n{body}", stdout=output)
    if "lost" in body:
        assert (done.returncode, "No space left" in done.stderr) == (120, True)
    else:
        wait_for(lambda: sorted((tmp_path / "output").read_text()) == sorted("by Ckept"), "the outputs", 5)


@pytest.mark.parametrize(
    ("more", "is_quick"),
    [
        ("from tasks.hub_server.server import LocalHub; LocalHub(Path('hub'), tokens={}).__enter__().__exit__()", True),
        (
            "import concurrent.futures, tasks.shards.executor as e\n        with e.start_process_pool(1) as pool: pool.submit(abs, -1).result()",
            True,
        ),
        ("file = open('file', 'w')", False),
    ],
)
def test_a_hub_processes_and_an_inherited_pipe_do_not_slow_the_end(tmp_path, more, is_quick):
    """As long as no file of its own is open for writing, a process does not take the objects apart that it has."""
    body = f"""
        class Late:
            def __del__(self):
                sys.__stdout__.write("taken apart")
        from pathlib import Path
        global late, file
        late = Late()
        {more}
        """
    reader, writer = os.pipe()
    try:
        done = run_to_end(tmp_path, body, pass_fds=[writer])
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if is_quick else "taken apart")


def test_an_interrupt_that_comes_while_an_object_is_taken_apart_is_not_lost(tmp_path):
    body = """
        class Interrupted:
            def __del__(self):
                signal.raise_signal(signal.SIGINT)
                time.sleep(0)
        try:
            Interrupted()
            time.sleep(20)
        except KeyboardInterrupt:
            return 130
        """
    done = run_to_end(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_of_its_own_code_while_python_ends_does_not_stop_the_end(tmp_path):
    body = """
        global late, file
        class Late:
            def __del__(self):
                raise KeyboardInterrupt
        late, file = Late(), open("file", "w")
        """
    done = run_to_end(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "")
    assert "KeyboardInterrupt" in done.stderr


def run_to_end(
    folder: Path, body: str, stdout: Any = subprocess.PIPE, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a process with the function `body` by run_and_end, as the pipeline's processes do."""
    code = f"""
import atexit, ctypes, gzip, signal, subprocess, sys, threading, time
from trainer.runtime.lifetime import run_and_end
from trainer.runtime.memory import reduce_garbage_collection
def write_late(name):
    time.sleep(0.1)
    open(name, "w").write("late")
def main():
    reduce_garbage_collection()
{textwrap.indent(textwrap.dedent(body), "    ")}
run_and_end(main)
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=stdout, stderr=-1, text=True, check=False, pass_fds=pass_fds
    )
