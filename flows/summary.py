"""What the command line shows at the end of a run; without Prefect, whose import takes longer than all else here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from params.artifacts import Artifacts
from tasks.hub_client.receipt import Receipt
from tasks.stages import read_report

if TYPE_CHECKING:
    from tasks.evaluation.report import EvaluationReport


def summary(artifacts: Artifacts, outcomes: Mapping[str, str]) -> str:
    """Return the outcome of each stage, the metrics, the release, and where to read more."""
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
    if artifacts.page.exists():  # another worker may have written it
        lines.append(f"report: {artifacts.page}")
    return "\n".join(lines)


def metrics_table(evaluation: EvaluationReport) -> str:
    """Return the model's metrics beside those of the champion and of the untrained model, as a Markdown table."""
    compared = {"champion": evaluation.champion, "untrained": evaluation.untrained}
    others = {name: metrics for name, metrics in compared.items() if metrics}
    lines = [f"| metric | model |{''.join(f' {name} |' for name in others)}", f"| --- |{' ---: |' * (1 + len(others))}"]
    for name, value in evaluation.model.items():
        beside = [f" {other[name]:.4g} |" if name in other else " |" for other in others.values()]
        lines.append(f"| {name} | {value:.4g} |{''.join(beside)}")
    return "\n".join([*lines, "", f"on the {evaluation.split} split, {evaluation.rows} rows"])


def release_url(receipt: Receipt) -> str:
    """Return the address of a release's page on its Hub."""
    return f"{receipt.endpoint}/{receipt.repo_id}/tree/{receipt.commit}"
