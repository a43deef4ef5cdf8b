"""What each stage leaves in Prefect's UI: its report as a table, and for a release a link to it."""

from __future__ import annotations

import json
import re
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from params.artifacts import Artifacts


def show(stage: str, artifacts: Artifacts, outcome: str) -> None:
    """Leave the report of `stage` as an artifact of the current task run."""
    path = artifacts.report(stage)
    if not path.exists():
        return
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    key = _key(stage, artifacts)
    description = f"{stage}@{artifacts.recipe}: {outcome} ({path})"
    if stage == "evaluate":
        create_markdown_artifact(figures(report), key=key, description=description)
    else:
        create_table_artifact(_rows(report), key=key, description=description)
    if stage == "publish" and str(report.get("endpoint", "")).startswith("http") and report.get("commit"):
        create_link_artifact(address(report), link_text=report["repo_id"], key=f"{key}-link", description=description)


def link_report(artifacts: Artifacts, *, renew: bool) -> None:
    """Leave a link to the page of the run, which stands on the machine that ran it; the publish stage writes it.

    Args:
        artifacts: of the run.
        renew: whether it is to be written now, because the run does not publish.
    """
    if renew and artifacts.evaluation.exists():
        from tasks.report.page import read_timings, write_report

        write_report(artifacts, timings=read_timings(artifacts))
    if artifacts.page.exists():
        link, key = artifacts.page.resolve().as_uri(), _key("report", artifacts)
        create_link_artifact(link, link_text=str(artifacts.page), key=key, description="verdict, figures, provenance")


def _key(what: str, artifacts: Artifacts) -> str:
    """An artifact's name, in the letters that Prefect allows."""
    return re.sub(r"[^a-z0-9]+", "-", f"{what}-{artifacts.recipe}".lower()).strip("-")


def address(receipt: dict[str, Any]) -> str:
    """Where a release can be looked at."""
    return f"{receipt['endpoint']}/{receipt['repo_id']}/tree/{receipt['commit']}"


def kept(artifacts: Artifacts) -> str | None:
    """Why the champion stays; None if it does not."""
    receipt = json.loads(artifacts.receipt.read_text(encoding="utf-8"))
    return "; ".join(receipt["reasons"]) if receipt["verdict"] == "kept" else None


def figures(metrics: dict[str, Any]) -> str:
    """The model's metrics beside those of the published model and of the untrained one, as a Markdown table."""
    others = {name: metrics[name] for name in ("champion", "untrained") if metrics.get(name)}
    lines = [f"| metric | model |{''.join(f' {name} |' for name in others)}", f"| --- |{' ---: |' * (1 + len(others))}"]
    for name, value in metrics["model"].items():
        beside = [f" {other[name]:.4g} |" if name in other else " |" for other in others.values()]
        lines.append(f"| {name} | {value:.4g} |{''.join(beside)}")
    return "\n".join([*lines, "", f"on the {metrics['split']} split, {metrics['rows']} rows"])


def summary(artifacts: Artifacts, outcomes: dict[str, str]) -> str:
    """What a run of the flow ends with: the figures, the release, and where to read more."""
    lines = ["", "  ".join(f"{stage}: {outcome}" for stage, outcome in outcomes.items()), ""]
    metrics = json.loads(artifacts.report("evaluate").read_text(encoding="utf-8"))
    lines += [figures(metrics), ""]
    if "publish" in outcomes:
        receipt = json.loads(artifacts.receipt.read_text(encoding="utf-8"))
        local = receipt["endpoint"] == "local"
        what = "kept the champion" if receipt["verdict"] == "kept" else receipt["verdict"]
        if outcomes["publish"] == "unchanged":
            lines.append("nothing was published: nothing has changed since the run whose end was")
        lines.append(f"{what}: {receipt['repo_id']} on {'the Hub in .hub' if local else address(receipt)}")
        lines += [f"  {reason}" for reason in receipt["reasons"]]
        lines.append(f"revision: {receipt['commit']} ({receipt['tag']})")
        if local:
            lines.append("served by: python -m tasks hub")
        lines.append(f"receipt: {artifacts.receipt}")
    lines.append(f"figures: {artifacts.report('evaluate')}")
    lines.append(f"report: {artifacts.page}")
    return "\n".join(lines)


def _rows(report: object, prefix: str = "") -> list[dict[str, Any]]:
    """A nested report as rows of name and value."""
    if isinstance(report, dict):
        return [row for name, value in report.items() for row in _rows(value, f"{prefix}.{name}" if prefix else name)]
    if isinstance(report, list):
        report = ", ".join(map(str, report))
    return [{"figure": prefix, "value": report}]
