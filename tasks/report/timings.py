"""Time and memory of each stage, kept outside the artifacts, which hold no times."""

from __future__ import annotations

from typing import Literal

import pydantic

from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.stages import Report, save_report


class StageTiming(Report):
    """Time and memory of a stage's last run."""

    stage: str
    seconds: float
    """From its start to its end."""
    peak_memory_mib: float | None = None
    """Peak memory of all its processes together, in MiB."""
    outcome: Literal["ran", "failed"]
    """How it ended."""
    error: str = ""
    """The error that it failed with; empty if it did not fail."""

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"


def save_timing_drop_later_failures(artifacts: Artifacts, timing: StageTiming) -> None:
    """Save time and memory of a stage, and delete failures of later stages, which belong to an earlier run.

    Raises:
        StorageError: the disk is full or read-only.
    """
    save_report(timing, artifacts.timings / f"{timing.stage}.json")
    for stage, earlier in read_timings(artifacts).items():
        if earlier.failed and STAGES.index(stage) > STAGES.index(timing.stage):
            (artifacts.timings / f"{stage}.json").unlink()


def read_timings(artifacts: Artifacts) -> dict[str, StageTiming]:
    """Return time and memory by stage, in the order of the stages; a stage without a record is left out."""
    found = {}
    for stage in STAGES:
        try:
            found[stage] = StageTiming.model_validate_json((artifacts.timings / f"{stage}.json").read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            continue
    return found
