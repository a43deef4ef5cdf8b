"""Where rows come from: one module for each kind of source.

Opening a source finds what is wrong with it at once, as far as it can be told without reading rows or asking a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from params.schema import Files, Function, HubDataset, Sql
from tasks.ingestion.batches import Batches


class Source(Protocol):
    """Rows, once opened."""

    @property
    def splits(self) -> Sequence[str]:
        """The splits that the source itself tells apart; `train` is the first."""

    @property
    def revision(self) -> str:
        """What the rows depend on, as one string: the same revision gives the same rows (a database apart)."""

    def batches(self, split: str) -> Batches:
        """The rows of a split, in order.

        Raises:
            DataError: a row cannot be read; the error says which.
            TransientError: a server cannot be reached.
        """


def open_source(source: Files | HubDataset | Sql | Function, root: Path = Path()) -> Source:
    """The source that a recipe describes; paths in it are relative to `root`.

    Raises:
        RecipeError: the recipe names what does not exist: a module, a function, an environment variable.
        DataError: no file matches a pattern.
    """
    if isinstance(source, Files):
        from tasks.ingestion.files import FileSource

        return FileSource.from_recipe(source, root)
    if isinstance(source, HubDataset):
        from tasks.ingestion.hub_dataset import HubSource

        return HubSource(source)
    if isinstance(source, Sql):
        from tasks.ingestion.sql import SqlSource

        return SqlSource(source, root)
    from tasks.ingestion.function import FunctionSource

    return FunctionSource(source)
