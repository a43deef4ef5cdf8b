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
    """Stages after that one whose artifacts, shown below, are those of an earlier run."""


def judge(evidence: Evidence, timings: Mapping[str, Timing] | None) -> Verdict:
    """How the run ended, as far as its artifacts and the clock of its stages tell."""
    failed = next((stage for stage in STAGES if stage in (timings or {}) and (timings or {})[stage].failed), None)
    if failed is not None:
        return _failure(evidence, failed, (timings or {})[failed].error)
    verdict = evidence.blessing.get("verdict")
    reasons = [cut(reason, _MAX_REASON) for reason in evidence.blessing.get("reasons") or ()]
    if verdict == "publish":
        return _to_publish(evidence, reasons)
    if verdict == "keep":
        sentence = "The candidate was not shown to be better, so the published model stays what it is."
        return Verdict("note", "Kept the champion", sentence, reasons)
    if verdict == "refuse":
        sentence = "The candidate does not reach what the gate demands, so it is not published."
        return Verdict("bad", "Refused", sentence, reasons)
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


def _to_publish(evidence: Evidence, reasons: Sequence[str]) -> Verdict:
    first = bool(evidence.blessing.get("first_release"))
    shown = "The first release: it is better than before training." if first else "The candidate passed the gate."
    receipt = release(evidence)
    if receipt.get("verdict") == "published":
        return Verdict("good", "Published", shown, reasons)
    if receipt.get("verdict") == "dry-run":
        return Verdict("good", "To be published", f"{shown} This was a dry run: nothing was sent.", reasons)
    return Verdict("good", "To be published", shown, reasons)


def _failure(evidence: Evidence, stage: str, error: str) -> Verdict:
    stale = [later for later in STAGES[STAGES.index(stage) :] if later in evidence.reached]
    sentence = f"The run ended in {stage}; what was published before is as it was."
    if stage == "publish":
        sentence = "The model is there, and publishing it failed; the next run tries again."
    return Verdict("bad", f"Failed in {stage}", sentence, [cut(error, 4000)] if error else [], stage, stale)
