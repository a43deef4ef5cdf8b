"""What a training says of the rows that it has learned from and of the models that it goes back to, in a file beside its model (`KNOWN_ROWS`).

tokenize writes beside the tokens which rows they are of, and the training adds what its start and its base had learned from. Later, the recipe's
rows, its start and its base may be others. The file goes wherever the model's folder goes: into a copy, into another project, into a release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel

from params.foundation.artifacts import KNOWN_ROWS
from tasks.digests import RecordOfRows, ReleasedModel
from tasks.known_rows.hashes import KnownHashes, Part, read_hashes_of_file, read_metadata, write_hashes
from tasks.known_rows.rows import ComparedColumns
from tasks.shards.kept_work import ShardWorkers
from tasks.shards.split_rows import SplitRows
from tasks.shards.times import NO_TIME, iso_text, read_times
from trainer.objectives.bases.objective import Objective

_KEY: Final = b"evergreen.training"


class RecordedAncestor(BaseModel):
    """A model that the training goes back to, as `tasks.lineage.ancestors.Ancestor` describes it."""

    name: str
    is_of_base: bool = False
    through: str = ""
    endpoint: str = ""
    unknown: str = ""
    published: tuple[ReleasedModel, ...] = ()
    goes_back_to: tuple[ReleasedModel, ...] = ()


class SaidOfRows(BaseModel):
    """What such a file says beside the hashes: of the rows of each part, and of the models that the training goes back to."""

    own: RecordOfRows = RecordOfRows()
    start: RecordOfRows = RecordOfRows()
    base: RecordOfRows = RecordOfRows()
    ancestors: tuple[RecordedAncestor, ...] | None = None
    """None beside tokens, and in a file that does not say it."""


@dataclass(frozen=True)
class TrainingRecord:
    """All rows that a model has learned from, by who has: its training itself, the start of that, or its base."""

    rows: Mapping[Part, KnownHashes]
    said: SaidOfRows

    @classmethod
    def read(cls, file: Path, columns: ComparedColumns) -> Self:
        """Read it, to look for rows with these columns; ValueError if the file is damaged, or of rows with others."""
        said = read_metadata(file).get(_KEY)
        if said is None:
            raise ValueError("no training of this version has written it")
        return cls(read_hashes_of_file(file, columns, by_input=True), SaidOfRows.model_validate_json(said))

    def write(self, columns: ComparedColumns, folder: Path) -> None:
        """Write it into a folder; equal rows give equal bytes."""
        write_hashes(self.rows, columns, folder / KNOWN_ROWS, {_KEY: self.said.model_dump_json().encode()})


def read_recorded_ancestors(file: Path) -> tuple[RecordedAncestor, ...] | None:
    """Return the models that a training goes back to, from the file beside its model; None if nothing there says it."""
    try:
        said = read_metadata(file).get(_KEY)
        return SaidOfRows.model_validate_json(said).ancestors if said else None
    except (OSError, ValueError):
        return None


def record_train_rows(
    folder: Path, rows: Mapping[str, SplitRows], objective: Objective[Any], workers: ShardWorkers
) -> None:
    """Write into a folder which rows a training of these splits learns from."""
    columns = ComparedColumns.of_objective(objective)
    times = rows["train"].times
    until = _find_newest([rows["train"], rows["validation"]], times["column"]) if times else ""
    own = RecordOfRows(learned_until=until, split="time" if times.get("split") == "time" else "hash")
    found = KnownHashes.of(rows["train"], columns, workers)
    TrainingRecord({"own": found}, SaidOfRows(own=own)).write(columns, folder)


def _find_newest(splits: Sequence[SplitRows], column: str) -> str:
    batches = (batch for rows in splits for batch in rows.batches([column]))
    newest = max((int(read_times(batch[column]).max(initial=NO_TIME)) for batch in batches), default=NO_TIME)
    return iso_text(newest) if newest != NO_TIME else ""
