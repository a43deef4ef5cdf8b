"""The state in which a run of the flow ends: its name says what became of the model, its message has the metrics.

Prefect's events have the same names, `prefect.flow-run.Published` for example. Messages to people go by them (`evergreen
watch`). A run that fails for another reason than the gate ends in Prefect's own states: Failed, Crashed, TimedOut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flows.run.summary import outcome_lines
from params import GateRefusedError
from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Blessing
from tasks.hub_client.receipt import Receipt
from tasks.stages import read_report

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

T = TypeVar("T")
PUBLISHED: Final = "Published"
KEPT: Final = "Kept the champion"
PROPOSED: Final = "Proposed"
"""The release waits for approval."""
REJECTED: Final = "Rejected"
"""Somebody closed the proposal of the release."""
REFUSED: Final = "Refused"
NOTHING_NEW: Final = "Nothing new"
SUCCESSES: Final = ("Completed", PUBLISHED, KEPT, PROPOSED, REJECTED, NOTHING_NEW)
"""The states of a run that did what it should; plain `Completed` after a dry run, and after an evaluation only."""
_BY_STATUS: Final[Mapping[str, str]] = {
    "published": PUBLISHED,
    "kept": KEPT,
    "proposed": PROPOSED,
    "rejected": REJECTED,
}
"""By the status of the receipt."""


def gate_refused_state(artifacts: Artifacts, error: GateRefusedError) -> State[Any]:
    """Return the state of a run that the gate's refusal ended."""
    from prefect.states import Failed

    lines = outcome_lines(artifacts, read_report(artifacts, Blessing).reasons)
    return Failed(name=REFUSED, message="\n".join(lines), data=error)


def final_state(artifacts: Artifacts, outcomes: Mapping[str, str]) -> State[Any]:
    """Return the state of a run whose stages ended with `outcomes`."""
    from prefect.states import Completed

    name, message = name_and_message(artifacts, outcomes)
    return Completed(name=name, message=message, data=dict(outcomes))


def name_and_message(artifacts: Artifacts, outcomes: Mapping[str, str]) -> tuple[str | None, str]:
    """Return name and message of the state of a run whose stages ended with `outcomes`; no name is plain Completed."""
    receipt = read_report(artifacts, Receipt) if "publish" in outcomes else None
    name = _BY_STATUS.get(receipt.status) if receipt else None
    lines = outcome_lines(artifacts, (receipt or read_report(artifacts, Blessing)).reasons, receipt)
    if outcomes["publish" if receipt else "evaluate"] == "unchanged":
        lines.insert(0, f"nothing has changed since the last run, which ended with: {name or 'Completed'}")
        name = NOTHING_NEW
    return name, "\n".join(lines)


def publish_stage_state(artifacts: Artifacts, outcome: T) -> State[T]:
    """Return the state of a publish stage that ended with `outcome`, with the gate's reasons."""
    from prefect.states import Completed

    receipt = read_report(artifacts, Receipt)
    return Completed(name=_BY_STATUS.get(receipt.status), message="; ".join(receipt.reasons), data=outcome)
