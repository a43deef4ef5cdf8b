"""Which rows of a source are taken, and what their columns are called: `columns`, `where` and the like in a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa

from params import DataError, EvergreenError, RecipeError
from params.foundation.hashing import file_sha256
from params.importing import find_named_source_files, import_by_name
from params.loading import suggestion
from params.sections.data import Source
from tasks.ingestion.batches import SourceBatch, rename_columns
from tasks.ingestion.function import find_imports_beyond_ingest
from tasks.ingestion.split_assigner import canonical_json
from trainer.column_template import PromptTemplate

SOURCE: Final = "source"
"""The column that says which of several sources a row is from."""


def source_name(key: str) -> str:
    """Return the name of one source among several; empty for a single one."""
    return key.partition("data.sources.")[2]


@dataclass(frozen=True)
class RowChoice:
    """What is taken of a source, and under which names. It has all that the result depends on, the code of a function included."""

    key: str
    """Of the source in the recipe: `data.source`, or for example `data.sources.feedback`."""
    name: str
    """Of one source among several; empty for a single one."""
    columns: Mapping[str, str]
    where: Mapping[str, list[Any]] | str
    code: Sequence[str]
    """Hashes of the code of `where`."""
    max_rows: int | None
    time_column: str | None

    @classmethod
    def of(cls, key: str, source: Source, time_column: str | None = None) -> Self:
        """Return what a recipe says of the source with this key."""
        where, code = source.where, list[str]()
        if isinstance(where, str):
            files = [path for _, path in find_named_source_files(where)]
            files += [path for file in files for path in find_imports_beyond_ingest(file).values()]
            code = [file_sha256(path) for path in files]
        else:
            where = {name: [*map(_comparable, values)] for name, values in where.items()}
        return cls(key, source_name(key), source.columns, where, code, source.max_rows, time_column)

    def apply(
        self, batch: SourceBatch, rows: list[dict[str, Any]]
    ) -> tuple[SourceBatch, list[dict[str, Any]], list[bool]]:
        """Return a batch with the columns of the recipe, its rows, and which of them are taken.

        Raises:
            RecipeError, DataError: there is no such column, or two would have one name; the function of `where` raises an error.
        """
        taken = [self._takes(row, batch, i) for i, row in enumerate(rows)] if self.where else [True] * len(rows)
        if self.columns:
            batch, rows = self._renamed(batch, rows)
        if self.name and SOURCE in batch.rows.schema.names:
            what = f"has a column `{SOURCE}`, which is the one that says which of several sources a row is from"
            raise DataError(
                batch.address(0), what, f"rename it, for example by `{self.key}.columns: {{origin: {SOURCE}}}`"
            )
        return batch, rows, taken

    def named(self, batch: SourceBatch) -> SourceBatch:
        """Return a batch with the column `source`, if there are several."""
        if not self.name:
            return batch
        column = pa.array([self.name] * len(batch.rows))
        rows = pa.RecordBatch.from_arrays([*batch.rows.columns, column], names=[*batch.rows.schema.names, SOURCE])
        return replace(batch, rows=rows)

    def _takes(self, row: dict[str, Any], batch: SourceBatch, i: int) -> bool:
        if isinstance(self.where, str):
            try:
                return bool(import_by_name(self.where, f"{self.key}.where")(row))
            except EvergreenError:
                raise
            except Exception as error:
                what = f"`{self.where}` ({self.key}.where) raised {type(error).__name__}: {error}"
                raise DataError(batch.address(i), what, "fix the function, or the row") from error
        return all(_comparable(row.get(name)) in values for name, values in self.where.items())

    def _template(self, new: str, text: str) -> PromptTemplate:
        from trainer.column_template import column_or_template

        try:
            return column_or_template(text)
        except ValueError as error:
            what, fix = f"{text!r} is no template: {error}", "write it as in objective.prompt_column"
            raise RecipeError.at(f"{self.key}.columns.{new}", what, fix) from None

    def _renamed(self, batch: SourceBatch, rows: list[dict[str, Any]]) -> tuple[SourceBatch, list[dict[str, Any]]]:
        from trainer.column_template import names_columns

        known = batch.rows.schema.names
        names = {old: new for new, old in self.columns.items() if not names_columns(old)}
        templates = {new: self._template(new, text) for new, text in self.columns.items() if names_columns(text)}
        read = {new: [*template.columns] for new, template in templates.items()} | {
            new: [old] for old, new in names.items()
        }
        for new, old in ((new, old) for new, several in read.items() for old in several if old not in known):
            fix = suggestion(old, known, "columns")
            raise RecipeError.at(f"{self.key}.columns.{new}", f"the rows have no column `{old}`", fix)
        texts = {new: [template.fill(row) for row in rows] for new, template in templates.items()}
        merged = {name for new in templates for name in read[new]} - names.keys()
        kept = [name for name in known if name not in merged or name not in texts]
        twice = [
            name for name, count in Counter([*(names.get(name, name) for name in kept), *texts]).items() if count > 1
        ]
        if twice:
            what = f"the source has a column `{twice[0]}` of its own, or two columns get this name"
            fix = f"give its own another name, too, such as `other_{twice[0]}: {twice[0]}`"
            raise RecipeError.at(f"{self.key}.columns.{twice[0]}", what, fix)
        batch = rename_columns(replace(batch, rows=batch.rows.select(kept)), names)
        arrays = [*batch.rows.columns, *(pa.array(own, pa.string()) for own in texts.values())]
        batch = replace(batch, rows=pa.RecordBatch.from_arrays(arrays, names=[*batch.rows.schema.names, *texts]))
        renamed = [
            {names.get(name, name): row[name] for name in kept} | {new: own[i] for new, own in texts.items()}
            for i, row in enumerate(rows)
        ]
        return batch, renamed


def _comparable(value: Any) -> str | None:
    """Return what is equal for the text and the number or truth value that it says: files without types have texts."""
    return None if value is None else canonical_json(value).strip('"')
