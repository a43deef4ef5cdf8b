"""What stages leave: their reports, and lines of logs that git keeps."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

import pydantic

from params import ModelError
from params.foundation import command_result
from params.foundation.artifacts import Artifacts, write_text_atomically
from params.foundation.file_lock import hold_file_lock
from params.foundation.stages import stage_of_report

logger = logging.getLogger(__name__)

Number = Annotated[float, pydantic.BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number of a report that may be NaN, for which JSON has only null."""


class Report(pydantic.BaseModel):
    """What a stage did, as JSON. It holds no times and no dates: the same work gives the same bytes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    saved_as: ClassVar[str] = ""
    """The report's name in `Artifacts.report`; empty for a record inside another report."""

    @property
    def summary(self) -> str:
        """What a stage did, in a few words for its last line; empty where its other lines say it."""
        return ""


ReportT = TypeVar("ReportT", bound=Report)


class ReportWithFindings(Report):
    """A report that also has what measurements found (tasks/measurement.py), under keys that it does not know."""

    model_config = pydantic.ConfigDict(extra="allow")

    def findings(self, kind: type[ReportT]) -> ReportT:
        """Return what a measurement found, by its fields; their defaults where the report lacks them, or has them in the form of another version."""
        there = self.model_extra or {}
        try:
            return kind.model_validate({name: there[name] for name in kind.model_fields if name in there})
        except pydantic.ValidationError as error:
            logger.warning("%s: left out %s: %s", self.saved_as, ", ".join(kind.model_fields), error.errors()[0]["msg"])
            return kind()

    def with_findings(self, found: Report) -> Self:
        """Return a report that has these findings, too.

        Raises:
            TypeError: the report has one of the keys already, or the findings cannot be read back, so that the gate would not know them.
        """
        added, kind = json.loads(found.model_dump_json()), type(found)
        taken = added.keys() & (type(self).model_fields.keys() | (self.model_extra or {}).keys())
        if taken:
            raise TypeError(
                f"{kind.__name__}: {self.saved_as} has {', '.join(sorted(taken))} already: give the fields other names"
            )
        try:
            kind.model_validate(added)
        except pydantic.ValidationError as error:
            raise TypeError(f"{kind.__name__} cannot be read back from JSON: {error}") from error
        return self.model_copy(update=added)


def log_reasons(own: logging.Logger, stage: str, verdict: str, reasons: Iterable[str]) -> None:
    """Say to the stage's own logger why a model is published or not. The flow says it at its end: of a stage that it has started, only the log has it."""
    level = logging.DEBUG if command_result.has_starter() else logging.INFO
    for reason in reasons:
        own.log(level, "%s: %s: %s", stage, verdict, reason)


def save_report(report: Report, path: Path) -> None:
    """Write a report as JSON; equal reports give equal bytes."""
    write_text_atomically(path, report.model_dump_json(indent=2) + "\n")


def read_report(artifacts: Artifacts, kind: type[ReportT]) -> ReportT:
    """Return a report of a run as the stage saved it.

    Raises:
        ModelError: the file is missing or damaged, or another version of Evergreen wrote it.
    """
    path, stage = artifacts.report(kind.saved_as), stage_of_report(kind.saved_as).name
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        what, fix = "is missing", f"run `evergreen {stage} {artifacts.recipe_path}` first"
    except OSError as error:
        what, fix = f"cannot be read: {error.strerror}", "check the disk and the file's permissions"
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        is_damaged = first["type"] == "json_invalid"
        what = "is damaged: " if is_damaged else f"was written by another version of Evergreen: {key}: "
        what, fix = what + first["msg"], f"run `evergreen {stage} {artifacts.recipe_path}` again"
    raise ModelError(str(path), what, fix)


def append_to_log_once(
    artifacts: Artifacts, path: Path, entry: ReportT, is_same: Callable[[ReportT, ReportT], bool]
) -> None:
    """Append an entry to a log that git keeps, a line of JSON, after the copy of it in `Artifacts.unrecorded`.

    Nothing happens if the log has the same entry: then the same work was done again.

    Raises:
        StorageError: the disk is full or read-only; the log is as it was.
        TransientError: another process has been writing to a log for half a minute.
    """
    with hold_file_lock(artifacts.log_lock, f"a write to {path}", wait_s=30.0):
        line = entry.model_dump_json()
        entry = type(entry).model_validate_json(line)  # as JSON has it: NaN becomes null, for example
        if any(is_same(earlier, entry) for earlier in read_log_and_unrecorded(artifacts, path, type(entry))):
            return
        for log in (artifacts.unrecorded / path.name, path):
            before = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            end = "\n" if before and not before.endswith("\n") else ""
            write_text_atomically(log, f"{before}{end}{line}\n")


def append_to_log_in_git(artifacts: Artifacts, path: Path, entry: Report) -> None:
    """Append an entry to a log that git keeps, and nowhere else: it is what a person says, and whoever takes it out of the log takes it back.

    Lines that no branch may have yet come before it, because they are older.

    Raises:
        StorageError, TransientError: as `append_to_log_once`.
    """
    with hold_file_lock(artifacts.log_lock, f"a write to {path}", wait_s=30.0):
        lines = dict.fromkeys(
            line
            for log in (path, artifacts.unrecorded / path.name)
            for line in (log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else ())
            if line
        )
        write_text_atomically(path, "".join(f"{line}\n" for line in [*lines, entry.model_dump_json()]))


def read_log_and_unrecorded(artifacts: Artifacts, path: Path, kind: type[ReportT]) -> list[ReportT]:
    """Return the entries of a log, without damaged lines; then those that no branch may have yet.

    `git reset` takes lines out of the log that were not recorded. What they say has happened all the same.
    """
    return read_logs((path, artifacts.unrecorded / path.name), kind)


def read_logs(logs: Iterable[Path], kind: type[ReportT]) -> list[ReportT]:
    """Return the entries of several logs, each line once, without damaged lines."""
    entries, known = [], set[bytes]()
    for log in logs:
        for number, line in enumerate(log.read_bytes().split(b"\n") if log.exists() else (), start=1):
            if not line or line in known:
                continue
            known.add(line)
            try:
                entries.append(kind.model_validate_json(line))
            except ValueError:
                logger.warning("%s:%d: ignored, because the line is damaged", log, number)
    return entries


def list_runs_with_log(artifacts: Artifacts) -> list[Artifacts]:
    """Return the runs of the project whose log of releases has lines, by name, also of recipes that are no longer there.

    In a clone, lines that no branch may have yet are outside of the log.
    """
    log, names = artifacts.release_events, set[str]()
    places = (
        (artifacts.run.parent, log.relative_to(artifacts.run)),
        (artifacts.kept.parent, artifacts.unrecorded.relative_to(artifacts.kept) / log.name),
    )
    for folder, path in places:
        names |= {found.relative_to(folder).parts[0] for found in folder.glob(f"*/{path}")}
    return [Artifacts(name, artifacts.root) for name in sorted(names)]
