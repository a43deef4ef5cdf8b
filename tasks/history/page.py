"""The page of all runs: one HTML file made from the logs, in the style of the report of a run.

    runs/index.html

It loads and executes nothing, and all text from the logs is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from params.foundation.stages import STAGES
from tasks.history import cells
from tasks.history.metric_chart import axis_range, draw_metric_history, runs_with_deciding_metric
from tasks.history.recipe_history import RecipeHistory
from tasks.report.canvas import figure_as_svg
from tasks.report.templates import render_template

PAGE = Path("runs", "index.html")
ROWS = 100
"""Runs in the table of a recipe; the chart shows all."""
_DAYS = 30
"""The days that the sums are about."""
_WAIT_S = 30.0


def write_history_page(root: Path, histories: Sequence[RecipeHistory], *, now: datetime) -> Path:
    """Write the page, and return its path.

    Raises:
        StorageError: the disk is full or read-only.
        TransientError: another process has been writing the page for half a minute.
    """
    with hold_file_lock(root / ".scratch" / "history-page.lock", f"a write to {PAGE}", wait_s=_WAIT_S):
        write_text_atomically(root / PAGE, render_history_page(root, histories, now=now))
    return root / PAGE


def render_history_page(root: Path, histories: Sequence[RecipeHistory], *, now: datetime) -> str:
    recipes = [_recipe(root, history, now) for history in histories]
    return render_template("history/page.html.jinja", {"now": now, "days": _DAYS, "cells": cells, "recipes": recipes})


def _recipe(root: Path, history: RecipeHistory, now: datetime) -> dict[str, Any]:
    """Return what the page shows of one recipe."""
    recent = history.since(_DAYS, now)
    by_stage = {stage: sum(run.stages[stage].seconds for run in recent if stage in run.stages) for stage in STAGES}
    metric, judged = runs_with_deciding_metric(history.runs)
    report = Artifacts(history.recipe, root).page
    return {
        "name": history.recipe,
        "history": history,
        "is_bad": history.last is not None and cells.TONES[history.last.outcome] == "bad",
        "report": f"{history.recipe}/{report.name}" if report.exists() else "",
        "recent": recent,
        "hours": {stage: seconds for stage, seconds in by_stage.items() if seconds},
        "metric": metric,
        "judged": [one for _, one in reversed(judged)],
        "range": axis_range(judged) if judged else None,
        "chart": figure_as_svg(draw_metric_history(history.runs)) if judged else None,
        "shown": list(reversed(history.runs))[:ROWS],
    }
