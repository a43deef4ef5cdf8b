"""What Prefect's UI and the command line show of a run: the report of each stage, a link to the release, a summary."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from params.artifacts import Artifacts
from tasks.hub_client.receipt import Receipt
from tasks.stages import read_report

if TYPE_CHECKING:
    from tasks.evaluation.report import EvaluationReport

T = TypeVar("T")
KEPT = "Kept the champion"
"""Name of the final state of a run whose model did not replace the published one."""


@contextlib.contextmanager
def _unless_server_is_away() -> Iterator[None]:
    """Log that the server does not answer, and go on: the reports are in runs/, too."""
    try:
        yield
    except httpx.HTTPError as error:
        get_run_logger().warning("Prefect's UI will not show this report: the server does not answer: %s", error)


@_unless_server_is_away()
def show_report(stage: str, artifacts: Artifacts, outcome: str) -> None:
    """Add the report of `stage` to the current task run as a Prefect artifact, and a link to the release."""
    path = artifacts.report(stage)
    if not path.exists():
        return
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    key = _artifact_key(stage, artifacts)
    description = f"{stage}@{artifacts.recipe}: {outcome} ({path})"
    if stage == "evaluate":
        from tasks.evaluation.report import EvaluationReport

        create_markdown_artifact(
            metrics_table(read_report(artifacts, EvaluationReport)), key=key, description=description
        )
    else:
        create_table_artifact(table_rows(report), key=key, description=description)
    if stage == "publish":
        receipt = read_report(artifacts, Receipt)
        if receipt.commit and receipt.endpoint.startswith("http"):
            link, text = release_url(receipt), receipt.repo_id
            create_link_artifact(link, link_text=text, key=f"{key}-link", description=description)


@_unless_server_is_away()
def link_report(artifacts: Artifacts, *, renew: bool) -> None:
    """Add a link to the run's page, which is on the machine that ran it, to the flow run.

    With `renew`, write the page first; the publish stage writes it, too.
    """
    if renew and artifacts.evaluation.exists():
        from tasks.report.page import write_report

        write_report(artifacts)
    if artifacts.page.exists():
        link, key = artifacts.page.resolve().as_uri(), _artifact_key("report", artifacts)
        create_link_artifact(link, link_text=str(artifacts.page), key=key, description="verdict, metrics, lineage")


def _artifact_key(what: str, artifacts: Artifacts) -> str:
    """The key of a Prefect artifact, in the letters that Prefect allows."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what}-{artifacts.recipe}".lower()).strip("-")


def release_url(receipt: Receipt) -> str:
    """Return the address of a release's page on its Hub."""
    return f"{receipt.endpoint}/{receipt.repo_id}/tree/{receipt.commit}"


def named_if_kept(artifacts: Artifacts, data: T) -> T | State[T]:
    """Return `data`; if the champion was kept, in a COMPLETED state whose name says so, with the reasons."""
    receipt = read_report(artifacts, Receipt)
    return Completed(name=KEPT, message="; ".join(receipt.reasons), data=data) if receipt.status == "kept" else data


def metrics_table(evaluation: EvaluationReport) -> str:
    """Return the model's metrics beside those of the champion and of the untrained model, as a Markdown table."""
    compared = {"champion": evaluation.champion, "untrained": evaluation.untrained}
    others = {name: metrics for name, metrics in compared.items() if metrics}
    lines = [f"| metric | model |{''.join(f' {name} |' for name in others)}", f"| --- |{' ---: |' * (1 + len(others))}"]
    for name, value in evaluation.model.items():
        beside = [f" {other[name]:.4g} |" if name in other else " |" for other in others.values()]
        lines.append(f"| {name} | {value:.4g} |{''.join(beside)}")
    return "\n".join([*lines, "", f"on the {evaluation.split} split, {evaluation.rows} rows"])


def summary(artifacts: Artifacts, outcomes: dict[str, str]) -> str:
    """Return what the command line shows at the end of a run: metrics, release, and where to read more."""
    from tasks.evaluation.report import EvaluationReport

    lines = ["", "  ".join(f"{stage}: {outcome}" for stage, outcome in outcomes.items()), ""]
    lines += [metrics_table(read_report(artifacts, EvaluationReport)), ""]
    if "publish" in outcomes:
        receipt = read_report(artifacts, Receipt)
        is_local = receipt.endpoint == "local"
        status = "kept the champion" if receipt.status == "kept" else receipt.status
        if outcomes["publish"] == "unchanged":
            lines.append("nothing has changed since the last run, which ended with")
        lines.append(f"{status}: {receipt.repo_id} on {'the Hub in .hub' if is_local else release_url(receipt)}")
        lines += [f"  {reason}" for reason in receipt.reasons]
        lines.append(f"revision: {receipt.commit} ({receipt.tag})")
        if is_local:
            lines.append("to browse it: evergreen hub")
        lines.append(f"receipt: {artifacts.receipt}")
    lines.append(f"metrics: {artifacts.report('evaluate')}")
    lines.append(f"report: {artifacts.page}")
    return "\n".join(lines)


def table_rows(report: object, prefix: str = "") -> list[dict[str, Any]]:
    """Return a nested report as rows of name and value."""
    if isinstance(report, dict):
        return [
            row for name, value in report.items() for row in table_rows(value, f"{prefix}.{name}" if prefix else name)
        ]
    if isinstance(report, list):
        report = ", ".join(map(str, report))
    return [{"name": prefix, "value": report}]
