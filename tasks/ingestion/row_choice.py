"""Which rows of a source are taken, and what their columns are called: `columns`, `where` and the like in a recipe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa

from params import DataError, EvergreenError, RecipeError
from params.foundation.hashing import file_sha256
from params.importing import find_named_source_files, import_by_name
from params.problems import suggestion
from params.sections.data import Source
from tasks.ingestion.batches import SourceBatch, rename_columns
from tasks.ingestion.function import find_imports_beyond_ingest
from tasks.ingestion.split_assigner import canonical_json
from tasks.shards.split_rows import NUMBER
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
        return cls(key, source_name(key), source.columns, where, code, source.max_rows, time_column)

    def apply(
        self, batch: SourceBatch, rows: list[dict[str, Any]]
    ) -> tuple[SourceBatch, list[dict[str, Any]], list[bool]]:
        """Return a batch with the columns of the recipe, its rows, and which of them are taken.

        Raises:
            RecipeError, DataError: two columns would have one name; the function of `where` raises an error.
        """
        taken = [self._takes(row, batch, i) for i, row in enumerate(rows)] if self.where else [True] * len(rows)
        if self.columns:
            batch, rows = self._renamed(batch, rows)
        if self.name and SOURCE in batch.rows.schema.names:
            what = f"has a column `{SOURCE}`, which is the one that says which of several sources a row is from"
            fix = f"rename it, for example by `{self.key}.columns: {{origin: {SOURCE}}}`"
            raise DataError(batch.address(0), what, fix)
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
        return all(any(_says(row.get(name), one) for one in values) for name, values in self.where.items())

    def check_names(self, known: Collection[str]) -> None:
        """Raise a RecipeError if the source, whose rows have these columns, lacks one that the recipe names; a single row may."""
        read = {f"columns.{new}": [*self._template(new, text).columns] for new, text in self.columns.items()}
        read |= {"where": [] if isinstance(self.where, str) else [*self.where]}
        for key, names in read.items():
            for name in names:
                if name not in known:
                    fix = suggestion(name, sorted(known), "columns")
                    raise RecipeError.at(f"{self.key}.{key}", f"the rows have no column `{name}`", fix)

    def _template(self, new: str, text: str) -> PromptTemplate:
        from trainer.column_template import column_or_template

        try:
            return column_or_template(text)
        except ValueError as error:
            what, fix = f"{text!r} is no template: {error}", "write it as in objective.prompt_column"
            raise RecipeError.at(f"{self.key}.columns.{new}", what, fix) from None

    def _renamed(self, batch: SourceBatch, rows: list[dict[str, Any]]) -> tuple[SourceBatch, list[dict[str, Any]]]:
        """Return a batch and its rows with the columns that the recipe names: renamed ones, and texts that are made of some."""
        from trainer.column_template import names_columns

        known = batch.rows.schema.names
        found = self._templates_of(known)
        names = {self.columns[new]: new for new in found if not names_columns(self.columns[new])}
        templates = {new: template for new, template in found.items() if new not in names.values()}
        texts = {new: _filled(template, rows) for new, template in templates.items()}
        merged = set[str]().union(*(template.columns for template in templates.values())) - names.keys()
        replaced = merged & texts.keys()
        kept = [name for name in known if name not in replaced]
        self._refuse_equal_names([*(names.get(name, name) for name in kept), *texts])
        batch = rename_columns(replace(batch, rows=batch.rows.select(kept)), names)
        arrays = [*batch.rows.columns, *(pa.array(own, pa.string()) for own in texts.values())]
        batch = replace(batch, rows=pa.RecordBatch.from_arrays(arrays, names=[*batch.rows.schema.names, *texts]))
        return batch, [_renamed_row(row, kept, names, texts, i) for i, row in enumerate(rows)]

    def _templates_of(self, known: Collection[str]) -> dict[str, PromptTemplate]:
        """Return the templates of new columns that name one of the `known` columns."""
        templates = {new: self._template(new, text) for new, text in self.columns.items()}
        return {new: template for new, template in templates.items() if not {*known}.isdisjoint(template.columns)}

    def _refuse_equal_names(self, names: Sequence[str]) -> None:
        """Raise a RecipeError if a batch would have two columns of one name."""
        for name, count in Counter(names).items():
            if count > 1:
                what = f"the source has a column `{name}` of its own, or two columns get this name"
                fix = f"give its own another name, too, such as `other_{name}: {name}`"
                raise RecipeError.at(f"{self.key}.columns.{name}", what, fix)


def _filled(template: PromptTemplate, rows: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """Return the text of each row; of one without any of the columns, only what stands around them would be left."""
    return [template.fill(row) if template.values(row) else None for row in rows]


def _renamed_row(
    row: Mapping[str, Any],
    kept: Sequence[str],
    names: Mapping[str, str],
    texts: Mapping[str, Sequence[Any]],
    place: int,
) -> dict[str, Any]:
    """Return a row with the columns that are kept, under their new names, and its texts, at its place."""
    renamed = {names.get(name, name): row[name] for name in kept}
    return renamed | {name: own[place] for name, own in texts.items()}


def _says(value: Any, wanted: Any) -> bool:
    """Whether a value is the one that `where` names; a text may say a number or a truth value, because files without types have texts."""
    if value is None or wanted is None or (isinstance(value, str) and isinstance(wanted, str)):
        return bool(value == wanted)
    text, other = (own if isinstance(own, str) else canonical_json(own).strip('"') for own in (value, wanted))
    if isinstance(value, str) and isinstance(wanted, int | float):
        is_number = re.fullmatch(NUMBER, text.strip()) and not isinstance(wanted, bool)
        return float(text) == wanted if is_number else text.strip().lower() == other
    return text == other
