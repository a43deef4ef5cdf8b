"""The interface of a source of rows; each kind of source is a module of its own.

Opening a source checks all that can be checked without reading rows or asking a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from params.schema import Files, Function, HubDataset, Sql
from tasks.ingestion.batches import Batches
from tasks.ingestion.file_index import FileIndex


class OpenedSource(Protocol):
    """An open source of rows."""

    @property
    def splits(self) -> Sequence[str]:
        """The splits that the source has; `train` is the first."""

    @property
    def revision(self) -> str:
        """A string that changes when the rows do; only the rows of a database can change without it."""

    def batches(self, split: str) -> Batches:
        """Yield the rows of a split, in order.

        Raises:
            DataError: a row cannot be read; the error gives its address.
            TransientError: a server cannot be reached.
        """

    def indexes(self, split: str) -> Sequence[FileIndex] | None:
        """Return the files of a split, if they can be read from any row on; else None.

        Raises:
            DataError: a file is empty or unreadable.
            TransientError: a server cannot be reached.
        """


def open_source(source: Files | HubDataset | Sql | Function, root: Path = Path()) -> OpenedSource:
    """Open the source of a recipe; its paths are relative to `root`.

    Raises:
        RecipeError: a module, function or environment variable that the recipe names does not exist.
        DataError: no file matches a pattern.
    """
    if isinstance(source, Files):
        from tasks.ingestion.files import FileSource

        return FileSource(source.patterns, root, source.text_unit)
    if isinstance(source, HubDataset):
        from tasks.ingestion.hub_dataset import HubSource

        return HubSource(source)
    if isinstance(source, Sql):
        from tasks.ingestion.sql import SqlSource

        return SqlSource(source, root)
    from tasks.ingestion.function import FunctionSource

    return FunctionSource(source)
