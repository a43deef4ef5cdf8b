"""One stage as a command: what it took is recorded, and the run's page is brought up to date where the run ends."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from params import EvergreenError, TransientError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import without_secrets


def run_stage_as_command(stage: str, recipe: Path) -> None:
    """Run a stage and print its report."""
    from tasks import stages
    from tasks.report.timings import StageTiming, save_timing_drop_later_failures

    start = time.monotonic()
    print(f"{stage}: {recipe}", flush=True)
    failed, page_due = "", stage == "publish"
    try:
        with command_result.explain_keyboard_interrupt(
            f"{stage} has not ended\n  start again: the stages before it are kept"
        ):
            report = stages.run_stage(stage, recipe)
        if stage == "evaluate":
            from tasks.training.stage import delete_recorded_run_folder  # not before `run` has read the stage's inputs

            delete_recorded_run_folder(Artifacts(recipe.stem))
        _print(report.model_dump(mode="json"))
    except BaseException as error:
        failed = without_secrets(str(error)) or type(error).__name__
        page_due = page_due or (isinstance(error, EvergreenError) and not isinstance(error, TransientError))
        raise
    finally:
        seconds = time.monotonic() - start
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        timing = StageTiming(
            stage=stage,
            seconds=round(seconds, 2),
            peak_memory_mib=round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1),
            outcome="failed" if failed else "ran",
            error=failed,
        )
        with contextlib.suppress(EvergreenError):  # a full disk, which fails the stage itself if it needs to write
            save_timing_drop_later_failures(Artifacts(recipe.stem), timing)
        if page_due:
            _write_page(Artifacts(recipe.stem))
    print(f"{stage}: done in {seconds:.1f} s", flush=True)


def _print(report: Mapping[str, Any], prefix: str = "  ") -> None:
    """Print the values of a report: nested names joined by dots, of a list only its length."""
    for name, value in report.items():
        if isinstance(value, Mapping):
            _print(value, f"{prefix}{name}.")
        else:
            shown = len(value) if isinstance(value, list) else f"{value:.6g}" if isinstance(value, float) else value
            print(f"{prefix}{name}: {shown}")


def _write_page(artifacts: Artifacts) -> None:
    """Write the run's page; that it cannot be written is no failure of the run."""
    try:
        from tasks.report.page import write_run_report_page

        print(f"report: {write_run_report_page(artifacts)}", flush=True)
    except EvergreenError as error:
        print(f"report: {error.where}: {error.what}", flush=True)
    except Exception:
        logging.getLogger(__name__).warning("the report could not be written", exc_info=True)
