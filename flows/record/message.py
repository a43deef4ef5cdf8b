"""The message of the commit that records a run, with the figures that a reviewer asks for."""

from __future__ import annotations

from collections.abc import Mapping

from params import EvergreenError
from params.foundation.artifacts import STAGES, Artifacts
from tasks.evaluation.report import Blessing, EvaluationReport
from tasks.hub_client.receipt import Receipt
from tasks.stages import read_report

_STATUS = {"kept": "kept the champion", "dry-run": "dry run of"}


def record_message(artifacts: Artifacts, outcomes: Mapping[str, str], error: BaseException | None) -> str:
    """Return the message: how the run ended, the gate's verdict with its reasons, the main metric, the stages that ran.

    It quotes no error, because errors quote rows.
    """
    lines = [f"Record {artifacts.recipe}: {_end(artifacts, outcomes, error)}", ""]
    if "evaluate" in outcomes:
        lines += _evaluation(artifacts)
    by_outcome = {outcome: [s for s in STAGES if outcomes.get(s) == outcome] for outcome in outcomes.values()}
    lines += [f"{outcome}: {', '.join(names)}" for outcome, names in by_outcome.items()]
    return "\n".join([*lines, "", "[skip ci]", ""])


def _end(artifacts: Artifacts, outcomes: Mapping[str, str], error: BaseException | None) -> str:
    if error:
        stage = _failed_stage(outcomes, error)
        if stage == "publish" and "evaluate" in outcomes and read_report(artifacts, Blessing).verdict == "refuse":
            return "the gate refused the model"
        return f"{stage} {f'failed: {type(error).__name__}' if isinstance(error, Exception) else 'was stopped'}"
    if "publish" in outcomes:
        receipt = read_report(artifacts, Receipt)
        return " ".join(filter(None, (_STATUS.get(receipt.status, receipt.status), receipt.tag or receipt.commit)))
    return f"evaluated, verdict {read_report(artifacts, Blessing).verdict}"


def _failed_stage(outcomes: Mapping[str, str], error: BaseException) -> str:
    """The stage that an error names, else the first that has not ended."""
    named = error.where.partition("@")[0] if isinstance(error, EvergreenError) else ""
    return named if named in STAGES else next((stage for stage in STAGES if stage not in outcomes), "the run")


def _evaluation(artifacts: Artifacts) -> list[str]:
    blessing, evaluated = read_report(artifacts, Blessing), read_report(artifacts, EvaluationReport)
    models = {"champion": evaluated.champion, "untrained": evaluated.untrained}
    compared = [f"{name} {found[blessing.metric]:.4g}" for name, found in models.items() if found]
    beside = f" ({', '.join(compared)})" if compared else ""
    return [
        f"verdict: {blessing.verdict}",
        *(f"- {reason}" for reason in blessing.reasons),
        f"{blessing.metric}: {evaluated.model[blessing.metric]:.4g}{beside}",
        f"rows: {evaluated.rows} of the {evaluated.split} split",
    ]
