"""What is said first: how the run ended and why, in one screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from params.artifacts import STAGES
from tasks.report.charts import differences
from tasks.report.evidence import Evidence, Json, amount, interval, main_metric
from tasks.report.plots import NAMES, Gain
from tasks.report.timings import Timing
from tasks.report.wording import cut, number, span

Tone = Literal["good", "note", "bad", "plain"]
_MAX_REASON = 1200
_MAX_ERROR = 4000


@dataclass(frozen=True)
class Verdict:
    """How a run ended."""

    tone: Tone
    headline: str
    """Two or three words."""
    sentence: str
    reasons: Sequence[str] = ()
    failed: str | None = None
    """The stage that the run ended in."""
    stale: Sequence[str] = field(default=())
    """Stages from that one on whose artifacts, shown below, are those of an earlier run."""


def judge(evidence: Evidence, timings: Mapping[str, Timing] | None) -> Verdict:
    """How the run ended, as far as its artifacts and the clock of its stages tell."""
    failed = next((timing for timing in (timings or {}).values() if timing.failed), None)
    verdict = evidence.blessing.get("verdict")
    # a refused model ends the publish stage: the refusal says more than the failure
    if failed is not None and not (failed.stage == "publish" and verdict == "refuse"):
        return _failure(evidence, failed)
    return _blessed(evidence) if verdict in ("publish", "keep", "refuse") else _unfinished(evidence)


def _blessed(evidence: Evidence) -> Verdict:
    blessing, receipt = evidence.blessing, release(evidence)
    reasons = [cut(reason, _MAX_REASON) for reason in blessing.get("reasons") or ()]
    if blessing["verdict"] == "refuse":
        sentence = "The candidate does not reach what the gate demands, so it is not published."
        return Verdict("bad", "Refused", sentence, reasons)
    if blessing["verdict"] == "keep":
        champion = blessing.get("champion") or {}
        if champion.get("weights") and champion.get("weights") == blessing.get("model"):
            return Verdict("good", "Published already", "The published model is this very model.", reasons)
        sentence = "The candidate did not pass the gate, so the published model stays what it is."
        return Verdict("note", "Kept the champion", sentence, reasons)
    shown = "The candidate passed the gate."
    if receipt.get("verdict") == "published":
        return Verdict("good", "Published", shown, reasons)
    dry = " This was a dry run: nothing was sent." if receipt.get("verdict") == "dry-run" else ""
    return Verdict("good", "To be published", shown + dry, reasons)


def _unfinished(evidence: Evidence) -> Verdict:
    if evidence.metrics:
        return Verdict("plain", "Evaluated", "There is no verdict of the gate on this model.")
    if not evidence.reached:
        return Verdict("plain", "Not begun", "No stage of this recipe has left a result.")
    last = evidence.reached[-1]
    after = STAGES[STAGES.index(last) + 1] if last != STAGES[-1] else None
    sentence = f"The stages up to {last} are done" + (f"; {after} has not run." if after else ".")
    return Verdict("plain", "Not finished", sentence)


def decisive(evidence: Evidence) -> tuple[str, Gain] | None:
    """The difference that decides, and from which model: the champion or, where there is none, the untrained one."""
    for against in ("champion", "untrained"):
        first = next((gain for gain in differences(evidence, against) if gain.metric == main_metric(evidence)), None)
        if first is not None:
            return NAMES[against] if against == "champion" else "model before training", first
    return None


def deciding_figure(evidence: Evidence) -> tuple[str, str, str] | None:
    """The metric that decides, the candidate's figure, and its interval."""
    metric = main_metric(evidence)
    value = amount((evidence.metrics.get("model") or {}).get(metric)) if metric else None
    if metric is None or value is None:
        return None
    return metric, number(value), span(*interval(evidence, "model", metric))


def release(evidence: Evidence) -> Json:
    """The receipt, if it is of this verdict; one of an earlier run may still be there."""
    receipt, blessing = evidence.receipt, evidence.blessing
    if not receipt or not blessing:
        return receipt
    champion = blessing.get("champion") or {}
    promised = {"publish": ("published", "dry-run"), "keep": ("kept",), "refuse": ("kept",)}
    fits = receipt.get("verdict") in promised.get(str(blessing.get("verdict")), ())
    # what was published before the comparison is the champion, not the candidate
    is_champion = receipt.get("verdict") == "published" and receipt.get("commit") == champion.get("commit")
    return receipt if fits and not is_champion else {}


def _failure(evidence: Evidence, failed: Timing) -> Verdict:
    stale = [later for later in STAGES[STAGES.index(failed.stage) : -1] if later in evidence.reached]
    sentence = f"The run ended in {failed.stage}; what was published before is as it was."
    if failed.stage == "publish":
        sentence = "The model is there, and publishing it failed; the next run tries again."
    reasons = [cut(failed.error, _MAX_ERROR)] if failed.error else []
    return Verdict("bad", f"Failed in {failed.stage}", sentence, reasons, failed.stage, stale)
