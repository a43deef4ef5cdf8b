"""Rows that a Python function yields, one dictionary per row."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from params import DataError, EvergreenError, RecipeError, TransientError
from params.importing import ImportedNames, import_by_name, import_root, transitively_imported_files
from params.sections.data import RowsFromFunction
from tasks.ingestion.batches import AddressedRows, Batches, to_batches
from tasks.ingestion.connections import is_connection_error

_PROJECT = Path(__file__).parents[2]


def find_imports_beyond_ingest(module: Path) -> dict[str, Path]:
    """Return the files of the project that a module of a source imports and the ingest stage does not, by their path in the project."""
    root = import_root(module)
    stage = ImportedNames([_PROJECT / "tasks/ingestion/stage.py"], _PROJECT)
    found = transitively_imported_files([module], root, stage.__contains__)
    return {path.relative_to(root).as_posix(): path for path in found if path != module}


class FunctionSource:
    """A function that yields rows; it is called when the first row is read.

    Raises:
        RecipeError: the function does not exist, or does not accept the recipe's arguments.
    """

    splits: Sequence[str] = ("train",)

    def __init__(self, source: RowsFromFunction) -> None:
        self._name = source.function
        self._arguments = source.arguments
        self._function = import_by_name(source.function, "data.source.function")
        signature = "unknown"
        try:
            found = inspect.signature(self._function)
            signature = str(found)
            found.bind(**source.arguments)
        except (TypeError, ValueError) as error:
            what = f"`{self._name}` cannot be called with them: {error}"
            fix = f"give the arguments of its signature, {signature}"
            raise RecipeError.at("data.source.arguments", what, fix) from error

    @cached_property
    def revision(self) -> str:
        """SHA-256 of the function's module, the arguments, and what the module imports from the project."""
        module = Path(inspect.getsourcefile(inspect.unwrap(self._function)) or "")
        arguments = json.dumps(self._arguments, sort_keys=True, default=str).encode()
        found = hashlib.sha256((module.read_bytes() if module.is_file() else b"") + bytes(1) + arguments)
        for name, path in sorted(find_imports_beyond_ingest(module).items()) if module.is_file() else ():
            found.update(f"\0{name}\0".encode() + path.read_bytes())
        return f"sha256:{found.hexdigest()}"

    def batches(self, split: str) -> Batches:
        return to_batches(self._rows())

    def indexes(self, split: str) -> None:
        return None

    def _rows(self) -> AddressedRows:
        for index, row in enumerate(self._call()):
            where = f"{self._name} row {index}"
            if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
                found = (
                    f"a dict with the keys {list(row)}"
                    if isinstance(row, dict)
                    else f"a value of type {type(row).__name__}"
                )
                raise DataError(where, f"is {found}", 'yield one dict per row, with strings as keys: {"text": "..."}')
            yield where, row

    def _call(self) -> Iterator[object]:
        count = 0
        try:
            for row in self._function(**self._arguments):
                yield row
                count += 1
        except EvergreenError:
            raise
        except Exception as error:
            where, what = f"{self._name} row {count}", f"the function raised {type(error).__name__}: {error}"
            if is_connection_error(error):
                fix = "run this again when what it reads from answers; if it does, fix the function"
                raise TransientError(where, what, fix) from error
            raise DataError(where, what, "fix the function, or the data that it reads") from error
