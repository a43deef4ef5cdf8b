"""A published model as the start of a training, pinned as the validate stage does it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from params.foundation.artifacts import Artifacts
from trainer.start import KNOWN, MODEL, RECORD, ReleaseReference

RELEASE = ReleaseReference(endpoint="local", repo_id="tests/tiny", commit="c" * 40, tag="release-1", weights="w" * 64)


def pin(artifacts: Artifacts, model: Path, known: Sequence[int] | None = None) -> Path:
    """Let trainings start from the model in a folder, which has learned from the rows with the ids `known`; the folder of the copy."""
    shutil.rmtree(artifacts.start, ignore_errors=True)
    shutil.copytree(model, artifacts.start / MODEL)
    (artifacts.start / RECORD).write_text(RELEASE.model_dump_json())
    if known is not None:
        np.save(artifacts.start / KNOWN, np.array(sorted(known), np.int64))
    return artifacts.start / MODEL
