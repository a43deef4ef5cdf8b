"""The log of runs: each run once, and no damage that hides the others; it is written as the log of releases is (release_log/test_events.py)."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import append_run, read_runs, utc_now_to_second
from tests.support.project import ROOT
from tests.unit.tasks.history.example import entry


@pytest.fixture
def artifacts(tmp_path):
    return Artifacts("tiny", tmp_path)


def test_runs_are_appended_as_lines_with_times_in_utc(artifacts):
    assert read_runs(artifacts) == []
    for number in (1, 2):
        append_run(artifacts, entry(number))
    assert read_runs(artifacts) == [entry(1), entry(2)]
    lines = [json.loads(line) for line in artifacts.run_log.read_text(encoding="utf-8").splitlines()]
    assert [line["tag"] for line in lines] == ["release-000000000001", "release-000000000002"]
    assert [line["started"] for line in lines] == ["2026-01-02T03:00:00Z", "2026-01-03T03:00:00Z"]
    assert lines[0]["stages"]["train"] == {"outcome": "ran", "seconds": 120.0, "last_start_s": None}


def test_a_run_is_logged_once(artifacts):
    for number in (1, 2, 1, 2):
        append_run(artifacts, entry(number))
    append_run(artifacts, entry(1, outcome="failed"))
    assert read_runs(artifacts) == [entry(1), entry(2)]
    assert artifacts.run_log.read_bytes().count(b"\n") == 2


def test_a_flow_run_that_prefect_starts_again_is_another_run(artifacts):
    again = entry(1, started=entry(1).started + timedelta(hours=2), outcome="published")
    for one in (entry(1, outcome="failed"), again):
        append_run(artifacts, one)
    assert [one.outcome for one in read_runs(artifacts)] == ["failed", "published"]


def test_runs_are_read_in_the_order_in_which_they_started_and_once_after_a_merge(artifacts):
    for number in (3, 1):
        append_run(artifacts, entry(number))
    text = artifacts.run_log.read_text(encoding="utf-8")
    artifacts.run_log.write_text(text + text)
    assert read_runs(artifacts) == [entry(1), entry(3)]


@pytest.mark.parametrize(
    "damage", [b'{"run_id": "20', b"\0" * 500, b"\xff\xfe\n", b"<<<<<<< HEAD\n", b"[1]\n", b"\n\n", b'{"outcome": "x"}']
)
def test_damage_is_ignored_with_a_warning_and_kept(artifacts, damage, caplog):
    append_run(artifacts, entry(1))
    with artifacts.run_log.open("ab") as file:
        file.write(damage)
    append_run(artifacts, entry(2))
    caplog.clear()
    assert read_runs(artifacts) == [entry(1), entry(2)]
    assert ("runs.jsonl:2: ignored, because the line is damaged" in caplog.text) == (damage != b"\n\n")


def test_what_measurements_say_is_there_or_null_and_in_words(artifacts, caplog):
    silent, told = (json.loads(one.model_dump_json()) for one in (entry(1), entry(2, drift="words")))
    assert (silent["drift"], told["drift"]) == (None, "words")
    lines = [{name: value for name, value in silent.items() if name != "drift"}, told | {"drift": 5}]
    artifacts.run_log.parent.mkdir(parents=True, exist_ok=True)
    artifacts.run_log.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
    assert [run.model_dump()["drift"] for run in read_runs(artifacts)] == [None]
    assert "runs.jsonl:2: ignored, because the line is damaged" in caplog.text


def test_keys_of_a_newer_version_are_ignored(artifacts):
    content = entry(1).model_dump(mode="json")
    content |= {"new": 1, "evaluated": {**content["evaluated"], "newer": 2}}
    artifacts.run_log.parent.mkdir(parents=True)
    artifacts.run_log.write_text(json.dumps(content) + "\n")
    assert read_runs(artifacts) == [entry(1)]


def test_times_are_to_the_second_in_utc():
    assert abs(datetime.now(UTC) - utc_now_to_second()) < timedelta(seconds=2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", utc_now_to_second().isoformat())


def git(root, *arguments):
    user = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", str(root), *user, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_git_takes_the_log_and_merges_it_but_not_the_page(artifacts):
    root = artifacts.root
    for name in (".gitattributes", ".gitignore", "runs/.gitignore"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())
    git(root, "init", "-q", "-b", "main")
    append_run(artifacts, entry(1))
    (root / "runs/index.html").touch()
    artifacts.run_log.with_name(".runs.jsonl.partial").touch()
    artifacts.page.touch()
    git(root, "add", "-A")
    tracked = git(root, "ls-files").split()
    assert tracked == [".gitattributes", ".gitignore", "runs/.gitignore", "runs/tiny/runs.jsonl"]

    def commit(number):
        append_run(artifacts, entry(number))
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "run")

    commit(2)
    git(root, "checkout", "-q", "-b", "other")
    commit(3)
    git(root, "checkout", "-q", "main")
    commit(4)
    git(root, "merge", "-q", "other", "-m", "merge")
    assert read_runs(artifacts) == [entry(number) for number in (1, 2, 3, 4)]
