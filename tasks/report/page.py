"""The page of a run: one HTML file that says how the run ended and why, and shows all that the verdict rests on.

    runs/<recipe>/report.html

It is made from the artifacts that there are, so that a run which ended early has one, too. It loads nothing and runs
nothing: style and charts stand in the file, all text of the data is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from params.artifacts import STAGES, Artifacts, write_whole
from tasks.report.evidence import Evidence, gather
from tasks.report.timings import Timing, read_timings, record_timing

__all__ = ["Timing", "read_timings", "record_timing", "render", "write_report"]


def write_report(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None) -> Path:
    """Write the page of a run, and return where it is.

    Args:
        artifacts: of the run; any of them may be missing.
        timings: what the stages took, by name.

    Raises:
        StorageError: the disk is full or read-only.
    """
    write_whole(artifacts.page, render(artifacts, timings=timings))
    return artifacts.page


def render(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None, quote_rows: bool = True) -> str:
    """The text of the page.

    Args:
        artifacts: of the run; any of them may be missing.
        timings: what the stages took, by name. None makes the page that goes into the release: it has no clock and
            nothing of the receipt, so that it is the same whenever the same run is published.
        quote_rows: whether rows of the data stand on it; a page for others may have to go without.
    """
    import jinja2

    # autoescape by name would miss this template's suffix
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files(__package__).joinpath("page.html.jinja").read_text("utf-8"))
    evidence = gather(artifacts, local=timings is not None)
    return template.render(_content(artifacts, evidence, timings, quote_rows=quote_rows)) + "\n"


def _content(
    artifacts: Artifacts, evidence: Evidence, timings: Mapping[str, Timing] | None, *, quote_rows: bool
) -> dict[str, Any]:
    """What the template fills in."""
    from tasks.report import sections
    from tasks.report.charts import svg
    from tasks.report.plots import strip
    from tasks.report.provenance import destination, provenance
    from tasks.report.verdict import deciding_figure, decisive, judge, release
    from tasks.report.wording import better, gain, number, percent, span

    verdict = judge(evidence, timings)
    difference = decisive(evidence)
    decided = None
    if difference is not None:
        against, one = difference
        decided = {
            "against": against,
            "gain": gain(one.value, one.low, one.high),
            "span": span(one.low, one.high, signed=True),
            "bar": None if one.bar is None else number(one.bar),
            "said": better({"low": one.low, "high": one.high}),
            "chart": svg(strip(one, against=against)),
        }
    receipt = {} if verdict.failed else release(evidence)
    before = evidence.receipt if verdict.failed else evidence.blessing.get("champion") or {}
    return {
        "recipe": evidence.recipe,
        "run": None if verdict.failed else evidence.training.get("run"),
        "confidence": percent(evidence.details.get("confidence") or 0.95),
        "verdict": verdict,
        "figure": deciding_figure(evidence),
        "decided": decided,
        "receipt": receipt,
        "release": destination(receipt) if receipt.get("commit") else None,
        "before": before,
        "before_at": destination(before) if before.get("commit") else None,
        "repo_id": evidence.plan.publish.repo_id if evidence.plan else None,
        "stages": _stages(evidence, verdict.failed, is_published=bool(receipt), local=timings is not None),
        "unreadable": evidence.unreadable,
        "page_of_checks": _page_of_checks(artifacts, failed=verdict.failed == "validate")
        if timings is not None
        else "",
        "compared": sections.compared(evidence),
        "sliced": sections.sliced(evidence),
        "worst": sections.worst(evidence) if quote_rows else None,
        "calibrated": sections.calibrated(evidence),
        "learned": sections.learned(evidence),
        "checked": sections.checked(evidence, quote_rows=quote_rows),
        "tokenized": sections.tokenized(evidence),
        "timed": sections.timed(timings) if timings else None,
        "provenance": provenance(evidence, receipt),
    }


def _stages(evidence: Evidence, failed: str | None, *, is_published: bool, local: bool) -> list[tuple[str, str]]:
    """How far the run came: each stage, and `done`, `failed` or `open`."""
    found = []
    for stage in STAGES if local else STAGES[:-1]:
        after = failed is not None and STAGES.index(stage) > STAGES.index(failed)
        missing = stage not in evidence.reached or (stage == "publish" and not is_published)
        state = "failed" if stage == failed else "open" if after or missing else "done"
        found.append((stage, state))
    return found


def _page_of_checks(artifacts: Artifacts, *, failed: bool) -> str:
    """Address of validation's own page, from the report's; empty where there is none."""
    page = artifacts.failed_validation if failed else artifacts.validated
    if not (page / "report.html").is_file():
        return ""
    return Path(os.path.relpath(page / "report.html", artifacts.run)).as_posix()
