"""The top of the report page: how the run ended, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from params.foundation.artifacts import STAGES
from tasks.evaluation.report import Blessing
from tasks.hub_client.receipt import Receipt
from tasks.report.formatting import truncate
from tasks.report.run_results import RunResults
from tasks.report.timings import Timing

Tone = Literal["good", "note", "bad", "plain"]
_MAX_REASON = 1200
_MAX_ERROR = 4000

_RELEASED: Mapping[str, tuple[Tone, str, str]] = {
    "published": ("good", "Published", ""),
    "proposed": ("note", "Proposed", " Pull request {} waits for approval."),
    "rejected": ("note", "Rejected", " Somebody closed pull request {}; the published model stays."),
    "dry-run": ("good", "To be published", " This was a dry run: nothing was sent."),
}
"""By the status of the receipt: tone, title and what follows."""
_STATUSES = {"publish": set(_RELEASED), "keep": {"kept", "dry-run"}, "refuse": {"kept"}}
"""The statuses that the receipt of a verdict may have."""


@dataclass(frozen=True)
class Headline:
    """How a run ended."""

    tone: Tone
    title: str
    """Two or three words."""
    sentence: str
    reasons: Sequence[str] = ()
    failed: str | None = None
    """The stage that failed."""
    stale: Sequence[str] = ()
    """The stages that the run did not reach, but whose results of an earlier run are on the page."""


def headline(results: RunResults, timings: Mapping[str, Timing] | None) -> Headline:
    """Return how the run ended, from its results and from what its stages recorded."""
    failed = next((timing for timing in (timings or {}).values() if timing.failed), None)
    blessing, finished = results.blessing, results.finished
    # the publish stage fails for a refused model; the gate's reasons say more than that error
    if failed is not None and not (failed.stage == "publish" and blessing and blessing.verdict == "refuse"):
        stale = [later for later in STAGES[STAGES.index(failed.stage) : -1] if later in finished]
        sentence = f"The run failed in {failed.stage}; the published model has not changed."
        if failed.stage == "publish":
            sentence = "The model is ready, but publishing it failed; the next run tries again."
        reasons = [truncate(failed.error, _MAX_ERROR)] if failed.error else []
        return Headline("bad", f"Failed in {failed.stage}", sentence, reasons, failed.stage, stale)
    if blessing:
        return _judged(results, blessing)
    if results.evaluated:
        return Headline("plain", "Evaluated", "The gate has not judged this model.")
    if not finished:
        return Headline("plain", "Not started", "No stage of this recipe has finished.")
    after = STAGES[STAGES.index(finished[-1]) + 1 :]
    sentence = f"The stages up to {finished[-1]} have finished" + (f"; {after[0]} has not run." if after else ".")
    return Headline("plain", "Not finished", sentence)


def _judged(results: RunResults, blessing: Blessing) -> Headline:
    reasons = [truncate(reason, _MAX_REASON) for reason in blessing.reasons]
    if blessing.verdict == "refuse":
        return Headline("bad", "Refused", "The candidate misses a demand of the gate and is not published.", reasons)
    if blessing.verdict == "keep":
        if blessing.is_champion:
            return Headline("good", "Published already", "The published model has the same weights.", reasons)
        sentence = "The candidate did not pass the gate; the published model stays."
        return Headline("note", "Kept the champion", sentence, reasons)
    receipt = current_receipt(results)
    tone, title, then = _RELEASED.get(receipt.status if receipt else "", ("good", "To be published", ""))
    sentence = f"The candidate passed the gate.{then.format(receipt.pull_request if receipt else None)}"
    return Headline(tone, title, sentence, reasons)


def current_receipt(results: RunResults) -> Receipt | None:
    """Return the receipt if it belongs to this verdict; the receipt of an earlier run may still exist."""
    receipt, blessing = results.receipt, results.blessing
    if receipt is None or blessing is None:
        return receipt
    # a commit that was compared with is the champion's, not the candidate's
    is_champion = receipt.status == "published" and blessing.champion and receipt.commit == blessing.champion.commit
    return receipt if receipt.status in _STATUSES[blessing.verdict] and not is_champion else None
