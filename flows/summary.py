"""What the command line shows at the end of a run; without Prefect, whose import takes longer than all else here."""

from __future__ import annotations

from collections.abc import Mapping

from params.artifacts import Artifacts
from tasks.hub_client.receipt import Receipt
from tasks.report.formatting import metrics_table
from tasks.stages import read_report


def summary(artifacts: Artifacts, outcomes: Mapping[str, str]) -> str:
    """Return the outcome of each stage, the metrics, the release, and where to read more."""
    from tasks.evaluation.report import EvaluationReport

    lines = ["", "  ".join(f"{stage}: {outcome}" for stage, outcome in outcomes.items()), ""]
    lines += [metrics_table(read_report(artifacts, EvaluationReport)), ""]
    if "publish" in outcomes:
        receipt = read_report(artifacts, Receipt)
        is_local = receipt.endpoint == "local"
        status = {"kept": "kept the champion", "proposed": "waits for approval"}.get(receipt.status, receipt.status)
        if outcomes["publish"] == "unchanged":
            lines.append("nothing has changed since the last run, which ended with")
        lines.append(f"{status}: {receipt.repo_id} on {'the Hub in .hub' if is_local else release_url(receipt)}")
        lines += [f"  {reason}" for reason in receipt.reasons]
        if receipt.commit:
            lines.append(f"revision: {receipt.commit} ({receipt.tag})")
        if is_local:
            lines.append("to browse it: evergreen hub")
        lines.append(f"receipt: {artifacts.receipt}")
    lines.append(f"metrics: {artifacts.report('evaluate')}")
    if artifacts.page.exists():  # another worker may have written it
        lines.append(f"report: {artifacts.page}")
    return "\n".join(lines)


def release_url(receipt: Receipt) -> str:
    """Return the address of a release's page on its Hub, or that of its pull request."""
    page = f"tree/{receipt.commit}" if receipt.commit else f"discussions/{receipt.pull_request}"
    return f"{receipt.endpoint}/{receipt.repo_id}/{page}"
