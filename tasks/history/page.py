"""The page of all runs: one HTML file made from the logs, in the style of the report of a run.

    runs/index.html

It loads and executes nothing, and all text from the logs is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from params.foundation.artifacts import STAGES, Artifacts, write_text_atomically
from tasks.evaluation.report import confidence_text
from tasks.history import cells
from tasks.history.metric_chart import axis_range, draw_metric, newest_deciding_metric, runs_with_metric
from tasks.history.recipe_history import RecipeHistory
from tasks.history.run_log import RunEntry
from tasks.report.canvas import svg
from tasks.report.formatting import amount, duration, one_line, release_link
from tasks.report.templates import render_template
from trainer.runtime.lifetime import hold_file_lock

PAGE = Path("runs", "index.html")
ROWS = 100
"""Runs in the table of a recipe; the chart shows all."""
_OPEN_ROWS = 20
"""Runs in the part of the table that is shown at once."""
_DAYS = 30
"""The days that the sums are about."""
_WAIT_S = 30.0


def write_page(root: Path, histories: Sequence[RecipeHistory], *, now: datetime) -> Path:
    """Write the page, and return its path.

    Raises:
        StorageError: the disk is full or read-only.
        TransientError: another process has been writing the page for half a minute.
    """
    with hold_file_lock(root / ".scratch" / "history-page.lock", f"a write to {PAGE}", wait_s=_WAIT_S):
        write_text_atomically(root / PAGE, render(root, histories, now=now))
    return root / PAGE


def render(root: Path, histories: Sequence[RecipeHistory], *, now: datetime) -> str:
    """Return the page as HTML."""
    content = {
        "headline": _headline(histories),
        "made": f"{now:%Y-%m-%d %H:%M} UTC",
        "days": _DAYS,
        "cells": cells,
        "recipes": [_recipe(root, history, now) for history in histories],
    }
    return render_template("history/page.html.jinja", content)


def _headline(histories: Sequence[RecipeHistory]) -> dict[str, Any]:
    overdue = [one.recipe for one in histories if one.is_overdue]
    failing = [one.recipe for one in histories if one.last and cells.TONES[one.last.outcome] == "bad"]
    if overdue:
        sentence = f"No success for more than twice the interval of its schedule: {', '.join(overdue)}."
        return {"tone": "bad", "title": "Overdue", "sentence": sentence}
    if failing:
        return {
            "tone": "bad",
            "title": "Needs a look",
            "sentence": f"The last run did not end well: {', '.join(failing)}.",
        }
    if not any(one.runs for one in histories):
        return {"tone": "plain", "title": "No run yet", "sentence": "`evergreen run` makes the first one."}
    return {"tone": "good", "title": "Up to date", "sentence": "Nothing is overdue, and every last run ended well."}


def _recipe(root: Path, history: RecipeHistory, now: datetime) -> dict[str, Any]:
    """Return what the page shows of one recipe."""
    recent = history.since(_DAYS, now)
    spent = [run.cost for run in recent if run.cost is not None]
    by_stage = {stage: sum(run.stages[stage].seconds for run in recent if stage in run.stages) for stage in STAGES}
    worked = {stage: seconds for stage, seconds in by_stage.items() if seconds}
    last, shown = history.last, list(reversed(history.runs))[:ROWS]
    report = Artifacts(history.recipe, root).page
    return {
        "name": history.recipe,
        "id": f"recipe-{history.recipe}",
        "tags": list(_tags(history)),
        "release": _release(history.release, now),
        "last": last,
        "report": f"{history.recipe}/{report.name}" if report.exists() else "",
        "succeeded": f"{cells.age((now - history.succeeded).total_seconds())} ago" if history.succeeded else "",
        "schedules": [one.text for one in history.schedules],
        "is_overdue": history.is_overdue,
        "recent": cells.summary(recent),
        "time": duration(sum(run.seconds or 0.0 for run in recent) if recent else None),
        "cost": amount(sum(spent)) if spent else "",
        "hours": [(stage, duration(seconds), seconds / max(worked.values())) for stage, seconds in worked.items()],
        "chart": _chart(history.runs),
        "metric": one_line(newest_deciding_metric(history.runs) or "metric", 40),
        "tables": [part for part in (shown[:_OPEN_ROWS], shown[_OPEN_ROWS:]) if part],
        "has_cost": any(run.cost is not None for run in shown),
        "count": len(history.runs),
        "older": len(history.runs) - len(shown),
    }


def _tags(history: RecipeHistory) -> Sequence[tuple[str, str]]:
    tags = [("bad", "overdue")] if history.is_overdue else []
    if history.last and cells.TONES[history.last.outcome] == "bad":
        tags.append(("bad", f"last run {history.last.outcome}"))
    return tags or [("good", "up to date")] if history.runs else [("plain", "no run yet")]


def _release(run: RunEntry | None, now: datetime) -> dict[str, str] | None:
    if run is None:
        return None
    name, address = release_link(run.repo_id or "", run.endpoint or "", run.commit)
    return {
        "tag": one_line(run.tag or run.commit, 60),
        "where": one_line(name, 200),
        "address": address,
        "since": f"{run.ended:%Y-%m-%d}",
        "for": cells.age((now - run.ended).total_seconds()),
        "how": "by a rollback" if run.outcome == "rolled back" else "",
    }


def _chart(runs: Sequence[RunEntry]) -> dict[str, Any] | None:
    """Return the chart of the metric over time; None if no candidate was evaluated."""
    metric = newest_deciding_metric(runs)
    found = runs_with_metric(runs, metric) if metric else []
    if metric is None or not found:
        return None
    direction = next((one.direction for _, one in reversed(found) if one.direction), None)
    confidence = next((one.confidence for _, one in reversed(found) if one.confidence), None)
    low, high = axis_range(found)
    return {
        "title": one_line(metric, 60),
        "note": {"min": "smaller is better", "max": "larger is better", None: ""}[direction],
        "confidence": confidence_text(confidence) if confidence else "",
        "drawing": svg(draw_metric(runs, metric)),
        "beyond": any(one.value is not None and not low <= one.value <= high for _, one in found),
        "others": sum(run.evaluated is not None and run.evaluated.metric != metric for run in runs),
    }
