"""The time limit of a stage, from its past runs: one that takes ten times as long as the longest of them is ended.

It is for a stage that reports progress and gets nowhere, such as a source whose last page never comes. One that makes no
progress is ended earlier, by tasks.stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from params import ModelError, StalledError, load
from params.dvc_files import Inputs, recorded_stages
from params.foundation.artifacts import Artifacts
from tasks.history.run_log import RunEntry, read_runs
from tasks.ingestion.report import IngestReport
from tasks.report.formatting import duration
from tasks.stages import idle_limit_s, read_report

_RUNS: Final = 10
"""How many of the last runs count."""
_INTERRUPTED: Final = {"failed", "cancelled", "crashed"}


class TimeLimit(NamedTuple):
    """How long one start of a stage may take, and where the limit comes from, for people."""

    seconds: float
    origin: str

    def error(self, name: str) -> StalledError:
        """Return the error of the stage `name` that was ended after this time."""
        what = f"was ended because it took longer than {duration(self.seconds)}: {self.origin}"
        fix = "see in its log above what it did; if it only has more to do, raise launch.max_slowdown or set it to null"
        return StalledError(name, what, fix)


def time_limit(stage: str, artifacts: Artifacts) -> TimeLimit | None:
    """Return the time limit of a stage; None if there is none.

    There is none if the stage's part of the recipe or its code has changed since its last run: then past runs say nothing.
    """
    recipe, inputs = load(artifacts.recipe_path), Inputs.read(stage, artifacts)
    recorded = recorded_stages(artifacts.root).get(inputs.name)
    factor, past = recipe.launch.max_slowdown, list(_whole_runs(stage, read_runs(artifacts)))[-_RUNS:]
    if factor is None or not past or not recorded or inputs.recorded_changes(recorded):
        return None
    rows, least_s = _rows(stage, artifacts), idle_limit_s(stage, recipe)
    scaled = (seconds * max(1.0, rows / then if rows and then else 1.0) for seconds, then in past)
    longest_s = max(scaled)
    origin = f"{factor:g} times the longest of its last {len(past)} run(s), {duration(longest_s)}"
    if longest_s > max(seconds for seconds, _ in past):
        origin += ", scaled up to the rows of today"
    origin += f" (launch.max_slowdown), but not less than the {duration(least_s)} that it may make no progress"
    return TimeLimit(max(factor * longest_s, least_s), origin)


def _whole_runs(stage: str, runs: Sequence[RunEntry]) -> Iterator[tuple[float, int]]:
    """Yield seconds and rows of each run that did all of the stage's work, and did not finish that of an interrupted run.

    Only a training goes on when it is started again; of the other stages, the last start did all the work.
    """
    follows_interrupted = False
    for run in runs:
        if done := run.stages.get(stage):
            if done.outcome == "ran" and not follows_interrupted:
                seconds = done.seconds if stage == "train" or done.last_start_s is None else done.last_start_s
                yield seconds, sum(run.rows.values())
            follows_interrupted = done.outcome in _INTERRUPTED


def _rows(stage: str, artifacts: Artifacts) -> int | None:
    """Return how many rows the stage has to work on; None if that is unknown."""
    try:
        return None if stage == "ingest" else sum(read_report(artifacts, IngestReport).rows.values())
    except ModelError:  # its output is elsewhere, so the rows are those of an earlier run
        return None
