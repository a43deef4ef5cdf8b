"""The log of a recipe: every verdict, receipt, refusal and rollback, one JSON line each, in runs/<recipe>/release/log.jsonl.

DVC deletes the receipt before it runs the publish stage. It does not know this log: git keeps it, and nothing deletes from it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import pydantic

from params.foundation.artifacts import Artifacts
from tasks.stages import (
    Report,
    append_to_log_in_git,
    append_to_log_once,
    list_runs_with_log,
    read_log_and_unrecorded,
)

Verdict = Literal["publish", "keep", "refuse"]
"""The gate's, of a candidate."""
SketchOf = Literal["texts", "inputs", "words"]
"""What a sketch of rows has the hashes of: the words of inputs; in lines of earlier versions inputs as they are written, or whole texts,
with the targets of some objectives."""


class ReleaseEvent(Report):
    """Something that happened to a candidate or a release."""

    model_config = pydantic.ConfigDict(extra="ignore")
    version: int = 1
    """Of the format. Later versions add fields, and read the lines of all earlier ones."""
    time: str = ""
    """When it was logged; of a release and a rollback, when its commit was made, by the Hub's clock: ISO 8601 in UTC."""
    event: Literal[
        "verdict", "refused", "published", "proposed", "rejected", "kept", "dry-run", "rollback", "forgotten"
    ]
    """`verdict`: the evaluate stage judged; `refused`: the publish stage refused; then the statuses of a receipt.
    `forgotten`: a person said that the Hub has lost what the lines before it name."""
    verdict: Verdict | None = None
    """The gate's; None for a rollback."""
    reasons: tuple[str, ...]
    """The gate's, or why a person rolled back or forgot."""
    by: str | None = None
    """Who asked for a rollback, or forgot releases."""
    repo_id: str
    endpoint: str
    """Address of the Hub, or `local`."""
    commit: str | None
    """The commit of the release or the rollback; else of the champion, if there is one."""
    tag: str | None
    pull_request: int | None = None
    """Number of the pull request that proposed the release."""
    publish_id: str | None = None
    weights: str | None = None
    """Digest of the candidate's weights; None for a rollback."""
    data: str | None = None
    """Digest of the validated rows."""
    recipe: str | None = None
    """Digest of the recipe's sections that the evaluation depends on."""
    metric: str | None = None
    """The metric that decides."""
    metrics: dict[str, dict[str, float | None]] = pydantic.Field(default_factory=dict)
    """Metrics of the candidate (`model`), the `champion` and the `untrained` model, on the same rows."""
    confidence: float | None = None
    """Confidence of the comparison that used up a part of the rows of `row_sketch`."""
    row_sketch: tuple[Annotated[str, pydantic.Field(pattern="^[0-9a-f]{16}$")], ...] = ()
    """Which held-out rows a verdict's comparison used (tasks.evaluation.row_use); empty with `over: release`."""
    row_sketch_of: SketchOf = "texts"


def append_release_event(artifacts: Artifacts, entry: ReleaseEvent, time: datetime | None = None) -> None:
    """Append an entry with a time, by default the current one, unless the log has it with another time.

    Raises:
        StorageError, TransientError: as `append_to_log_once`.
    """
    timed = _with_time(entry, time)

    def is_same(one: ReleaseEvent, other: ReleaseEvent) -> bool:
        return one.model_copy(update={"time": other.time}) == other

    append_to_log_once(artifacts, artifacts.release_events, timed, is_same)


def append_forgotten_releases(artifacts: Artifacts, entry: ReleaseEvent) -> None:
    """Append an entry that allows to go on without releases; it holds while the log in git has it.

    Raises:
        StorageError, TransientError: as `append_to_log_in_git`.
    """
    append_to_log_in_git(artifacts, artifacts.release_events, _with_time(entry, None))


def _with_time(entry: ReleaseEvent, time: datetime | None) -> ReleaseEvent:
    return entry.model_copy(update={"time": (time or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")})


def read_release_events(artifacts: Artifacts) -> list[ReleaseEvent]:
    """Return the entries of the log, oldest first, without damaged lines.

    A release that two machines have logged is there once, and not by a line that was made from it if its own came later.
    """
    entries = read_log_and_unrecorded(artifacts, artifacts.release_events, ReleaseEvent)
    own = {entry.commit: entry for entry in reversed(entries) if entry.event == "published" and entry.verdict}
    return [entry for entry in entries if entry.event != "published" or own.get(entry.commit, entry) is entry]


def read_release_events_of_project(artifacts: Artifacts) -> list[ReleaseEvent]:
    """Return the entries of the logs of all recipes of the project, also of those that are no longer there but have left a log."""
    found = list[ReleaseEvent]()
    for own in list_runs_with_log(artifacts):
        found += read_release_events(own)
    return found


def format_release_event(entry: ReleaseEvent) -> str:
    what = entry.verdict if entry.event == "verdict" else entry.tag or entry.commit
    value = entry.metrics.get("model", {}).get(entry.metric or "")
    notes = [f"by {entry.by}"] if entry.by else []
    notes += [f"{entry.metric} {value:.4g}"] if value is not None else []
    heading = " ".join([entry.time[:16].replace("T", " "), "", entry.event, *([what] if what else [])])
    return f"{', '.join([heading, *notes])}: {'; '.join(entry.reasons)}"
