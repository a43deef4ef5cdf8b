"""The log of a recipe's receipts, verdicts and rollbacks; damage in logs is in history/test_run_log.py."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import time
from math import nan
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from params.foundation.errors import StorageError
from tasks.release_log.events import ReleaseEvent, append_release_event, format_release_event, read_release_events
from tests.support import forked
from tests.support.project import ROOT


@pytest.fixture
def artifacts(tmp_path):
    return Artifacts("tiny", tmp_path)


def entry(number=1, **changes):
    metrics = {"model": {"loss": 0.1 + number}, "untrained": {"loss": 5.0}}
    fields = {"event": "published", "verdict": "publish", "reasons": ("it is größer",), "repo_id": "tests/tiny"}
    fields |= {
        "endpoint": "local",
        "commit": f"{number:040}",
        "tag": f"v{number}",
        "metric": "loss",
        "metrics": metrics,
    }
    return ReleaseEvent.model_validate(fields | changes)


def untimed(entries):
    return [one.model_copy(update={"time": ""}) for one in entries]


def test_entries_are_appended_with_their_time(artifacts):
    assert read_release_events(artifacts) == []
    for number in (1, 2):
        append_release_event(artifacts, entry(number))
    assert untimed(read_release_events(artifacts)) == [entry(1), entry(2)]
    lines = artifacts.release_events.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["tag"] for line in lines] == ["v1", "v2"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", json.loads(line)["time"]) for line in lines)


def test_release_that_two_machines_have_logged_is_there_once(artifacts):
    lines = [entry(1, time="2026-01-02T00:00:00+00:00"), entry(2), entry(1, time="2026-01-01T00:00:00+00:00")]
    made = entry(2, verdict=None, time="2026-01-03T00:00:00+00:00")
    artifacts.release_events.parent.mkdir(parents=True)
    artifacts.release_events.write_text("".join(f"{one.model_dump_json()}\n" for one in [made, *lines]))
    assert read_release_events(artifacts) == lines[:2]


def test_equal_work_is_logged_once(artifacts):
    for number in (1, 2, 1, 2):
        append_release_event(artifacts, entry(number))
    append_release_event(artifacts, entry(1, event="kept"))
    assert untimed(read_release_events(artifacts)) == [entry(1), entry(2), entry(1, event="kept")]


def test_metrics_that_are_not_numbers_are_equal(artifacts):
    for _ in range(2):
        append_release_event(artifacts, entry(metrics={"model": {"loss": nan}}))
    (one,) = read_release_events(artifacts)
    assert one.metrics == {"model": {"loss": None}}


@pytest.mark.parametrize("killed_at", ["os.fsync", "pathlib.Path.rename", "the end"])
def test_killed_write_leaves_whole_lines_and_is_repeated_once(artifacts, killed_at):
    append_release_event(artifacts, entry(1))
    before = artifacts.release_events.read_bytes()
    child = f"from {__name__} import killed_append; killed_append({str(artifacts.root)!r}, {killed_at!r})"
    assert subprocess.run([forked.python(), "-c", child], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    written = artifacts.release_events.read_bytes()
    assert written.startswith(before)
    assert (written == before) == (killed_at != "the end")
    append_release_event(artifacts, entry(2))
    assert untimed(read_release_events(artifacts)) == [entry(1), entry(2)]
    assert artifacts.release_events.read_bytes().count(b"\n") == 2


def killed_append(root, killed_at):
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if killed_at != "the end":
        pytest.MonkeyPatch().setattr(killed_at, kill)
    append_release_event(Artifacts("tiny", Path(root)), entry(2))
    kill()


def test_two_processes_write_at_the_same_time(artifacts):
    child = f"from {__name__} import append_many; append_many({str(artifacts.root)!r}, %d)"
    writers = [subprocess.Popen([forked.python(), "-c", child % first], cwd=ROOT) for first in (0, 20)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(int(one.tag[1:]) for one in read_release_events(artifacts)) == list(range(40))


def append_many(root, first):
    (Path(root) / f"writer-{first}").touch()
    while len([*Path(root).glob("writer-*")]) < 2:  # both begin at the same time
        time.sleep(0.001)
    pytest.MonkeyPatch().setattr("os.fsync", lambda _: time.sleep(0.002))  # as long as on a disk
    for number in range(first, first + 20):
        append_release_event(Artifacts("tiny", Path(root)), entry(number))


def test_keys_of_a_newer_version_are_ignored(artifacts):
    artifacts.release_events.parent.mkdir(parents=True)
    artifacts.release_events.write_text(json.dumps({**entry(1).model_dump(mode="json"), "new": 1}) + "\n")
    assert read_release_events(artifacts) == [entry(1)]


def test_log_that_cannot_be_written_is_a_storage_error(artifacts, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        append_release_event(artifacts, entry())


@pytest.fixture
def repository(tmp_path):
    for name in (".gitattributes", "runs/.gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    return tmp_path


def git(root, *arguments):
    user = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", str(root), *user, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_git_takes_the_log_and_no_partial_file(repository, artifacts):
    append_release_event(artifacts, entry())
    artifacts.release_events.with_name(".log.jsonl.partial").touch()
    shown = git(repository, "status", "--porcelain", "--untracked-files=all", "runs/tiny")
    assert shown == "?? runs/tiny/release/log.jsonl\n"


def test_merge_keeps_the_lines_of_both_machines(repository, artifacts):
    def commit(*numbers):
        for number in numbers:
            append_release_event(artifacts, entry(number))
        git(repository, "add", "runs", ".gitattributes")
        git(repository, "commit", "-q", "-m", "run")

    commit(1)
    git(repository, "checkout", "-q", "-b", "other")
    commit(2, 3)
    git(repository, "checkout", "-q", "main")
    commit(4)
    git(repository, "merge", "-q", "other", "-m", "merge")
    assert sorted(one.tag for one in read_release_events(artifacts)) == ["v1", "v2", "v3", "v4"]


def test_line_for_a_terminal():
    time = "2026-01-02T03:04:05+00:00"
    assert format_release_event(entry(time=time)) == "2026-01-02 03:04  published v1, loss 1.1: it is größer"
    assert (
        format_release_event(entry(time=time, event="verdict"))
        == "2026-01-02 03:04  verdict publish, loss 1.1: it is größer"
    )
    rollback = entry(time=time, event="rollback", by="ann", verdict=None, metric=None, metrics={})
    assert format_release_event(rollback) == "2026-01-02 03:04  rollback v1, by ann: it is größer"


def test_lines_that_git_has_taken_away_still_count(tmp_path: Path) -> None:
    """The nights whose record could not be pushed: `git reset` puts the branch's log in place of ours."""
    artifacts = Artifacts("r", tmp_path)
    append_release_event(artifacts, entry(1))
    recorded = artifacts.release_events.read_bytes()
    for number in (2, 3, 4):
        append_release_event(artifacts, entry(number))
        artifacts.release_events.write_bytes(recorded)
    assert untimed(read_release_events(artifacts)) == [entry(1), entry(2), entry(3), entry(4)]
    append_release_event(artifacts, entry(3))
    assert len(read_release_events(artifacts)) == 4, "the same work again"
