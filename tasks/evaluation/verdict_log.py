"""Lines of the log of releases about a candidate that the gate has judged."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from params.foundation.artifacts import Artifacts
from tasks.evaluation.report import Blessing, EvaluationReport
from tasks.release_log.events import ReleaseEvent, append_release_event
from tasks.release_log.receipt import Receipt


def log_verdict(
    artifacts: Artifacts,
    event: Literal["verdict", "refused"],
    blessing: Blessing,
    evaluated: EvaluationReport,
    *,
    repo_id: str,
    endpoint: str,
    row_sketch: tuple[str, ...] = (),
) -> None:
    """Log the gate's verdict, or that a model was not published because of it."""
    champion, used = blessing.champion, {}
    if row_sketch:
        used = {"confidence": blessing.confidence, "row_sketch": row_sketch, "row_sketch_of": "words"}
    entry = ReleaseEvent(
        event=event,
        reasons=blessing.reasons,
        repo_id=repo_id,
        endpoint=endpoint,
        commit=champion.commit if champion else None,
        tag=champion.tag if champion else None,
        **used,
        **_evaluation(blessing, evaluated),
    )
    append_release_event(artifacts, entry)


def log_receipt(
    artifacts: Artifacts,
    receipt: Receipt,
    blessing: Blessing,
    evaluated: EvaluationReport,
    time: datetime | None = None,
) -> None:
    """Log what became of a model; `time` is that of a release by the Hub's clock."""
    published = receipt.model_dump(exclude={"status"})
    entry = ReleaseEvent(event=receipt.status, **published, **_evaluation(blessing, evaluated))
    append_release_event(artifacts, entry, time)


def _evaluation(blessing: Blessing, evaluated: EvaluationReport) -> dict[str, Any]:
    """Return the fields of an entry that say what was evaluated, and the metrics."""
    fields = {"verdict": blessing.verdict, "weights": blessing.model, "metric": blessing.metric}
    return fields | {"data": blessing.data, "recipe": blessing.recipe, "metrics": evaluated.metrics}
