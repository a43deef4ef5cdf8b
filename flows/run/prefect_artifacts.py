"""What Prefect's UI shows of a run: the report of each stage, a link to the release."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run

from flows.run.final_state import release_or_pull_request_url
from flows.run.report_copies import keep_report, report_to_open
from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import EvaluationReport
from tasks.release_log.receipt import Receipt
from tasks.report.formatting import metrics_markdown_table
from tasks.stages import read_report


@contextlib.contextmanager
def _unless_server_is_away() -> Iterator[None]:
    """Log that the server does not answer, and go on: the reports are in runs/, too."""
    try:
        yield
    except httpx.HTTPError as error:
        get_run_logger().warning("Prefect's UI will not show this report: the server does not answer: %s", error)


@_unless_server_is_away()
def add_stage_report_artifact(stage: str, artifacts: Artifacts, outcome: str) -> None:
    """Add the report of `stage` to the current task run as a Prefect artifact, and a link to the release."""
    path = artifacts.report(stage)
    if not path.exists():
        return
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    key = _artifact_key(stage, artifacts)
    description = f"{stage}@{artifacts.recipe}: {outcome} ({path})"
    if stage == "evaluate":
        table = metrics_markdown_table(read_report(artifacts, EvaluationReport))
        create_markdown_artifact(table, key=key, description=description)
    else:
        create_table_artifact(flatten_to_table_rows(report), key=key, description=description)
    if stage == "publish":
        receipt = read_report(artifacts, Receipt)
        if (receipt.commit or receipt.pull_request) and receipt.endpoint.startswith("http"):
            link, text = release_or_pull_request_url(receipt), receipt.repo_id
            create_link_artifact(link, link_text=text, key=f"{key}-link", description=description)


@_unless_server_is_away()
def add_run_page_link(artifacts: Artifacts, *, renew: bool) -> None:
    """Add a link to the run's page, which is on the machine that ran it, to the flow run.

    With `renew`, write the page first; the publish stage writes it, too.
    """
    if renew and artifacts.evaluation.exists():
        from tasks.report.page import write_run_report_page

        write_run_report_page(artifacts)
    keep_report(artifacts, flow_run.id)
    if page := report_to_open(artifacts):
        link, key = page.resolve().as_uri(), _artifact_key("report", artifacts)
        create_link_artifact(link, link_text=str(artifacts.page), key=key, description="verdict, metrics, lineage")


@_unless_server_is_away()
def add_history_artifact(artifacts: Artifacts, text: str) -> None:
    """Add the last runs of a recipe, as Markdown, to the flow run."""
    key = _artifact_key("history", artifacts)
    create_markdown_artifact(text, key=key, description=f"the last runs of {artifacts.recipe}")


def _artifact_key(what: str, artifacts: Artifacts) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{what}-{artifacts.recipe}".lower()).strip("-")


def flatten_to_table_rows(report: object, prefix: str = "") -> list[dict[str, Any]]:
    """Return a nested report as rows of name and value."""
    if isinstance(report, dict):
        parts = ((value, f"{prefix}.{name}" if prefix else name) for name, value in report.items())
        return [row for value, name in parts for row in flatten_to_table_rows(value, name)]
    if isinstance(report, list):
        report = ", ".join(map(str, report))
    return [{"name": prefix, "value": report}]
