"""What a training says of the rows that it has learned from, in a file beside its model (`KNOWN_ROWS`).

It is written when the training ends: later, its rows and its base may be others. The file goes wherever the model's folder goes: into a copy,
into another project, into a release. It has the hashes of all rows, and says which of them the start or the base had learned from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel

from tasks.digests import RecordOfRows
from tasks.drift.known import KnownHashes, read_hashes_of_file, read_metadata, write_hashes
from tasks.drift.rows import ComparedColumns

_KEY: Final = b"evergreen.training"


class SaidOfRows(BaseModel):
    """What such a file says beside the hashes."""

    own: RecordOfRows
    """Of the rows of the training itself."""
    before: RecordOfRows
    """Of those that its start and its base had learned from."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read it; ValueError if the file is damaged, or no training has written it."""
        return cls.model_validate_json(read_metadata(file).get(_KEY, b""))


@dataclass(frozen=True)
class RowsOfTraining:
    """All rows that a model has learned from."""

    every: KnownHashes
    before: KnownHashes
    """Those that its start and its base had learned from."""

    @classmethod
    def read(cls, file: Path, columns: ComparedColumns) -> Self:
        """Read them, to look for rows with these columns; ValueError if the file is damaged, or of rows with others."""
        return cls(*read_hashes_of_file(file, columns, by_input=True))

    def write(self, said: SaidOfRows, columns: ComparedColumns, file: Path) -> None:
        """Write them; equal rows give equal bytes."""
        own = {_KEY: said.model_dump_json().encode()}
        write_hashes(self.every, columns, file, before=self.before, said=own)
