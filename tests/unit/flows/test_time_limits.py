"""The time limit of a stage, computed from a log of runs; tests/e2e/test_time_limit.py has a stage that is ended."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows.run.stages import StageTimeLimit, time_limit_from_past_runs, what_changed
from params import TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.history.run_log import RunEntry, StageRun, append_run
from tasks.ingestion.report import IngestReport
from tasks.stage_inputs import StageInputsSnapshot, _dvc_hash
from tasks.stages import save_report
from tests.support.project import copy_project

DAYS = itertools.count()
TOLERANCE = "stage_timeout_s: 10.0, stall_timeout_s: 5.0, "


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """A project whose dvc.lock records every stage, with 300 rows and an empty log of runs."""
    copy_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    edit("params/tiny.yaml", "launch: {", f"launch: {{{TOLERANCE}")
    artifacts = Artifacts("tiny")
    ingested(artifacts, 300)
    entries = {}
    for stage in STAGES:
        inputs = StageInputsSnapshot.read(stage, artifacts)
        deps = [{"path": path, "md5": _dvc_hash(files)} for path, files in inputs.files.items() if files]
        entries[inputs.name] = {"params": {"params/tiny.yaml": dict(inputs.params)}, "deps": deps}
    with Path("dvc.lock").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": entries}, file)
    return artifacts


def edit(path: str, old: str, new: str) -> None:
    file = Path(path)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def ingested(artifacts: Artifacts, rows: int) -> None:
    """Leave the report of an ingest stage."""
    counts = {"train": rows - 60, "validation": 30, "test": 30}
    report = IngestReport(source="files", revision="r", rows=counts, columns={}, data_sha256={})
    artifacts.raw.mkdir(parents=True, exist_ok=True)
    save_report(report, artifacts.report("ingest"))


def log(
    artifacts: Artifacts,
    *past: tuple[str, float],
    stage: str = "train",
    rows: int | None = 300,
    last_start_s: float | None = None,
) -> None:
    """Log runs of one stage, by outcome and seconds, each later than all that were logged before."""
    for outcome, seconds in past:
        time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=next(DAYS))
        entry = RunEntry(
            run_id=f"{time:%j}",
            recipe="tiny",
            started=time,
            ended=time,
            outcome="failed",
            stages={stage: StageRun(outcome=outcome, seconds=seconds, last_start_s=last_start_s)},
            rows={} if rows is None else {"train": rows - 20, "quarantined": 20},
        )
        append_run(artifacts, entry)


def limit(artifacts: Artifacts, stage: str = "train") -> StageTimeLimit | None:
    return time_limit_from_past_runs(stage, artifacts, what_changed(stage, artifacts))


def limit_s(artifacts: Artifacts, stage: str = "train") -> float | None:
    found = limit(artifacts, stage)
    return found.seconds if found else None


def test_it_is_ten_times_the_longest_of_the_last_ten_runs(artifacts) -> None:
    log(artifacts, ("ran", 1000.0), ("ran", 20.0), ("ran", 70.0), *[("ran", 30.0)] * 8)
    assert limit_s(artifacts) == 700.0


def test_a_stage_without_a_past_has_none(artifacts) -> None:
    assert limit_s(artifacts) is None
    log(artifacts, ("restored", 50.0), ("unchanged", 50.0), ("failed", 50.0), ("crashed", 0.0))
    assert limit_s(artifacts) is None
    log(artifacts, ("ran", 20.0), stage="tokenize")
    assert limit_s(artifacts) is None
    assert limit_s(artifacts, "tokenize") == 200.0


@pytest.mark.parametrize("interruption", ["failed", "cancelled", "crashed"])
def test_a_run_that_finished_an_interrupted_training_was_not_a_whole_one(artifacts, interruption) -> None:
    log(artifacts, (interruption, 3600.0), ("ran", 2.0))
    assert limit_s(artifacts) is None
    log(artifacts, ("ran", 40.0), (interruption, 3600.0), ("ran", 900.0), ("ran", 50.0))
    assert limit_s(artifacts) == 500.0


@pytest.mark.parametrize(
    ("now_rows", "past_rows", "expected"), [(900, 300, 600.0), (300, 900, 200.0), (900, None, 200.0)]
)
def test_more_rows_take_longer(artifacts, now_rows, past_rows, expected) -> None:
    ingested(artifacts, now_rows)
    log(artifacts, ("ran", 20.0), rows=past_rows)
    assert limit_s(artifacts) == expected
    found = limit(artifacts)
    assert found
    assert ("scaled up" in found.origin) is (expected == 600.0)


def test_each_past_run_is_scaled_by_its_own_rows(artifacts) -> None:
    log(artifacts, ("ran", 30.0), rows=300)
    log(artifacts, ("ran", 20.0), rows=100)
    assert limit_s(artifacts) == 600.0


def test_the_rows_of_an_ingest_are_those_of_an_earlier_one_and_do_not_count(artifacts) -> None:
    ingested(artifacts, 900)
    log(artifacts, ("ran", 20.0), stage="ingest")
    assert limit_s(artifacts, "ingest") == 200.0


def test_rows_that_are_elsewhere_are_those_of_an_earlier_run(artifacts) -> None:
    artifacts.report("ingest").unlink()
    log(artifacts, ("ran", 20.0))
    assert limit_s(artifacts) == 200.0


def test_it_is_never_below_what_a_stage_may_take_without_progress(artifacts) -> None:
    log(artifacts, ("ran", 1.2))
    log(artifacts, ("ran", 0.1), stage="validate")
    assert limit_s(artifacts) == 15.0
    assert limit_s(artifacts, "validate") == 10.0


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("params/tiny.yaml", "max_steps: 20", "max_steps: 2000"),
        ("params/tiny.yaml", "hidden_size: 32", "hidden_size: 64"),
        ("trainer/losses.py", "import", "import json\nimport"),
        ("dvc.lock", "train@tiny", "train@other"),
    ],
)
def test_a_stage_that_has_changed_since_its_last_run_has_none(artifacts, path, old, new) -> None:
    log(artifacts, ("ran", 20.0), ("ran", 20.0))
    log(artifacts, ("ran", 20.0), stage="validate")
    edit(path, old, new)
    assert limit_s(artifacts) is None
    assert limit_s(artifacts, "validate") == 200.0


def test_the_recipe_sets_it_or_switches_it_off(artifacts) -> None:
    log(artifacts, ("ran", 20.0))
    edit("params/tiny.yaml", TOLERANCE, f"{TOLERANCE}max_slowdown: 2.5, ")
    assert limit_s(artifacts) == 50.0
    edit("params/tiny.yaml", "max_slowdown: 2.5", "max_slowdown: null")
    assert limit_s(artifacts) is None


def test_earlier_starts_in_a_run_count_only_for_a_training(artifacts) -> None:
    for stage in ("train", "ingest"):
        log(artifacts, ("ran", 200.0), stage=stage, last_start_s=20.0)
    assert limit_s(artifacts) == 2000.0
    assert limit_s(artifacts, "ingest") == 200.0


def test_its_error_says_how_long_which_limit_and_the_fix(artifacts) -> None:
    log(artifacts, ("ran", 20.0), ("ran", 60.0), rows=150)
    found = limit(artifacts)
    assert found
    error = found.error("train@tiny")
    assert isinstance(error, TransientError)
    assert error.where == "train@tiny"
    assert error.what == (
        "was ended because it took longer than 20 min: 10 times the longest of its last 2 run(s), 2 min, scaled up to the "
        "rows of today (launch.max_slowdown), but not less than the 15 s that it may make no progress"
    )
    assert error.fix.endswith("if it only has more to do, raise launch.max_slowdown or set it to null")
