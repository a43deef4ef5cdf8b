"""The history of all runs: what each run of the flow adds to it, and `evergreen history`."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.run.schedules import last_successes, read_schedules
from params import EvergreenError
from params.foundation.artifacts import Artifacts
from tasks.history.cells import markdown_table, terminal_table
from tasks.history.recipe_history import RecipeHistory, read_histories, read_runs_with_receipts
from tasks.history.run_log import now
from tasks.history.run_record import RunRecord

logger = logging.getLogger(__name__)
_IN_PREFECT = 10
"""Runs in the table that Prefect's UI shows."""


@contextlib.contextmanager
def log_flow_run(artifacts: Artifacts) -> Iterator[RunRecord]:
    """Log the flow run that the block does, if it does something, and bring the page of all runs up to date."""
    from prefect.runtime import flow_run

    run = RunRecord(artifacts, run_id=flow_run.id or "")
    try:
        with run:
            yield run
    finally:
        if run.entry and run.entry.outcome != "cancelled":  # then there is little time
            _show(artifacts)


def _show(artifacts: Artifacts) -> None:
    """Write the page, and show the last runs in Prefect's UI; that this fails is no failure of the run."""
    from flows.run.prefect_artifacts import show_history

    try:
        _, page = _page(artifacts.root)
        runs = read_runs_with_receipts(artifacts)[: -_IN_PREFECT - 1 : -1]
        text = f"{markdown_table(runs)}\n\nAll runs: [{page}]({page.resolve().as_uri()})"
        show_history(artifacts, text)
    except EvergreenError as error:
        logger.warning("the page of all runs could not be written: %s", error)
    except Exception:
        logger.warning("the page of all runs could not be written", exc_info=True)


def _page(root: Path) -> tuple[list[RecipeHistory], Path]:
    from tasks.history.page import write_page

    time = now()
    schedules = read_schedules(root, time)
    histories = read_histories(root, schedules, last_successes(list(schedules)))
    return histories, write_page(root, histories, now=time)


def history(recipe: str | None, *, as_json: bool, last: int) -> None:
    """Print the last runs of one recipe or of all, newest first, and write the page of all runs."""
    if as_json:
        logging.basicConfig(stream=sys.stderr, format="%(message)s", force=True)  # standard output is only JSON
    histories, page = _page(Path())
    runs = [run for one in histories if recipe in (None, one.recipe) for run in one.runs]
    runs = sorted(runs, key=lambda run: run.started, reverse=True)[:last]
    if as_json:
        print(json.dumps([run.model_dump(mode="json") for run in runs], indent=1))
        return
    print("\n".join(terminal_table(runs)) if runs else "No run is logged yet.")
    for one in histories:
        if one.is_overdue and recipe in (None, one.recipe):
            since = f"{one.succeeded:%Y-%m-%d %H:%M} UTC" if one.succeeded else "its first run"
            print(f"overdue: {one.recipe} has not succeeded since {since}")
    print(f"page: {page}")
