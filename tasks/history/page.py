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
from tasks.history import cells
from tasks.history.metric_chart import axis_range, draw_metric, judged_runs
from tasks.history.recipe_history import RecipeHistory
from tasks.report.canvas import svg
from tasks.report.templates import render_template
from trainer.runtime.lifetime import hold_file_lock

PAGE = Path("runs", "index.html")
ROWS = 100
"""Runs in the table of a recipe; the chart shows all."""
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
        "now": now,
        "days": _DAYS,
        "cells": cells,
        "recipes": [_recipe(root, history, now) for history in histories],
    }
    return render_template("history/page.html.jinja", content)


def _headline(histories: Sequence[RecipeHistory]) -> tuple[str, str, str]:
    """Return the tone, the title and the sentence at the top."""
    overdue = ", ".join(one.recipe for one in histories if one.is_overdue)
    failing = ", ".join(one.recipe for one in histories if one.last and cells.TONES[one.last.outcome] == "bad")
    if overdue:
        return "bad", "Overdue", f"No success for more than twice the interval of its schedule: {overdue}."
    if failing:
        return "bad", "Needs a look", f"The last run did not end well: {failing}."
    if not any(one.runs for one in histories):
        return "plain", "No run yet", "`evergreen run` makes the first one."
    return "good", "Up to date", "Nothing is overdue, and every last run ended well."


def _recipe(root: Path, history: RecipeHistory, now: datetime) -> dict[str, Any]:
    """Return what the page shows of one recipe."""
    recent = history.since(_DAYS, now)
    by_stage = {stage: sum(run.stages[stage].seconds for run in recent if stage in run.stages) for stage in STAGES}
    metric, judged = judged_runs(history.runs)
    evaluated = [one for _, one in reversed(judged)]
    low, high = axis_range(judged) if judged else (0.0, 0.0)
    report = Artifacts(history.recipe, root).page
    return {
        "name": history.recipe,
        "id": f"recipe-{history.recipe}",
        "history": history,
        "report": f"{history.recipe}/{report.name}" if report.exists() else "",
        "recent": recent,
        "costs": [run.cost for run in recent if run.cost is not None],
        "hours": {stage: seconds for stage, seconds in by_stage.items() if seconds},
        "metric": metric,
        "chart": svg(draw_metric(history.runs)) if judged else None,
        "direction": next((one.direction for one in evaluated if one.direction), None),
        "confidence": next((one.confidence for one in evaluated if one.confidence), None),
        "is_beyond": any(one.value is not None and not low <= one.value <= high for one in evaluated),
        "others": sum(run.evaluated is not None and run.evaluated.metric != metric for run in history.runs),
        "shown": list(reversed(history.runs))[:ROWS],
    }
