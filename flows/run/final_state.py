"""How a run of the flow ends: the name of its state says what became of the model, its message has the metrics.

Prefect's events have the same names, `prefect.flow-run.Published` for example. Messages to people go by them (`evergreen
watch`). A run that fails for another reason than the gate ends in Prefect's own states: Failed, Crashed, TimedOut. Prefect is
imported late: its import takes longer than all else here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flows.run.report_copies import recorded_report_lines, report_line
from params import EvergreenError, GateRefusedError
from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Blessing, EvaluationDetails, EvaluationReport
from tasks.hub_client import connection
from tasks.measurement import list_measurements
from tasks.release_log.receipt import Receipt, Status
from tasks.report.formatting import metrics_markdown_table
from tasks.stages import read_report

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

PUBLISHED: Final = "Published"
KEPT: Final = "Kept the champion"
PROPOSED: Final = "Proposed"  # the release waits for approval
REJECTED: Final = "Rejected"  # somebody closed the proposal of the release
REFUSED: Final = "Refused"
NOTHING_NEW: Final = "Nothing new"
NOT_RECORDED: Final = "Not recorded"  # it ended well, and a published model is out
SUCCESSES: Final = ("Completed", PUBLISHED, KEPT, PROPOSED, REJECTED, NOTHING_NEW)
"""The states of a run that did what it should; plain `Completed` after a dry run, and after an evaluation only."""
BY_STATUS: Final[Mapping[Status, str]] = {
    "published": PUBLISHED,
    "kept": KEPT,
    "proposed": PROPOSED,
    "rejected": REJECTED,
}
"""By the status of the receipt."""


def gate_refused_state(artifacts: Artifacts, error: GateRefusedError, shown: Sequence[str] = ()) -> State[Any]:
    """Return the state of a run that the gate's refusal ended; `shown` as for `final_state`."""
    from prefect.states import Failed

    lines = run_result_lines(artifacts, read_report(artifacts, Blessing).reasons) + recorded_report_lines(shown)
    return Failed(name=REFUSED, message="\n".join(lines), data=error)


def unrecorded_state(
    artifacts: Artifacts, outcomes: Mapping[str, str], reason: EvergreenError, error: EvergreenError
) -> State[Any]:
    """Return the state of a run that did what it should, and that no branch knows for a `reason`; `error` is what it ends with."""
    from prefect.states import Failed

    name, message = name_and_message(artifacts, outcomes)
    said = f"{name or 'Completed'}, but not recorded: {reason}\n{message}"
    return Failed(name=NOT_RECORDED, message=said, data=error)


def final_state(artifacts: Artifacts, outcomes: Mapping[str, str], shown: Sequence[str] = ()) -> State[Any]:
    """Return the state of a run whose stages ended with `outcomes`; `shown`: commands that show its recorded report."""
    from prefect.states import Completed

    name, message = name_and_message(artifacts, outcomes)
    return Completed(name=name, message="\n".join([message, *recorded_report_lines(shown)]), data=dict(outcomes))


def name_and_message(artifacts: Artifacts, outcomes: Mapping[str, str]) -> tuple[str | None, str]:
    """Return name and message of the state of a run whose stages ended with `outcomes`; no name is plain Completed."""
    receipt = read_report(artifacts, Receipt) if "publish" in outcomes else None
    name = BY_STATUS.get(receipt.status) if receipt else None
    lines = run_result_lines(artifacts, (receipt or read_report(artifacts, Blessing)).reasons, receipt)
    if outcomes["publish" if receipt else "evaluate"] == "unchanged":
        lines.insert(0, f"nothing has changed since the last run, which ended with: {name or 'Completed'}")
        if receipt and (now := _published_since(artifacts)):
            lines.append(now)
        name = NOTHING_NEW
    return name, "\n".join(lines)


def format_run_summary(artifacts: Artifacts, outcomes: Mapping[str, str]) -> str:
    """Return the outcome of each stage, the metrics, the release, and where to read more."""
    lines = ["", "  ".join(f"{stage}: {outcome}" for stage, outcome in outcomes.items()), ""]
    lines += [metrics_markdown_table(read_report(artifacts, EvaluationReport)), ""]
    if "publish" in outcomes:
        lines += _release_lines(artifacts, is_unchanged=outcomes["publish"] == "unchanged")
    else:
        blessing = read_report(artifacts, Blessing)
        lines += [f"the gate says {blessing.verdict}", *(f"  {reason}" for reason in blessing.reasons)]
    lines.append(f"metrics: {artifacts.report('evaluate')}")
    with contextlib.suppress(EvergreenError):
        details = read_report(artifacts, EvaluationDetails)
        for one in list_measurements():
            lines += one.run_lines(details.findings(one.kind), artifacts)
    if artifacts.page.exists():  # another worker may have written it
        lines.append(f"report: {artifacts.page}")
    return "\n".join(lines)


def _release_lines(artifacts: Artifacts, *, is_unchanged: bool) -> Iterator[str]:
    receipt = read_report(artifacts, Receipt)
    is_local = receipt.endpoint == connection.LOCAL
    status = {"kept": "kept the champion", "proposed": "waits for approval"}.get(receipt.status, receipt.status)
    if is_unchanged:
        yield "nothing has changed since the last run, which ended with"
    yield f"{status}: {receipt.repo_id} on {'the Hub in .hub' if is_local else release_or_pull_request_url(receipt)}"
    yield from (f"  {reason}" for reason in receipt.reasons)
    if receipt.commit:
        yield f"revision: {receipt.commit}{f' ({receipt.tag})' if receipt.tag else ''}"
    if is_unchanged and (now := _published_since(artifacts)):
        yield now
    if is_local:
        yield "to browse it: evergreen hub"
    yield f"receipt: {artifacts.receipt}"


def run_result_lines(artifacts: Artifacts, reasons: Sequence[str], receipt: Receipt | None = None) -> list[str]:
    """Return a few lines for people: the reasons, the metric that decides, the release, where the report is.

    What this machine does not have, for example because DVC has not pulled it, is left out.
    """
    lines = list(reasons)
    with contextlib.suppress(EvergreenError):
        lines += _metric_lines(artifacts, reasons)
    if receipt and receipt.status in {"published", "proposed"}:
        is_local = receipt.endpoint == connection.LOCAL
        link = f"on {connection.name_of_hub(receipt.endpoint)}" if is_local else release_or_pull_request_url(receipt)
        lines.append(f"release: {receipt.repo_id} {receipt.tag} {link}")
    if report := report_line(artifacts):
        lines.append(report)
    return lines


def _published_since(artifacts: Artifacts) -> str | None:
    """What is published now if it is not what the last run left, as after a rollback; None if it is, or nobody knows."""
    from tasks.publishing.hub_changes import describe_later_release

    with contextlib.suppress(EvergreenError):
        if now := describe_later_release(artifacts):
            return f"published now: {now}"
    return None


def _metric_lines(artifacts: Artifacts, reasons: Sequence[str]) -> Iterator[str]:
    """The metric that decides, of each model; and the difference with its interval, unless a reason says it."""
    report = read_report(artifacts, EvaluationReport)
    values = [f"{name} {of[report.metric]:.4g}" for name, of in report.metrics.items() if report.metric in of]
    yield f"{report.metric}: {', '.join(values)} ({report.rows:,} rows of {report.split})"
    details = read_report(artifacts, EvaluationDetails)
    compared = (one for one in details.comparisons if one.metric == report.metric)
    against = {one.against: one.sentence(details.confidence) for one in compared}
    sentence = against.get("champion") or against.get("untrained")
    if sentence and not any(sentence in reason for reason in reasons):
        yield sentence


def release_or_pull_request_url(receipt: Receipt) -> str:
    """Return the address of a release's page on its Hub, or that of its pull request."""
    page = f"tree/{receipt.commit}" if receipt.commit else f"discussions/{receipt.pull_request}"
    return f"{receipt.endpoint}/{receipt.repo_id}/{page}"
