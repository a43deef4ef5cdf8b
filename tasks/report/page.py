"""The report page of a run: one HTML file that says how the run ended and why, and shows the results behind it.

    runs/<recipe>/report.html

It is made from the artifacts that exist, so a run that failed early has a page, too. The page loads and executes nothing:
styles and charts are inside the file, and all text from the data is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from params.foundation.artifacts import SPLITS, Artifacts, write_text_atomically
from params.foundation.stages import STAGES
from tasks.evaluation.report import Blessing
from tasks.measurement import PageSection, list_measurements
from tasks.release_log.receipt import Receipt
from tasks.report import sections
from tasks.report.canvas import chart_as_svg
from tasks.report.charts import draw_curves, draw_gain
from tasks.report.formatting import truncate_and_escape_invisible
from tasks.report.run_results import RunResults
from tasks.report.templates import render_template
from tasks.report.timings import StageTiming, read_timings

Tone = Literal["good", "note", "bad", "plain"]
_RELEASED: Mapping[str, tuple[Tone, str, str]] = {
    "published": ("good", "Published", ""),
    "proposed": ("note", "Proposed", " Pull request {} waits for approval."),
    "rejected": ("note", "Rejected", " Somebody closed pull request {}; the published model stays."),
    "dry-run": ("good", "To be published", " This was a dry run: nothing was sent."),
}
"""By the status of the receipt: tone, title and what follows."""
_STATUSES = {"publish": set(_RELEASED), "keep": {"kept", "dry-run"}, "refuse": {"kept"}}
"""The statuses that the receipt of a verdict may have."""


def write_run_report_page(artifacts: Artifacts, *, timings: Mapping[str, StageTiming] | None = None) -> Path:
    """Write the page of a run, by default with its recorded timings, and return its path.

    Raises:
        StorageError: the disk is full or read-only.
    """
    page = render_report_page(artifacts, timings=read_timings(artifacts) if timings is None else timings)
    write_text_atomically(artifacts.page, page)
    return artifacts.page


def render_report_page(
    artifacts: Artifacts, *, timings: Mapping[str, StageTiming] | None, quote_rows: bool = True
) -> str:
    """Return the page as HTML.

    Without `timings` it is the page for the release, which has no times and nothing of the receipt: publishing the same
    run again gives the same page.
    """
    results = RunResults(artifacts, local=timings is not None)
    top = derive_headline(results, timings)
    if top.failed and not quote_rows:  # errors quote rows
        top = replace(top, reasons=("What went wrong is in the log of the run.",))
    receipt = None if top.failed else receipt_of_this_verdict(results)
    checked = (artifacts.failed_validation if top.failed == "validate" else artifacts.validated) / "report.html"
    source = artifacts.recipe_path
    address = Path(os.path.relpath(checked, artifacts.run)).as_posix()
    measured = _measured_sections(results, quote_rows=quote_rows)
    content = {
        "results": results,
        "headline": top,
        "decided": _decided(results),
        "receipt": receipt,
        "earlier": _earlier_release(results, top),
        "stages": _stages(results, top.failed, is_published=receipt is not None),
        "validation_page": address if results.local and quote_rows and checked.is_file() else "",
        "quote_rows": quote_rows,
        "splits": SPLITS,
        "measured": measured,
        "notes": _notes(results),
        "data_blocks": filter(None, (one.data_block(results, quote_rows=quote_rows) for one in list_measurements())),
        "links": [(True, one.id, one.title) for one in measured],
        "comparison": sections.comparison_section_content(results),
        "curves": [("", chart_as_svg(draw_curves, [panel])) for panel in sections.read_metric_curves(results)],
        "timings": timings or {},
        "outputs": _outputs(results)[:200],
        "recipe_text": source.read_text(encoding="utf-8", errors="replace") if source.is_file() else "",
    }
    return render_template("report/page.html.jinja", content)


def _earlier_release(results: RunResults, top: Headline) -> Any:
    """Return what is published whatever became of this run: that of the run before one that failed, or else the champion."""
    if top.failed:
        return results.receipt
    return results.blessing.champion if results.blessing else None


def _outputs(results: RunResults) -> list[tuple[str, Any]]:
    """Return the outputs that dvc.lock records, each with its stage."""
    return [(stage.partition("@")[0], out) for stage, of in results.dvc_lock.items() for out in of.get("outs") or ()]


def _measured_sections(results: RunResults, *, quote_rows: bool) -> list[PageSection]:
    """Return the sections of what was measured, in the order of the measurements."""
    if results.details is None:
        return []
    details = results.details
    found = [
        one.page_section(details.findings(one.kind), results, quote_rows=quote_rows) for one in list_measurements()
    ]
    return [section for section in found if section]


def _notes(results: RunResults) -> dict[str, str]:
    """Return what measurements say below the comparison of the models, by their names."""
    details = results.details
    if details is None:
        return {}
    found = {one.name: one.comparison_note(details.findings(one.kind)) for one in list_measurements()}
    return {name: note for name, note in found.items() if note}


@dataclass(frozen=True)
class Headline:
    tone: Tone
    title: str
    """Two or three words."""
    sentence: str
    reasons: Sequence[str] = ()
    failed: str | None = None
    """The stage that failed."""
    stale: Sequence[str] = ()
    """The stages that the run did not reach, but whose results of an earlier run are on the page."""


def derive_headline(results: RunResults, timings: Mapping[str, StageTiming] | None) -> Headline:
    """Return how the run ended, from its results and from what its stages recorded."""
    failed = next((timing for timing in (timings or {}).values() if timing.failed), None)
    blessing, finished = results.blessing, results.finished
    # the publish stage fails for a refused model; the gate's reasons say more than that error
    is_refused = blessing is not None and blessing.verdict == "refuse"
    if failed is not None and not (failed.stage == "publish" and is_refused):
        return _failed(failed, finished)
    if blessing:
        return _judged(results, blessing)
    if results.evaluated:
        return Headline("plain", "Evaluated", "The gate has not judged this model.")
    if not finished:
        return Headline("plain", "Not started", "No stage of this recipe has finished.")
    after = STAGES[STAGES.index(finished[-1]) + 1 :]
    sentence = f"The stages up to {finished[-1]} have finished" + (f"; {after[0]} has not run." if after else ".")
    return Headline("plain", "Not finished", sentence)


def _failed(failed: StageTiming, finished: Sequence[str]) -> Headline:
    sentence = f"The run failed in {failed.stage}; the published model has not changed."
    if failed.stage == "publish":
        sentence = "The model is ready, but publishing it failed; the next run tries again."
    reasons = [truncate_and_escape_invisible(failed.error, 4000)] if failed.error else []
    stale = [later for later in STAGES[STAGES.index(failed.stage) : -1] if later in finished]
    return Headline("bad", f"Failed in {failed.stage}", sentence, reasons, failed.stage, stale)


def _judged(results: RunResults, blessing: Blessing) -> Headline:
    reasons = [truncate_and_escape_invisible(reason, 1200) for reason in blessing.reasons]
    if blessing.verdict == "refuse":
        return Headline("bad", "Refused", "The candidate misses a demand of the gate and is not published.", reasons)
    if blessing.verdict == "keep":
        if blessing.is_champion:
            return Headline("good", "Published already", "The published model has the same weights.", reasons)
        sentence = "The candidate did not pass the gate; the published model stays."
        return Headline("note", "Kept the champion", sentence, reasons)
    receipt = receipt_of_this_verdict(results)
    tone, title, then = _RELEASED.get(receipt.status if receipt else "", ("good", "To be published", ""))
    sentence = f"The candidate passed the gate.{then.format(receipt.pull_request if receipt else None)}"
    return Headline(tone, title, sentence, reasons)


def receipt_of_this_verdict(results: RunResults) -> Receipt | None:
    """Return the receipt if it belongs to this verdict; the receipt of an earlier run may still exist."""
    receipt, blessing = results.receipt, results.blessing
    if receipt is None or blessing is None:
        return receipt
    # a commit that was compared with is the champion's, not the candidate's
    is_champion = receipt.status == "published" and blessing.champion and receipt.commit == blessing.champion.commit
    return receipt if receipt.status in _STATUSES[blessing.verdict] and not is_champion else None


def _decided(results: RunResults) -> dict[str, Any] | None:
    """Return the gain that decides: over the champion or, if there is none, over the model before training."""
    for against, name in sections.OPPONENTS.items():
        if found := [one for one in sections.gains_over_opponent(results, against) if one.metric == results.metric]:
            bar = sections.gate_gain_thresholds(results, against).get(found[0].metric)
            return {
                "by": found[0],
                "against": name,
                "bar": bar,
                "chart": chart_as_svg(draw_gain, found[0], against=name, bar=bar),
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
