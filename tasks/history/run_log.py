"""The log of runs: every run of the flow that did something or failed, one JSON line each, in runs/<recipe>/runs.jsonl.

Git keeps it; DVC does not know it, and nothing deletes from it. A run that finds nothing to do leaves no entry, so that a
schedule of every ten minutes does not fill it. The log of releases (tasks/release_log/events.py) holds no times of work
and no costs: the same work is logged there once, whenever it is done.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal, Self, get_args

import pydantic

from params.foundation.artifacts import Artifacts
from params.sections.base import Direction
from tasks.evaluation.report import Opponent
from tasks.measurement import with_history
from tasks.release_log.events import Verdict
from tasks.release_log.receipt import Status
from tasks.stages import Report, append_to_log_once, read_log_and_unrecorded

_OtherEnd = Literal[
    "evaluated", "unchanged", "refused", "budget spent", "failed", "cancelled", "crashed", "rolled back"
]
Outcome = Status | _OtherEnd
"""How a run ended.

The status of the receipt, or: `evaluated`: it was to stop after the evaluation.
`unchanged`: stages ran, and made what was there before. `refused`: by the gate. `budget spent`: the training used up its hours.
`cancelled`: it was asked to stop. `crashed`: it was killed; the next run on the same machine logs it. `rolled back`: no run of
the flow, but an entry of the log of releases.
"""
SUCCESSES: Final[frozenset[Outcome]] = frozenset({*get_args(Status), "evaluated", "unchanged"})


class _Record(Report):
    model_config = pydantic.ConfigDict(extra="ignore")


class StageRun(_Record):
    outcome: Literal["ran", "restored", "unchanged", "failed", "cancelled", "crashed"]
    """`restored`: DVC had the outputs of the same work in its cache."""
    seconds: float
    """From its start to its end, with all retries and the waits before them."""
    last_start_s: float | None = None
    """Seconds of the start that succeeded, without those before it; None if its command did not run."""


class RunErrorRecord(_Record):
    type: str
    where: str
    what: str
    fix: str


class DecidingMetric(_Record):
    """The metric that decided about a candidate; a value is None if it was not computed or is not finite."""

    metric: str
    direction: Direction | None = None
    """Whether the smallest or the largest value is best."""
    value: float | None
    """The candidate's value."""
    low: float | None = None
    """Lower end of the value's confidence interval."""
    high: float | None = None
    champion: float | None = None
    """The value of the champion of that day, on the same rows."""
    against: Opponent | None = None
    """What the candidate was compared with."""
    gain: float | None = None
    """How much better the candidate is, whatever the direction."""
    gain_low: float | None = None
    gain_high: float | None = None
    confidence: float | None = None
    """Confidence of the intervals."""


class RunEntry(_Record):
    """One run of the flow. It also has a few words of each measurement that has a column in the table of runs, under its name."""

    model_config = pydantic.ConfigDict(extra="allow")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_keys_of_newer_versions(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values  # damaged
        measured = dict.fromkeys(one.name for one in with_history())
        return measured | {
            name: value for name, value in values.items() if name in cls.model_fields or name in measured
        }

    @pydantic.model_validator(mode="after")
    def _check_measured(self) -> Self:
        pydantic.TypeAdapter(dict[str, str | None]).validate_python(self.model_extra or {}, strict=True)
        return self

    version: int = 1
    """Of the format. Later versions add fields, and read the lines of all earlier ones."""
    run_id: str
    """Prefect's id of the flow run; empty if there was none. A run that Prefect starts again keeps its id."""
    recipe: str
    started: pydantic.AwareDatetime
    """To the second, in UTC."""
    ended: pydantic.AwareDatetime
    """For a crashed run: the start of its last stage."""
    outcome: Outcome
    verdict: Verdict | None = None
    """The gate's, if the run got that far."""
    reasons: tuple[str, ...] = ()
    """The gate's reasons, or the reason of a rollback."""
    error: RunErrorRecord | None = None
    """What ended the run, if it failed or crashed."""
    stages: dict[str, StageRun] = pydantic.Field(default_factory=dict)
    """The stages that the run reached, in order."""
    rows: dict[str, int] = pydantic.Field(default_factory=dict)
    """Rows of each split that passed validation, and `quarantined` ones."""
    evaluated: DecidingMetric | None = None
    cost: float | None = None
    """Hours from `started` to `ended`, times `launch.price_per_hour`; None if the recipe gives no price."""
    repo_id: str | None = None
    endpoint: str | None = None
    """Address of the Hub, or `local`."""
    commit: str | None = None
    """The commit of the release or proposal; of the champion, if it was kept."""
    tag: str | None = None
    git_commit: str | None = None
    """The project's commit when the run ended; with `+` if it does not hold the code as it was."""
    is_from_server: bool = False
    """Whether it was made of what Prefect's server says, because the run left no entry; one that it left replaces it."""

    def measured(self, name: str) -> str:
        """Return the words of a measurement; empty if it has said nothing."""
        return str((self.model_extra or {}).get(name) or "")

    @property
    def seconds(self) -> float | None:
        """How long the run took; None if that is not known."""
        has_times = bool(self.run_id or self.stages)  # an entry of the log of releases has neither
        return max(0.0, (self.ended - self.started).total_seconds()) if has_times else None

    @property
    def succeeded(self) -> bool:
        """Whether the run did what it should; keeping the champion is a success, a refused model is none."""
        return self.outcome in SUCCESSES


def utc_now_to_second() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def append_run(artifacts: Artifacts, entry: RunEntry) -> None:
    """Append an entry, unless the log has the run already.

    Raises:
        StorageError, TransientError: as `append_to_log_once`.
    """
    append_to_log_once(artifacts, artifacts.run_log, entry, lambda one, other: _identity(one) == _identity(other))


def read_runs(artifacts: Artifacts) -> list[RunEntry]:
    """Return the runs in the log in the order in which they started, each once, without damaged lines."""
    found: dict[object, RunEntry] = {}
    for entry in read_log_and_unrecorded(artifacts, artifacts.run_log, RunEntry):
        found.setdefault(_identity(entry), entry)
    own = {entry.run_id for entry in found.values() if not entry.is_from_server}
    found = {key: entry for key, entry in found.items() if not entry.is_from_server or entry.run_id not in own}
    return sorted(found.values(), key=lambda entry: entry.started)


def _identity(entry: RunEntry) -> object:
    return entry.run_id, None if entry.is_from_server else entry.started
