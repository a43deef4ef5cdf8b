"""Runs that ended and are in no log: their worker was lost, or could not record them. Prefect's server knows how they ended.

It knows all runs, whatever worker had them: one that failed to clone the project, too. The next recorded run of a deployment of
this project logs them, with what the server says of each.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.runtime import deployment

from flows.child_process import Logger
from flows.run import final_state
from flows.run.other_runs import read_ended_runs
from params import BudgetSpentError, EvergreenError
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import without_secrets
from tasks.history.run_log import Outcome, RunEntry, RunErrorRecord, append_run, read_runs
from tasks.history.run_recorder import cost_of_run
from tasks.report.run_results import read_recipe_or_none

_LOOKED_AT: Final = timedelta(days=90)
_MAX_TEXT: Final = 2000
_BY_STATE: Final[dict[str, Outcome]] = {
    **{name: status for status, name in final_state.BY_STATUS.items()},
    final_state.REFUSED: "refused",
}
_BY_TYPE: Final[dict[StateType, Outcome]] = {
    StateType.FAILED: "failed",
    StateType.CRASHED: "crashed",
    StateType.CANCELLED: "cancelled",
}
_WITH_ERROR: Final[set[Outcome]] = {"failed", "crashed", "budget spent"}


def log_runs_without_entry(artifacts: Artifacts, log: Logger) -> None:
    """Log the runs of this recipe and project that have ended and left no entry; a run with nothing to do leaves none."""
    if not deployment.id:
        return
    known = {entry.run_id for entry in read_runs(artifacts)}
    since = datetime.now(UTC) - _LOOKED_AT
    try:
        with get_client(sync_client=True) as client:
            for run in read_ended_runs(artifacts.recipe, client, TERMINAL_STATES, since):
                if str(run.id) not in known and (entry := _entry(artifacts, run)):
                    log.warning(
                        "logs the run %s of %s, which left no entry: %s", run.name, entry.started, entry.outcome
                    )
                    append_run(artifacts, entry)
    except (httpx.HTTPError, EvergreenError) as error:
        log.warning("runs that left no entry in the log could not be looked for; the next run looks again: %s", error)


def _entry(artifacts: Artifacts, run: FlowRun) -> RunEntry | None:
    """Return an entry with what the server knows of a run that has ended; None if it had nothing to do."""
    state, started = run.state, run.start_time or run.expected_start_time
    if state is None or started is None:
        return None
    text = without_secrets(state.message or "")[:_MAX_TEXT]
    named = re.search(r"\b(\w+Error)\b", text)
    error_type = named[1] if named else "UnknownError"
    outcome = _outcome(state, text, error_type)
    if outcome is None:
        return None
    error = RunErrorRecord(
        type=error_type,
        where="Prefect's server",
        what=text or "says no reason",
        fix="see the log of the run on the server's page; the next run continues",
    )
    has_error = outcome in _WITH_ERROR
    entry = RunEntry(
        run_id=str(run.id),
        recipe=artifacts.recipe,
        started=started.replace(microsecond=0),
        ended=(run.end_time or started).replace(microsecond=0),
        outcome=outcome,
        reasons=() if has_error else tuple(text.splitlines()),
        error=error if has_error else None,
        is_from_server=True,
    )
    return entry.model_copy(update={"cost": cost_of_run(entry, read_recipe_or_none(artifacts))})


def _outcome(state: State[Any], text: str, error_type: str) -> Outcome | None:
    """Return how a run ended, by its state and the message of that; None if it had nothing to do."""
    if state.name == final_state.NOT_RECORDED:
        name = text.partition(",")[0]  # that the state would have had
        return None if name == final_state.NOTHING_NEW else _BY_STATE.get(name, "evaluated")
    outcome = _BY_STATE.get(state.name or "") or _BY_TYPE.get(state.type)
    if outcome == "failed" and error_type == BudgetSpentError.__name__:
        return "budget spent"
    return outcome
