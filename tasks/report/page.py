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

from params.foundation.artifacts import SPLITS, STAGES, Artifacts, write_text_atomically
from tasks.report.run_results import RunResults
from tasks.report.templates import render_template
from tasks.report.timings import Timing, read_timings


def write_report(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None = None) -> Path:
    """Write the page of a run, by default with its recorded timings, and return its path.

    Raises:
        StorageError: the disk is full or read-only.
    """
    page = render(artifacts, timings=read_timings(artifacts) if timings is None else timings)
    write_text_atomically(artifacts.page, page)
    return artifacts.page


def render(artifacts: Artifacts, *, timings: Mapping[str, Timing] | None, quote_rows: bool = True) -> str:
    """Return the page as HTML.

    Without `timings` it is the page for the release, which has no times and nothing of the receipt: publishing the same
    run again gives the same page.
    """
    from tasks.report import sections
    from tasks.report.headline import current_receipt, headline

    results = RunResults(artifacts, local=timings is not None)
    top = headline(results, timings)
    receipt = None if top.failed else current_receipt(results)
    outputs = [(stage.partition("@")[0], out) for stage, of in results.dvc_lock.items() for out in of.get("outs") or ()]
    content = {
        "results": results,
        "headline": top,
        "decided": _decided(results),
        "receipt": receipt,
        "earlier": results.receipt if top.failed else results.blessing.champion if results.blessing else None,
        "stages": _stages(results, top.failed, is_published=receipt is not None),
        "validation_page": _validation_page(artifacts, failed=top.failed == "validate") if results.local else "",
        "quote_rows": quote_rows,
        "splits": SPLITS,
        "comparison": sections.comparison_section(results),
        "slices": sections.slices_section(results),
        "calibration": sections.calibration_section(results),
        "curves": sections.curve_charts(results),
        "timings": timings or {},
        "outputs": outputs[:200],
    }
    return render_template("report/page.html.jinja", content)


def _decided(results: RunResults) -> dict[str, Any] | None:
    """Return the gain that decides: over the champion or, if there is none, over the model before training."""
    from tasks.report.canvas import svg
    from tasks.report.chart_data import OPPONENTS, gains_over, gate_bars
    from tasks.report.metric_plots import draw_gain

    for against, name in OPPONENTS.items():
        if found := [one for one in gains_over(results, against) if one.metric == results.metric]:
            bar = gate_bars(results, against).get(found[0].metric)
            return {
                "by": found[0],
                "against": name,
                "bar": bar,
                "chart": svg(draw_gain(found[0], against=name, bar=bar)),
            }
    return None


def _stages(results: RunResults, failed: str | None, *, is_published: bool) -> list[tuple[str, str]]:
    """Return each stage with its state: `done`, `failed` or `open`."""
    states = []
    for stage in STAGES if results.local else STAGES[:-1]:
        is_after = failed is not None and STAGES.index(stage) > STAGES.index(failed)
        is_missing = stage not in results.finished or (stage == "publish" and not is_published)
        states.append((stage, "failed" if stage == failed else "open" if is_after or is_missing else "done"))
    return states


def _validation_page(artifacts: Artifacts, *, failed: bool) -> str:
    """Return the address of validation's own page, relative to this one; empty if there is none."""
    page = (artifacts.failed_validation if failed else artifacts.validated) / "report.html"
    return Path(os.path.relpath(page, artifacts.run)).as_posix() if page.is_file() else ""
