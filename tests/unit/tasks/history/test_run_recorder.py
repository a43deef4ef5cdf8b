"""What a run leaves in the log, by how it ended; tests/e2e/test_history.py has the same with real flows."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Sequence

import pytest

from params import DataError, ModelError, TransientError
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.history.run_log import RunEntry, append_run, read_runs
from tasks.history.run_recorder import RunRecorder
from tests.support import tiny
from tests.unit.tasks.report import example

IDS = itertools.count()


@pytest.fixture
def artifacts(tmp_path) -> Artifacts:
    """What a published run has left, with a price."""
    artifacts = example.write(tmp_path, text="text")
    tiny.write(artifacts.recipe_path, tiny.recipe({"launch.price_per_hour": 3600.0}, **tiny.CLASSES))
    return artifacts


def follow(artifacts: Artifacts, outcomes: Sequence[str], error: BaseException | None = None) -> RunEntry | None:
    """A run with these outcomes of its stages; the stage after them fails if there is an error."""
    done: dict[str, str] = {}
    record = RunRecorder(artifacts, run_id=f"run {next(IDS)}")
    with contextlib.suppress(*([type(error)] if error else [])), record:
        for stage, outcome in zip(STAGES, outcomes, strict=False):
            with record.stage(stage, done):
                done[stage] = outcome
        if error:
            with record.stage(STAGES[len(outcomes)], done):
                raise error
    assert not list(artifacts.unfinished_runs.glob(f"{record.run_id}*"))
    new = [run for run in read_runs(artifacts) if run.run_id == record.run_id]
    assert new == ([record.entry] if record.entry else [])
    return record.entry


def change(artifacts: Artifacts, name: str, **values: object) -> None:
    path = artifacts.report(name)
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_mark_for_which_there_is_no_room_makes_no_run_a_crashed_one(artifacts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.touch", lambda _: os.open("/dev/full/none", os.O_CREAT))
        entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert entry.outcome == "published"


def test_a_published_run_has_the_numbers_of_the_gate(artifacts):
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert (entry.recipe, entry.outcome, entry.verdict) == ("tiny", "published", "publish")
    assert (entry.repo_id, entry.endpoint, entry.tag) == ("tests/tiny", "local", "release-beef")
    assert entry.commit == "d" * 40
    assert entry.reasons == ("accuracy is 0.03 better",)
    assert entry.error is None
    assert entry.rows == {"train": 998, "validation": 100, "test": 402, "quarantined": 3}
    assert entry.drift == "new labels (text)"
    found = entry.evaluated
    assert found is not None
    assert (found.metric, found.direction, found.value, found.low, found.high) == ("accuracy", "max", 0.9, 0.88, 0.92)
    assert (found.champion, found.against) == (0.87, "champion")
    assert (found.gain, found.gain_low, found.gain_high, found.confidence) == (0.03, 0.011, 0.049, 0.95)
    assert list(entry.stages) == list(STAGES)
    assert artifacts.succeeded.exists()


def test_the_cost_is_the_time_from_start_to_end_times_the_price(artifacts, monkeypatch):
    from tasks.history import run_log

    start = run_log.utc_now_to_second()
    times = iter([start, *[start] * 7, start.replace(year=start.year + 1)])
    monkeypatch.setattr(run_log, "utc_now_to_second", lambda: next(times))
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert entry.ended.year == start.year + 1
    assert entry.cost == (entry.ended - entry.started).total_seconds()
    tiny.write(artifacts.recipe_path, tiny.recipe(**tiny.CLASSES))
    monkeypatch.undo()
    without = follow(artifacts, ["ran"] * 6)
    assert without is not None
    assert without.cost is None


@pytest.mark.parametrize("outcomes", [["unchanged"] * 6, ["ran", *["unchanged"] * 5], ["unchanged"] * 5])
def test_a_run_with_nothing_to_do_is_not_logged_but_succeeds(artifacts, outcomes):
    assert follow(artifacts, outcomes) is None
    assert not artifacts.run_log.exists()
    assert artifacts.succeeded.exists()


@pytest.mark.parametrize(
    ("status", "verdict", "outcomes", "expected"),
    [
        ("published", "publish", ["unchanged"] * 5 + ["ran"], "published"),
        ("kept", "keep", ["ran"] * 6, "kept"),
        ("dry-run", "publish", ["restored"] * 4 + ["ran"] * 2, "dry-run"),
        ("published", "publish", ["ran"] * 5, "evaluated"),
        ("published", "keep", ["ran"] * 5, "evaluated"),
        ("published", "publish", ["ran"] * 2 + ["unchanged"] * 4, "unchanged"),
        ("published", "publish", ["ran"] * 2 + ["unchanged"] * 3, "unchanged"),
    ],
)
def test_outcome_of_a_run_that_ends_well(artifacts, status, verdict, outcomes, expected):
    change(artifacts, "publish", status=status)
    change(artifacts, "blessing", verdict=verdict)
    entry = follow(artifacts, outcomes)
    assert entry is not None
    assert (entry.outcome, entry.verdict, entry.succeeded) == (expected, verdict, True)
    is_release = expected in {"published", "kept", "dry-run"}
    assert entry.tag == ("release-beef" if is_release else None)


def test_a_refused_model_has_the_reasons_of_the_gate_and_no_error(artifacts):
    change(artifacts, "blessing", verdict="refuse", reasons=["accuracy 0.4 is below 0.6, the recipe's floor"])
    entry = follow(artifacts, ["unchanged"] * 5, ModelError("blessing.json", "the gate refuses the model", "learn"))
    assert entry is not None
    assert (entry.outcome, entry.error, entry.commit, entry.succeeded) == ("refused", None, None, False)
    assert entry.reasons == ("accuracy 0.4 is below 0.6, the recipe's floor",)
    assert (entry.repo_id, entry.stages["publish"].outcome) == ("tests/tiny", "failed")
    assert not artifacts.succeeded.exists()


@pytest.mark.parametrize("verdict", ["publish", "refuse"])
def test_a_failed_publication_is_a_failure(artifacts, verdict):
    change(artifacts, "blessing", verdict=verdict)
    entry = follow(artifacts, ["ran"] * 5, TransientError("the Hub", "does not answer", "wait"))
    assert entry is not None
    assert (entry.outcome, entry.error.type, entry.error.where) == ("failed", "TransientError", "the Hub")


def test_a_failed_run_has_its_error_and_no_results_of_an_earlier_run(artifacts):
    entry = follow(artifacts, ["ran"], DataError("validate@tiny: rows", "40 rows are empty " * 500, "correct them"))
    assert entry is not None
    assert (entry.outcome, entry.verdict, entry.reasons) == ("failed", None, ())
    assert (entry.rows, entry.evaluated, entry.tag) == ({}, None, None)
    assert (entry.error.type, entry.error.where, entry.error.fix) == (
        "DataError",
        "validate@tiny: rows",
        "correct them",
    )
    assert len(entry.error.what) == 2000
    assert {name: stage.outcome for name, stage in entry.stages.items()} == {"ingest": "ran", "validate": "failed"}


def test_an_unexpected_error_is_logged_by_its_name(artifacts):
    entry = follow(artifacts, ["ran"] * 2, ZeroDivisionError("division by zero"))
    assert entry is not None
    assert (entry.outcome, entry.error.type, entry.error.what) == ("failed", "ZeroDivisionError", "division by zero")


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), SystemExit(143)])
def test_a_run_that_is_asked_to_stop_is_cancelled(artifacts, signal):
    entry = follow(artifacts, ["ran"] * 3, signal)
    assert entry is not None
    assert (entry.outcome, entry.error, entry.stages["train"].outcome) == ("cancelled", None, "cancelled")
    assert entry.rows["train"] == 998
    assert not artifacts.succeeded.exists()


def test_a_recipe_that_cannot_be_read_is_a_failure(artifacts):
    artifacts.recipe_path.write_text("seed: [")
    entry = follow(artifacts, [], DataError("a", "b", "c"))
    assert entry is not None
    assert (entry.outcome, entry.repo_id, entry.cost, entry.git_commit) == ("failed", None, None, None)


def test_the_first_release_is_compared_with_the_model_before_training(artifacts):
    change(artifacts, "blessing", champion=None, first_release=True)
    change(artifacts, "evaluate", champion=None)
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert (entry.evaluated.champion, entry.evaluated.against, entry.evaluated.gain) == (None, "untrained", 0.8)


def test_the_champion_itself_is_compared_with_nothing(artifacts):
    change(artifacts, "blessing", verdict="keep", model="9" * 64)
    change(artifacts, "evaluate", champion=None)
    change(artifacts, "publish", status="kept")
    details = json.loads(artifacts.report("details").read_text())
    change(artifacts, "details", comparisons=[one for one in details["comparisons"] if one["against"] == "untrained"])
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    found = entry.evaluated
    assert (found.value, found.champion, found.against, found.gain) == (0.9, 0.9, None, None)


def test_values_that_are_not_finite_are_left_out(artifacts):
    path = artifacts.report("evaluate")
    path.write_text(path.read_text().replace("0.9", "NaN"))
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert entry.evaluated.value is None


@pytest.mark.parametrize("missing", ["blessing", "evaluate", "details", "validate"])
def test_a_report_that_is_gone_leaves_a_gap(artifacts, missing):
    artifacts.report(missing).unlink()
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    assert entry.outcome == "published"


def test_stages_that_run_twice_count_twice(artifacts):
    done: dict[str, str] = {}
    with RunRecorder(artifacts, run_id="run") as record:
        for outcome in ("ran", "unchanged"):
            with record.stage("validate", done):
                done["validate"] = outcome
        first = record.stages["validate"]
        with record.stage("validate", done):
            done["validate"] = "restored"
        with contextlib.suppress(DataError), record.stage("tokenize", done):
            raise DataError("a", "b", "c")
        with record.stage("tokenize", done):
            done["tokenize"] = "unchanged"
    assert first.outcome == "ran"
    assert record.entry is not None
    assert {name: one.outcome for name, one in record.entry.stages.items()} == {
        "validate": "restored",
        "tokenize": "unchanged",
    }


def test_a_killed_run_is_logged_by_the_next_one(artifacts):
    killed = RunRecorder(artifacts, run_id="killed")
    killed.__enter__()
    stage = killed.stage("ingest", {})
    stage.__enter__()
    assert follow(artifacts, ["unchanged"] * 6) is None
    assert read_runs(artifacts) == [], "it goes on, in another clone"
    killed._held.close()
    assert follow(artifacts, ["unchanged"] * 6) is None
    (entry,) = read_runs(artifacts)
    assert (entry.run_id, entry.outcome, entry.started) == ("killed", "crashed", killed.started)
    assert (entry.error.type, entry.stages["ingest"].outcome) == ("KilledError", "crashed")
    assert entry.cost is not None
    follow(artifacts, ["unchanged"] * 6)
    assert read_runs(artifacts) == [entry]


@pytest.mark.parametrize(("by_person", "outcome"), [(True, "cancelled"), (False, "crashed")])
def test_a_run_that_a_signal_ends_has_crashed_unless_a_person_stopped_it(artifacts, by_person, outcome):
    def record(name: str) -> RunRecorder:
        return RunRecorder(artifacts, run_id=name, was_stopped=lambda _: by_person)

    with pytest.raises(KeyboardInterrupt), record("ended") as run, run.stage("train", {}):
        raise KeyboardInterrupt
    killed = record("killed")
    killed.__enter__()
    killed.stage("train", {}).__enter__()
    killed._held.close()
    with record("next"):
        pass
    for entry in read_runs(artifacts):
        assert (entry.outcome, entry.stages["train"].outcome, entry.error is None) == (outcome, outcome, by_person)
    assert {entry.run_id for entry in read_runs(artifacts)} == {"ended", "killed"}


def test_of_a_run_that_the_server_knows_too_its_own_entry_counts(artifacts):
    entry = follow(artifacts, ["ran"] * 6)
    assert entry is not None
    told = entry.model_copy(update={"started": entry.ended, "outcome": "failed", "is_from_server": True})
    append_run(artifacts, told)
    append_run(artifacts, told.model_copy(update={"run_id": "lost"}))
    append_run(artifacts, told.model_copy(update={"run_id": "lost", "started": entry.started}))
    assert [(run.run_id, run.outcome) for run in read_runs(artifacts)] == [
        (entry.run_id, "published"),
        ("lost", "failed"),
    ]


def test_a_log_that_cannot_be_written_fails_no_run(artifacts, caplog):
    artifacts.run_log.mkdir()
    record = RunRecorder(artifacts, run_id="run")
    with record, record.stage("validate", done := {}):
        done["validate"] = "ran"
    assert "the run could not be logged" in caplog.text
    with pytest.raises(DataError), RunRecorder(artifacts, run_id="other"):
        raise DataError("a", "b", "c")
    assert caplog.text.count("Traceback") == 0
    artifacts.run_log.rmdir()
    follow(artifacts, ["unchanged"] * 6)
    found = {run.run_id: run.outcome for run in read_runs(artifacts)}
    assert found == {"run": "unchanged", "other": "failed"}, "the next run logs them, with their own ends"
