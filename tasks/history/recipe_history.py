"""The history of each recipe: its runs from the log of runs, and what only the log of releases knows.

That are rollbacks, releases by `dvc repro`, and everything from before there was a log of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from params.foundation.artifacts import Artifacts
from tasks.history.run_log import DecidingMetric, Outcome, RunEntry, read_runs
from tasks.release_log.events import ReleaseEvent, read_release_events

_RELEASE = ("repo_id", "endpoint", "commit", "tag")


@dataclass(frozen=True)
class Schedule:
    """When runs of a recipe are due."""

    text: str
    """For people."""
    overdue_since: datetime | None
    """The recipe is overdue if it has not succeeded since then: twice the schedule's interval ago. None if that is unknown."""


@dataclass(frozen=True)
class RecipeHistory:
    """All that is known of the runs of a recipe."""

    recipe: str
    runs: Sequence[RunEntry]
    """The oldest first."""
    schedules: Sequence[Schedule]
    succeeded: datetime | None
    """The last success that is known, also of a run with nothing to do."""
    release: RunEntry | None = None
    """What made the model that is published now: a release or a rollback."""

    @property
    def last(self) -> RunEntry | None:
        """The newest run; a rollback is none."""
        return next((run for run in reversed(self.runs) if run.outcome != "rolled back"), None)

    @property
    def is_overdue(self) -> bool:
        """Whether a schedule has waited for a success for more than twice its interval.

        A recipe that has never succeeded is judged by its first run; one that has never run is not judged.
        """
        since = self.succeeded or (self.runs[0].started if self.runs else None)
        limits = [one.overdue_since for one in self.schedules if one.overdue_since]
        return since is not None and any(since < limit for limit in limits)

    def since(self, days: int, now: datetime) -> Sequence[RunEntry]:
        return [run for run in self.runs if run.started > now - timedelta(days=days)]


def read_recipe_histories(
    root: Path, schedules: Mapping[str, Sequence[Schedule]], succeeded: Mapping[str, datetime]
) -> list[RecipeHistory]:
    """Return the history of every recipe in params/ and of every other one that has left a log, by name.

    `succeeded`: when a run of a recipe last succeeded, as far as others know.
    """
    logs = [*root.glob("runs/*/runs.jsonl"), *root.glob("runs/*/release/log.jsonl")]
    names = {path.relative_to(root).parts[1] for path in logs} | {path.stem for path in root.glob("params/*.yaml")}
    histories = []
    for name in sorted(names):
        artifacts = Artifacts(name, root)
        runs = read_runs_with_receipts(artifacts)
        known = [run.ended for run in runs if run.succeeded]
        known += [succeeded[name]] if name in succeeded else []
        if artifacts.succeeded.exists():
            known.append(datetime.fromtimestamp(artifacts.succeeded.stat().st_mtime, UTC))
        release = _find_last_release(artifacts, runs)
        histories.append(RecipeHistory(name, runs, schedules.get(name, ()), max(known, default=None), release))
    return histories


def _find_last_release(artifacts: Artifacts, runs: Sequence[RunEntry]) -> RunEntry | None:
    """Return the run or rollback that made what is published now.

    The log of releases has the Hub's times, and its order where they are equal; those of runs are of the clocks of many machines.
    """
    events = [one for one in read_release_events(artifacts) if one.event in {"published", "rollback"}]
    timed = [entry for one in events if (entry := _entry(artifacts, one))]
    last = max(reversed(timed), key=lambda entry: entry.ended, default=None)
    if last is None:
        return max((run for run in runs if run.outcome == "published"), key=lambda run: run.ended, default=None)
    return next((run for run in runs if run.outcome == last.outcome and run.commit == last.commit), last)


def read_runs_with_receipts(artifacts: Artifacts) -> list[RunEntry]:
    """Return the runs of a recipe, and what only the log of releases knows, the oldest first."""
    runs, only_logged = read_runs(artifacts), []
    for entry in _read_release_entries(artifacts):
        told = [number for number, run in enumerate(runs) if _tells(run, entry)]
        if not told:
            only_logged.append(entry)
        for number in told:
            if runs[number].is_from_server and runs[number].outcome == entry.outcome:  # it knows no release
                runs[number] = runs[number].model_copy(update={name: getattr(entry, name) for name in _RELEASE})
    return sorted([*runs, *only_logged], key=lambda run: run.started)


def _read_release_entries(artifacts: Artifacts) -> Iterator[RunEntry]:
    """Yield what the log of releases says; a verdict only of what was not judged further."""
    events = read_release_events(artifacts)
    judged_further = {_work(one) for one in events if one.event != "verdict"}
    for one in events:
        is_judged_further = one.event == "verdict" and _work(one) in judged_further
        entry = None if is_judged_further else _entry(artifacts, one)
        if entry:
            yield entry


def _tells(run: RunEntry, entry: RunEntry) -> bool:
    """Whether a run's entry says what an entry of the log of releases does, which is of the same time.

    During a run, a person may decide on an earlier proposal; and a run may be lost after its model is published.
    """
    if entry.outcome == "published" and run.outcome == "published" and entry.commit and run.commit == entry.commit:
        return True  # whatever the clocks of the worker and of the Hub say
    if not run.started <= entry.started <= run.ended or entry.outcome == "rolled back":
        return False
    is_decision = entry.outcome in {"published", "rejected"}
    return not is_decision or (run.outcome == entry.outcome and (run.is_from_server or run.commit == entry.commit))


def _work(entry: ReleaseEvent) -> tuple[str | None, ...]:
    return entry.weights, entry.data, entry.recipe


def _entry(artifacts: Artifacts, receipt: ReleaseEvent) -> RunEntry | None:
    """Return an entry of the log of releases as one of the log of runs; None if it says no time, or is about no model."""
    event = receipt.event
    if event == "forgotten":
        return None
    outcome: Outcome = "evaluated" if event == "verdict" else "rolled back" if event == "rollback" else event
    try:
        time = datetime.fromisoformat(receipt.time).astimezone(UTC)
    except ValueError:
        return None
    evaluated = None
    if metric := receipt.metric:
        value, champion = (receipt.metrics.get(model, {}).get(metric) for model in ("model", "champion"))
        evaluated = DecidingMetric(metric=metric, value=value, champion=champion)
    same = {name: getattr(receipt, name) for name in ("verdict", *_RELEASE)}
    reasons = tuple(f"by {receipt.by}: {reason}" for reason in receipt.reasons) if receipt.by else receipt.reasons
    times = {"started": time, "ended": time}
    return RunEntry(
        run_id="", recipe=artifacts.recipe, outcome=outcome, reasons=reasons, evaluated=evaluated, **times, **same
    )
