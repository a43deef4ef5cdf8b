"""One stage as a command: what it took is recorded, and the run's page is brought up to date where the run ends."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from params import EvergreenError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts
from params.foundation.secrets import without_secrets
from trainer.reporting import log

logger = logging.getLogger(__name__)


def run_stage_as_command(stage: str, recipe: Path) -> None:
    """Run a stage, and say what it did; its whole report is in its log, `Artifacts.stage_log`."""
    path = Artifacts(recipe.stem).stage_log(stage)
    log.set_large_log_aside(path)
    with log.log_to_file(path):
        try:
            _run_stage(stage, recipe)
        except BaseException as error:
            logger.debug("%s: %s", type(error).__name__, without_secrets(str(error)), exc_info=True)
            raise


def _run_stage(stage: str, recipe: Path) -> None:
    from tasks import stage_run
    from tasks.report.timings import StageTiming, save_timing_drop_later_failures

    start = time.monotonic()
    logger.info("%s: %s", stage, recipe)
    failed, page_due = "", stage == "publish"
    try:
        with command_result.explain_keyboard_interrupt(
            f"{stage} has not ended\n  start again: the stages before it are kept"
        ):
            report = stage_run.run_stage(stage, recipe)
        if stage == "evaluate":
            from tasks.training.stage import delete_recorded_run_folder  # not before `run` has read the stage's inputs

            delete_recorded_run_folder(Artifacts(recipe.stem))
        for line in _report_lines(report.model_dump(mode="json")):
            logger.debug("%s: %s", stage, line)
    except BaseException as error:
        failed = without_secrets(str(error)) or type(error).__name__
        page_due = page_due or isinstance(error, EvergreenError)
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
    logger.info("%s: done in %.1f s%s", stage, seconds, f": {report.summary}" if report.summary else "")


def _report_lines(report: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the values of a report: nested names joined by dots, of a list only its length."""
    for name, value in report.items():
        if isinstance(value, Mapping):
            yield from _report_lines(value, f"{prefix}{name}.")
        else:
            shown = len(value) if isinstance(value, list) else f"{value:.6g}" if isinstance(value, float) else value
            yield f"{prefix}{name}: {shown}"


def _write_page(artifacts: Artifacts) -> None:
    """Write the run's page; that it cannot be written is no failure of the run."""
    try:
        from tasks.report.page import write_run_report_page

        logger.info("report: %s", write_run_report_page(artifacts))
    except EvergreenError as error:
        logger.info("report: %s: %s", error.where, error.what)
    except Exception:
        logger.warning("the report could not be written", exc_info=True)
