"""The published model that a training starts from, as the validate stage has pinned it.

Its folder is `Artifacts.start`:

start/start.json    which release it is (`ReleaseReference`); `null` if the training starts from the recipe's own model
start/model/        its files
start/known.npy     with `training.replay`: the row_ids of the train rows that it learned from, ascending
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pydantic
from numpy.typing import NDArray

from params import DataError
from params.foundation.artifacts import Artifacts
from params.schema import Start

RECORD: Final = "start.json"
MODEL: Final = "model"
KNOWN: Final = "known.npy"


class ReleaseReference(pydantic.BaseModel):
    """A model that a repository on a Hub holds, or held."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")
    endpoint: str
    """Address of its Hub, or `local`."""
    repo_id: str
    commit: str
    tag: str | None
    """Tag of the commit, if it has one."""
    weights: str
    """Digest of its weights, see `tasks.digests.weights_digest`."""
    learned_until: str = ""
    """Where a training starts from it: the time of the newest row that it has learned from, if its rows had times."""

    @property
    def where(self) -> str:
        return f"{self.endpoint}/{self.repo_id}"

    @property
    def name(self) -> str:
        """The release in messages, as commands take it."""
        return f"{self.repo_id}@{self.tag or self.commit}"


def read_pinned_start(artifacts: Artifacts, start: Start) -> ReleaseReference | None:
    """Return the release that a training starts from; None if it starts from the recipe's own model.

    Raises:
        DataError: the validate stage has not pinned any.
    """
    if start == "base":
        return None
    path = artifacts.start / RECORD
    try:
        found = json.loads(path.read_bytes())
        return None if found is None else ReleaseReference.model_validate(found)
    except (OSError, ValueError) as error:
        fix = f"run `evergreen validate {artifacts.recipe_path}` again"
        raise DataError(str(path), f"does not say which model the training starts from: {error}", fix) from None


def start_model_folder(artifacts: Artifacts, start: Start) -> Path | None:
    """Return the folder of the published model that a training starts from; None if it starts from the recipe's own."""
    return (artifacts.start / MODEL).absolute() if read_pinned_start(artifacts, start) else None


def read_known_row_ids(start: Path | None) -> NDArray[np.int64] | None:
    """Return the ids of the train rows that the published model in the folder `start` knows, (K,) ascending; None if that was not asked."""
    path = start.with_name(KNOWN) if start else None
    return np.load(path) if path and path.exists() else None
