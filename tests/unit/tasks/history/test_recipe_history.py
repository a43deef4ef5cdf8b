"""What is known of a recipe: from the log of runs, and from the log of releases where it knows more."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from params.foundation.artifacts import Artifacts
from tasks.history.recipe_history import RecipeHistory, Schedule, read_recipe_histories, read_runs_with_receipts
from tasks.history.run_log import RunEntry
from tasks.release_log.events import ReleaseEvent, read_release_events
from tests.unit.tasks.history.example import FIRST, entry, write


@pytest.fixture
def artifacts(tmp_path):
    return Artifacts("tiny", tmp_path)


def write_receipts(artifacts: Artifacts, *entries: ReleaseEvent) -> None:
    artifacts.release_events.parent.mkdir(parents=True, exist_ok=True)
    artifacts.release_events.write_text("".join(f"{one.model_dump_json()}\n" for one in entries), encoding="utf-8")


def receipt(event: str, time: datetime | str, number: int = 1, **changes: object) -> ReleaseEvent:
    fields = {
        "time": time if isinstance(time, str) else time.isoformat(timespec="seconds"),
        "event": event,
        "verdict": {"published": "publish", "kept": "keep", "refused": "refuse"}.get(event),
        "reasons": ("because",),
        "repo_id": "tests/tiny",
        "endpoint": "local",
        "commit": f"{number:040}",
        "tag": f"v{number}",
        "weights": f"{number:064}",
        "metric": "loss",
        "metrics": {"model": {"loss": 0.5}, "champion": {"loss": 0.75}},
    }
    return ReleaseEvent.model_validate(fields | changes)


def test_a_log_of_receipts_alone_gives_a_history(artifacts):
    times = [FIRST + timedelta(days=day) for day in range(5)]
    write_receipts(
        artifacts,
        receipt("verdict", times[0]),
        receipt("published", times[0] + timedelta(minutes=1)),
        receipt("verdict", times[1], 2),
        receipt("kept", times[2], 3),
        receipt("refused", times[3], 4, tag=None, commit=None),
        receipt("rollback", times[4], 1, verdict=None, by="ann", metric=None, metrics={}, weights=None),
        receipt("published", "no time", 5),
    )
    found = read_runs_with_receipts(artifacts)
    assert [run.outcome for run in found] == ["published", "evaluated", "kept", "refused", "rolled back"]
    assert (found[0].evaluated.metric, found[0].evaluated.value, found[0].evaluated.champion) == ("loss", 0.5, 0.75)
    assert found[0].started == times[0] + timedelta(minutes=1)
    assert found[-1].reasons == ("by ann: because",)
    assert {run.seconds for run in found} == {None}
    assert {run.cost for run in found} == {None}


def test_a_release_whose_run_only_the_server_knows_is_shown_once(artifacts):
    known = {"run_id": entry(1).run_id, "is_from_server": True, "outcome": "published"}
    started = {name: getattr(entry(1), name) for name in ("recipe", "started", "ended")}
    write(artifacts, [RunEntry.model_validate(known | started)])
    found = receipt("published", entry(1).ended - timedelta(seconds=3), verdict=None)
    write_receipts(artifacts, found)
    (run,) = read_runs_with_receipts(artifacts)
    assert (run.run_id, run.tag, run.commit, run.repo_id) == (entry(1).run_id, "v1", found.commit, "tests/tiny")
    own = receipt("published", entry(1).ended - timedelta(seconds=2))
    write_receipts(artifacts, found, own)
    assert read_release_events(artifacts) == [own], "another worker had it"


def test_what_a_logged_run_did_is_not_shown_again(artifacts):
    inside, outside = entry(1).ended - timedelta(seconds=3), entry(1).ended + timedelta(hours=1)
    write(artifacts, [entry(1), entry(2)])
    write_receipts(
        artifacts,
        receipt("published", entry(1).started - timedelta(days=9), 7),
        receipt("published", inside),
        receipt("rollback", inside, 2),
        receipt("published", outside, 3),
        receipt("kept", entry(1).ended, 4),
        receipt("published", entry(1).started, 5),  # of a proposal that a person has merged meanwhile
    )
    found = read_runs_with_receipts(artifacts)
    assert [run.tag for run in found] == ["v7", entry(1).tag, "v5", "v2", "v3", entry(2).tag]


def history(runs, *, succeeded=None, limit=None) -> RecipeHistory:
    schedules = [Schedule("every night", limit)] if limit else []
    return RecipeHistory("tiny", runs, schedules, succeeded)


def published_now(artifacts) -> RunEntry | None:
    (found,) = read_recipe_histories(artifacts.root, {}, {})
    return found.release


def test_the_published_model_is_that_of_the_last_release_or_rollback(artifacts):
    runs = [entry(1), entry(2, outcome="kept"), entry(3), entry(4, outcome="failed")]
    rolled_back = entry(5, outcome="rolled back", run_id="", tag=entry(1).tag)
    assert history(runs).last == history([*runs, rolled_back]).last == runs[3]
    write(artifacts, [entry(2, outcome="kept")])
    assert published_now(artifacts) is None
    write(artifacts, runs)
    assert published_now(artifacts) == runs[2], "as in a log of runs that is all there is"


@pytest.mark.parametrize("hours", [-3, 0, 3])
def test_what_is_out_is_the_last_event_on_the_hub_whatever_the_clocks_of_workers_say(artifacts, hours):
    """A worker whose clock is wrong by `hours` publishes; a person rolls back; another worker publishes."""
    skewed = timedelta(hours=hours)
    one = entry(1)
    one = one.model_copy(update={"started": one.started + skewed, "ended": one.ended + skewed, "commit": "c" * 40})
    other = entry(2, commit="d" * 40).model_copy(update={"started": entry(1).ended + timedelta(minutes=50)})
    write(artifacts, [one])
    released = receipt("published", entry(1).ended, commit="c" * 40)
    rolled_back = receipt("rollback", entry(1).ended + timedelta(minutes=30), 0)
    write_receipts(artifacts, released)
    assert published_now(artifacts) == one
    assert len(read_runs_with_receipts(artifacts)) == 1, "the run is there once"
    write_receipts(artifacts, rolled_back, released)  # in the order in which two clones were merged
    found = published_now(artifacts)
    assert (found.outcome, found.tag) == ("rolled back", "v0")
    write(artifacts, [one, other])
    write_receipts(
        artifacts, rolled_back, released, receipt("published", entry(1).ended + timedelta(hours=1), commit="d" * 40)
    )
    assert published_now(artifacts) == other


def test_of_two_events_in_one_second_the_later_line_is_what_is_out(artifacts):
    released = receipt("published", entry(1).ended, commit="c" * 40)
    rolled_back = receipt("rollback", entry(1).ended, 0)
    write_receipts(artifacts, released, rolled_back)
    assert published_now(artifacts).outcome == "rolled back"
    write_receipts(artifacts, rolled_back, released)
    assert published_now(artifacts).outcome == "published"


def test_to_forget_lost_releases_is_no_run_and_publishes_nothing(artifacts):
    released = receipt("published", entry(1).ended, commit="c" * 40)
    write_receipts(artifacts, released)
    known = read_runs_with_receipts(artifacts)
    write_receipts(artifacts, released, receipt("forgotten", entry(2).ended, 0))
    assert read_runs_with_receipts(artifacts) == known
    assert published_now(artifacts).commit == "c" * 40


def test_a_recipe_is_overdue_if_no_success_is_known_since_the_schedule_says_so():
    limit = FIRST + timedelta(days=5)
    early, late = limit - timedelta(seconds=1), limit + timedelta(seconds=1)
    runs = [entry(1)]
    assert history(runs, succeeded=early, limit=limit).is_overdue
    assert not history(runs, succeeded=late, limit=limit).is_overdue
    assert not history(runs, succeeded=early).is_overdue, "there is no schedule"
    assert not history([], limit=limit).is_overdue, "it has never run"
    assert history([entry(1, outcome="failed")], limit=limit).is_overdue, "it has never succeeded"
    assert not history([entry(9, outcome="failed")], limit=limit).is_overdue


def test_the_last_success_is_the_latest_that_anyone_knows(artifacts):
    write(artifacts, [entry(1), entry(2, outcome="failed")])

    def succeeded(known: dict[str, datetime]) -> datetime | None:
        (found,) = read_recipe_histories(artifacts.root, {}, known)
        return found.succeeded

    assert succeeded({}) == entry(1).ended
    artifacts.succeeded.parent.mkdir(parents=True)
    artifacts.succeeded.touch()
    time = entry(3).started.timestamp()
    os.utime(artifacts.succeeded, (time, time))
    assert succeeded({}) == entry(3).started
    assert succeeded({"tiny": entry(4).started, "other": datetime.now(UTC)}) == entry(4).started


def test_every_recipe_and_every_log_has_a_history(tmp_path):
    for name in ("a", "c"):
        path = tmp_path / "params" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    write(Artifacts("c", tmp_path), [entry(1, recipe="c")])
    write(Artifacts("gone", tmp_path), [entry(1, recipe="gone")])
    write_receipts(Artifacts("older", tmp_path), receipt("published", FIRST))
    found = read_recipe_histories(tmp_path, {}, {})
    assert [(one.recipe, len(one.runs)) for one in found] == [("a", 0), ("c", 1), ("gone", 1), ("older", 1)]
    assert read_recipe_histories(Path(tmp_path / "nowhere"), {}, {}) == []
