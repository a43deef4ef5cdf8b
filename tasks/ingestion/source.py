"""Open a source of rows; each kind of source is a module of its own, and checks all that can be checked without rows or a server.

A source has `splits`, of which `train` is the first, and a `revision`, a string that changes when the rows do; only the rows of a
database can change without it. It has two methods for a split. `batches` yields its rows in order. `indexes` returns its files, if they
can be read from any row on; else None. Both raise a DataError with the address of what cannot be read, and a TransientError if a server
cannot be reached.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from params import EvergreenError
from params.sections.data import RowsFromFiles, RowsFromFunction, RowsFromHubDataset, RowsFromSql

if TYPE_CHECKING:
    from tasks.ingestion.files import FileSource
    from tasks.ingestion.function import FunctionSource
    from tasks.ingestion.hub_dataset import HubSource
    from tasks.ingestion.sql import SqlSource

logger = logging.getLogger(__name__)
OpenedSource: TypeAlias = "FileSource | HubSource | SqlSource | FunctionSource"


def open_source(
    source: RowsFromFiles | RowsFromHubDataset | RowsFromSql | RowsFromFunction,
    root: Path = Path(),
    memory: Callable[[str], Path | None] = lambda _: None,
) -> OpenedSource:
    """Open the source of a recipe; its paths are relative to `root`, and `memory` names files that remember what a look at its files found.

    Raises:
        RecipeError: a module, function or environment variable that the recipe names does not exist.
        DataError: no file matches a pattern.
    """
    if isinstance(source, RowsFromFiles):
        from tasks.ingestion.files import FileSource

        return FileSource(source.patterns, root, source.text_unit, memory=memory)
    if isinstance(source, RowsFromHubDataset):
        from tasks.ingestion.hub_dataset import HubSource

        return HubSource(source, memory)
    if isinstance(source, RowsFromSql):
        from tasks.ingestion.sql import SqlSource

        return SqlSource(source, root)
    from tasks.ingestion.function import FunctionSource

    return FunctionSource(source)


def wait_for_answers(corrections: RowsFromFiles, root: Path = Path()) -> bool:
    """Whether corrections are files that match a pattern, and there is none yet: before the first answer of a review. It is said."""
    patterns = [*corrections.patterns.values()]
    for pattern in patterns:
        is_named = not any(sign in pattern for sign in "*?[") or (root / pattern).exists()
        if is_named or glob.glob(pattern, root_dir=root, recursive=True):  # noqa: PTH207 - takes absolute paths too
            return False
    logger.warning("data.corrections: no file matches %s yet, so no label is corrected", ", ".join(patterns))
    return True


@contextlib.contextmanager
def naming_source(key: str) -> Iterator[None]:
    """Let errors of a source name its own key, `data.corpus` or `evaluation.suites.0.source`, instead of `data.source`."""
    try:
        yield
    except EvergreenError as error:
        if key == "data.source":
            raise
        texts = {
            name: re.sub(r"\bdata\.source\b", key, getattr(error, name)) for name in ("where", "what", "fix", "key")
        }
        raise error.replace(**texts) from error
