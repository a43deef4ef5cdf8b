"""The report of a run outside of its clone, which is deleted: a copy beside what no branch has yet (`Artifacts.kept`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from params import EvergreenError
from params.foundation.artifacts import Artifacts, write_text_atomically

_KEPT: Final = 30
"""How many runs of a recipe keep their reports on a worker; the recorded ones on git all stay."""
_VALIDATION: Final = "validation.html"
_copies: dict[Artifacts, Path] = {}
"""Those that this process has made."""


def report_to_open(artifacts: Artifacts) -> Path | None:
    """Return the run's report: the copy of this process if there is one; None if this machine has no report."""
    return next((path for path in (_copies.get(artifacts), artifacts.page) if path and path.exists()), None)


def report_line(artifacts: Artifacts) -> str | None:
    """Return a line for people that says where the run's report is; None if this machine has none."""
    page = report_to_open(artifacts)
    return f"report: {page.resolve().as_uri()} on {socket.gethostname()}" if page else None


def recorded_report_lines(commands: Sequence[str]) -> list[str]:
    """Return a line for people for each command that shows a recorded report."""
    return [f"report without rows of the data: {command}" for command in commands]


def with_report(error: EvergreenError, artifacts: Artifacts, shown: Sequence[str]) -> EvergreenError:
    """Return the error of a run with the place of its report, if that outlives the clone, and the commands that show the recorded one."""
    fix, lines = error.fix, recorded_report_lines(shown)
    if copy := _copies.get(artifacts):
        fix = fix.replace(str(artifacts.failed_validation / "report.html"), str(copy.with_name(_VALIDATION)))
        lines = [*filter(None, [report_line(artifacts)]), *lines]
    return error.replace(fix="\n  ".join([fix, *lines])) if lines else error


def keep_report(artifacts: Artifacts, run_id: str | None) -> None:
    """Copy the run's report, and that of the validation to which it links, out of a clone that will be deleted."""
    if artifacts.kept == artifacts.scratch or not artifacts.page.exists():
        return
    with contextlib.suppress(OSError, EvergreenError):  # no run fails for its report
        folder, text = artifacts.reports / str(run_id), artifacts.page.read_text(encoding="utf-8")
        for checked in (artifacts.failed_validation / "report.html", artifacts.validated / "report.html"):
            link = f'href="{Path(os.path.relpath(checked, artifacts.run)).as_posix()}"'
            if link in text and checked.is_file():
                text = text.replace(link, f'href="{_VALIDATION}"')
                write_text_atomically(folder / _VALIDATION, checked.read_text(encoding="utf-8"))
        write_text_atomically(folder / artifacts.page.name, text)
        _copies[artifacts] = folder / artifacts.page.name
        for old in sorted(artifacts.reports.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
