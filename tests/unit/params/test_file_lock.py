"""Locks that end with their owner."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from params import StorageError, TransientError
from params.foundation.file_lock import hold_file_lock
from tests.support.project import ROOT
from trainer.runtime.lifetime import stop_process_group

HOLD = """\
import os, subprocess, sys, time
from pathlib import Path
from typing import Any
from params.foundation.file_lock import hold_file_lock
with hold_file_lock(Path(sys.argv[1]), "a test"):
    {child}
    print("held", flush=True)
    time.sleep(60)
"""
CHILDREN = {
    "no child": "pass",
    "a started child": "print(subprocess.Popen(['sleep', '60'], close_fds=False, stdout=subprocess.DEVNULL).pid, flush=True)",
    "a forked child": "pid = os.fork() or (os.close(1), time.sleep(60)); print(pid, flush=True)",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_killed_owner_frees_the_lock_despite_living_children(tmp_path: Path, child: str) -> None:
    path = tmp_path / "folder" / "x.lock"
    owner = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HOLD.format(child=CHILDREN[child]), path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        children = [int(line) for line in iter(lambda: owner.stdout.readline().strip(), b"held")]
        assert len(children) == (child != "no child")
        with (
            pytest.raises(TransientError, match=f"a test is already running in process {owner.pid}"),
            hold_file_lock(path, "a test"),
        ):
            pass
        owner.kill()
        owner.wait()
        with hold_file_lock(path, "a test", wait_s=10.0):  # on a busy machine the forked child may not have run yet
            assert path.read_text() == str(os.getpid())
        assert all(map(psutil.pid_exists, children))
    finally:
        stop_process_group(owner, 0.1)
        owner.stdout.close()


def test_a_lock_waits_for_the_current_owner(tmp_path: Path) -> None:
    path, acquired, release = tmp_path / "x.lock", threading.Event(), threading.Event()

    def hold() -> None:
        with hold_file_lock(path, "a test"):
            acquired.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    acquired.wait()
    with pytest.raises(TransientError, match="already running"), hold_file_lock(path, "a test", wait_s=0.2):
        pass
    threading.Timer(0.5, release.set).start()
    with hold_file_lock(path, "a test", wait_s=20):
        pass
    thread.join()


def test_shorter_pid_replaces_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text("1234567890123")
    with hold_file_lock(path, "a test"):
        assert path.read_text() == str(os.getpid())


def test_a_lock_that_the_disk_does_not_allow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    with (
        pytest.raises(StorageError, match=r"x\.lock: cannot be written: Read-only"),
        hold_file_lock(tmp_path / "x.lock", "a test"),
    ):
        pass


def test_full_disk_stops_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    with (
        hold_file_lock(path, "a test"),
        pytest.raises(TransientError, match="is already running in process unknown"),
        hold_file_lock(path, "a test"),
    ):
        pass


def test_error_in_the_block_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(KeyError), hold_file_lock(path, "a test"):
        raise KeyError
    with hold_file_lock(path, "a test"):
        pass
