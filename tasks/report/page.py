"""The report page of a run: one HTML file that says how the run ended and why, and shows the results behind it.

    runs/<recipe>/report.html

It is made from the artifacts that exist, so a run that failed early has a page, too. The page loads and executes nothing:
styles and charts are inside the file, and all text from the data is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from params.foundation.artifacts import STAGES, Artifacts, write_text_atomically
from tasks.evaluation.report import Champion
from tasks.hub_client.receipt import Receipt
from tasks.report.lineage import release_link
from tasks.report.run_results import RunResults, read_results
from tasks.report.templates import render_template
from tasks.report.timings import Timing, read_timings


def write_report(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None = None) -> Path:
    """Write the page of a run, by default with its recorded timings, and return its path.

    Raises:
        StorageError: the disk is full or read-only.
    """
    write_text_atomically(
        artifacts.page, render(artifacts, timings=read_timings(artifacts) if timings is None else timings)
    )
    return artifacts.page


def render(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None, quote_rows: bool = True) -> str:
    """Return the page as HTML.

    Without `timings` it is the page for the release, which has no times and nothing of the receipt: publishing the same
    run again gives the same page.
    """
    results = read_results(artifacts, local=timings is not None)
    return render_template("report/page.html.jinja", _content(artifacts, results, timings, quote_rows=quote_rows))


def _content(
    artifacts: Artifacts, results: RunResults, timings: Mapping[str, Timing] | None, *, quote_rows: bool
) -> dict[str, Any]:
    """Return the variables of the template."""
    from tasks.evaluation.report import confidence_text
    from tasks.report import sections
    from tasks.report.canvas import svg
    from tasks.report.formatting import gain_class, interval, number, signed_gain
    from tasks.report.headline import current_receipt, deciding_gain, deciding_metric, headline
    from tasks.report.lineage import lineage_section
    from tasks.report.metric_plots import draw_gain

    top = headline(results, timings)
    difference = deciding_gain(results)
    decided = None
    if difference is not None:
        against, one = difference
        decided = {
            "against": against,
            "gain": signed_gain(one.value, one.low, one.high),
            "interval": interval(one.low, one.high, signed=True),
            "bar": None if one.bar is None else number(one.bar),
            "class": gain_class(one.low, one.high),
            "chart": svg(draw_gain(one, against=against)),
        }
    receipt = None if top.failed else current_receipt(results)
    earlier = results.receipt if top.failed else results.blessing.champion if results.blessing else None
    local = timings is not None
    return {
        "recipe": results.recipe_name,
        "run": results.trained.run if results.trained and not top.failed else None,
        "confidence": confidence_text(results.confidence),
        "headline": top,
        "deciding_metric": deciding_metric(results),
        "decided": decided,
        "row_use": results.blessing.row_use.sentence() if results.blessing and results.blessing.row_use else "",
        "receipt": receipt,
        "release": _link(receipt),
        "earlier": earlier,
        "earlier_link": _link(earlier),
        "repo_id": results.recipe.publish.repo_id if results.recipe else None,
        "stages": _stages(results, top.failed, is_published=receipt is not None, local=local),
        "unreadable": results.unreadable,
        "validation_page": _validation_page(artifacts, failed=top.failed == "validate") if local else "",
        "comparison": sections.comparison_section(results),
        "slices": sections.slices_section(results),
        "worst_rows": sections.worst_rows_section(results) if quote_rows else None,
        "changed_rows": sections.changed_rows_section(results) if quote_rows else None,
        "calibration": sections.calibration_section(results),
        "curves": sections.curves_section(results),
        "data": sections.data_section(results, quote_rows=quote_rows),
        "tokens": sections.tokens_section(results),
        "time": sections.time_section(timings, results.recipe) if timings else None,
        "lineage": lineage_section(results, receipt),
    }


def _link(release: Receipt | Champion | None) -> tuple[str, str] | None:
    return release_link(release.repo_id, release.endpoint, release.commit) if release and release.commit else None


def _stages(results: RunResults, failed: str | None, *, is_published: bool, local: bool) -> list[tuple[str, str]]:
    """Return each stage with its state: `done`, `failed` or `open`."""
    states = []
    for stage in STAGES if local else STAGES[:-1]:
        is_after = failed is not None and STAGES.index(stage) > STAGES.index(failed)
        is_missing = stage not in results.finished or (stage == "publish" and not is_published)
        states.append((stage, "failed" if stage == failed else "open" if is_after or is_missing else "done"))
    return states


def _validation_page(artifacts: Artifacts, *, failed: bool) -> str:
    """Return the address of validation's own page, relative to this one; empty if there is none."""
    folder = artifacts.failed_validation if failed else artifacts.validated
    if not (folder / "report.html").is_file():
        return ""
    return Path(os.path.relpath(folder / "report.html", artifacts.run)).as_posix()
