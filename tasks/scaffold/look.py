"""A bounded sample of the rows, read by the sources that ingest reads, and what each column holds."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from params import DataError
from params.sections.data import RowsFromFiles, RowsFromHubDataset, RowsFromSql
from tasks.ingestion.batches import SourceBatch
from tasks.ingestion.file_index import FileRowIndex
from tasks.ingestion.row_limit import size_of_row
from tasks.ingestion.sample import JoinedColumns, row_as_read, take_rows
from tasks.ingestion.source import OpenedSource, open_source
from tasks.scaffold.sources import list_matching_files
from tasks.scaffold.usual_names import USUAL_NAMES
from tasks.scaffold.written_values import looks_written, parse_written
from tasks.shards.split_rows import NUMBER
from trainer.objectives.bases.conversations.messages import looks_like_conversation
from trainer.objectives.bases.conversations.pictures import KEYS as PICTURE_KEYS
from trainer.objectives.bases.conversations.pictures import is_picture
from trainer.objectives.bases.rows import ColumnKind

SAMPLE_ROWS: Final = 20_000
"""The most rows of a split that are looked at."""
_BLOCK_ROWS: Final = 512
_SCANNED_BYTES: Final = 512 << 20
_SAMPLE_BYTES: Final = 512 << 20
"""Files up to this size together are read to their end, to count the rows and to look at all parts of them."""
Row = Mapping[str, Any]
Kind = Literal["text", "json", "integer", "number", "boolean", "messages", "spans", "list", "record", "other", "empty"]
_TYPES: Final[Mapping[Kind, set[type]]] = {"text": {str}, "boolean": {bool}, "integer": {int}, "number": {int, float}}
_NUMBER: Final = re.compile(NUMBER)
_PLACE_OR_TIME: Final = re.compile(
    r"((https?|s3|gs|file)://|www\.)\S+|[\w/\\ .~-]{0,200}\w\.(txt|jsonl?|csv|tsv|md|html?|pdf|docx?|xlsx?|png|jpe?g|gif|wav|mp[34]|eml|xml|gz)"
    r"|\d{4}[-/.]\d\d?([-/.]\d\d?([T ]+\d.*)?)?|\d\d?[-/.]\d\d?[-/.]\d{4}([T ]+\d.*)?|\d\d?:\d\d(:\d\d)?"
    r"|1\d{9}(\d{3})?(\.\d+)?|(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])",
    re.IGNORECASE,
)
"""An address, the name of a file, a date, a time of day, or the seconds or milliseconds since 1970."""
_NO_TARGET: Final = re.compile(
    r"(.*[_.-])?(id|idx|uuid|guid|date|time|timestamp|datetime|year|at|url|uri|link|file|filename|path)"
)
"""Names of columns that say which row it is, or where and when it is from; behind a usual name of labels they may be labels."""
_SPAN: Final = {"label", "start", "end"}
_MAX_LABELS: Final = 1000
_LABEL_CHARACTERS: Final = 60
_YES_OR_NO: Final = ({"0", "1"}, {"true", "false"}, {"yes", "no"})


@dataclass(frozen=True)
class SampledColumn:
    """What a column holds, in the sample of the training rows."""

    name: str
    values: Sequence[Any]
    is_written: bool = False
    """Whether numbers with decimals are stored as they are written, so that they can be text."""

    @cached_property
    def filled(self) -> list[Any]:
        """The values without nulls and blank texts."""
        return [v for v in self.values if v is not None and not (isinstance(v, str) and not v.strip())]

    @cached_property
    def items(self) -> list[Any]:
        return [item for value in self.filled if isinstance(value, list) for item in value]

    @cached_property
    def parsed(self) -> list[Any]:
        """What texts say that are a list or a mapping, as JSON, Python or numpy write it; None for others."""
        return list(map(_parsed, self.filled))

    @cached_property
    def kind(self) -> Kind:
        """What all values are."""
        types = {type(value) for value in self.filled}
        if not types:
            return "empty"
        if types == {list}:
            return self._kind_of_lists
        if types == {str} and most(lambda value: value is not None, self.parsed):
            return "json"
        for kind, own in _TYPES.items():
            if types <= own:
                return kind
        return "record" if types == {dict} else "other"

    @property
    def _kind_of_lists(self) -> Kind:
        if any(self.filled) and most(looks_like_conversation, self.filled):
            return "messages"
        are_spans = all(isinstance(item, dict) and item.keys() >= _SPAN for item in self.items)
        return "spans" if self.items and are_spans else "list"

    @cached_property
    def distinct(self) -> int:
        """Number of different values; only for texts, integers and booleans."""
        return len(set(self.filled)) if self.kind in ("text", "integer", "boolean") else 0

    @cached_property
    def mean_characters(self) -> float:
        return sum(map(len, self.filled)) / len(self.filled) if self.kind == "text" else 0.0

    @cached_property
    def has_spaces(self) -> bool:
        """Whether most values are of several words."""
        return self.kind == "text" and sum(" " in value.strip() for value in self.filled) > len(self.filled) / 2

    @cached_property
    def is_place_or_time(self) -> bool:
        """Whether the values are dates, times, addresses or names of files."""
        return bool(self.filled) and most(lambda value: _PLACE_OR_TIME.fullmatch(str(value).strip()), self.filled)

    @property
    def names_rows(self) -> bool:
        """Whether the column's name says that the values say where, when or which a row is."""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()
        return bool(_NO_TARGET.fullmatch(name)) and name.rpartition("_")[0] not in USUAL_NAMES["label"]

    @property
    def is_target(self) -> bool:
        """Whether the values can be labels to learn."""
        return self.is_label and (self.is_called_label or not (self.is_id or self.is_place_or_time or self.names_rows))

    @property
    def is_called_label(self) -> bool:
        """Whether the column's name says that it holds labels, whatever these look like; `tag` and `type` say less."""
        return self.name.lower() in USUAL_NAMES["label"][:-2]

    @property
    def is_label(self) -> bool:
        """Whether the values are few, short, and each occurs several times."""
        least = 1 if self.is_called_label else 2  # `tag` and `type` are often constant
        few = least <= self.distinct <= min(_MAX_LABELS, max(2, len(self.filled) / 3))
        return few and self.mean_characters <= _LABEL_CHARACTERS and not self.has_fractions

    @cached_property
    def has_label_sets(self) -> bool:
        """Whether the values are lists of labels that several rows have, some of them not just one, or records that say yes or no of each.

        Shares of people that say yes are meant so only by a column with a usual name.
        """
        if self.kind == "record":
            return self._says_yes_or_no_of_labels
        if self.kind != "list":
            return False
        kinds = (str, int) if self._is_called_labels else str  # other numbers may be tokens
        few = 0 < len({*map(str, self.items)}) <= min(_MAX_LABELS, max(2, len(self.items) / 3))
        are_short = all(isinstance(item, kinds) and len(str(item)) <= _LABEL_CHARACTERS for item in self.items)
        return few and are_short and any(len(value) != 1 for value in self.filled)

    @property
    def _is_called_labels(self) -> bool:
        return self.name.lower() in USUAL_NAMES["labels"]

    @property
    def _says_yes_or_no_of_labels(self) -> bool:
        said = [own for value in self.filled for own in value.values() if own is not None]
        return bool(said) and all(_says_share_of_yes(own, may_be_part=self._is_called_labels) for own in said)

    @property
    def says_yes_or_no(self) -> bool:
        """Whether each value says yes or no, both occur, and the name is not that of a label: a column for one of several labels."""
        usual = self.name.lower() in USUAL_NAMES["label"]
        return not usual and self.distinct == 2 and {str(v).strip().lower() for v in self.filled} in _YES_OR_NO

    @property
    def is_id(self) -> bool:
        """Whether the values only number or name the rows."""
        if self.name.lower() in USUAL_NAMES["text"] or self.is_decimal or self.not_numbers:
            return False
        unique = self.distinct > 0.95 * len(self.filled)
        by_name = re.fullmatch(r"(.*[_.-])?(id|idx|index|uuid|guid|key|row|number|no|nr)", self.name.lower())
        if self.kind == "integer":
            counts_rows = all(map(operator.lt, self.filled, self.filled[1:])) and len(self.filled) > 20
            return counts_rows or bool(by_name and self.distinct > len(self.filled) / 2)
        return self.kind == "text" and not self.has_spaces and bool(unique and (by_name or self.mean_characters < 40))

    @cached_property
    def holds_texts(self) -> bool:
        """Whether most values are texts of several words, or have such texts in them."""
        if self.kind == "text":
            return self.has_spaces and not self.is_place_or_time
        found = [*map(texts_in, self.parsed if self.kind == "json" else self.filled)]
        return (
            self.kind in ("json", "messages", "list", "record", "other")
            and most(lambda texts: any(" " in text.strip() for text in texts), [texts for texts in found if texts])
            and any(found)
        )

    @cached_property
    def holds_pictures(self) -> bool:
        """Whether the values are pictures, sound or films, or files of them; a name that says so tells it of addresses without an ending."""
        values = [item for value in self.filled for item in (value if isinstance(value, list) else [value])]
        is_named = self.name.lower() in PICTURE_KEYS and not self.has_spaces
        return bool(values) and most(
            lambda value: is_picture(value) or (is_named and isinstance(value, dict | str)), values
        )

    @property
    def can_be_text(self) -> bool:
        """Whether an objective can read the values as text."""
        return self.kind in ("text", "json", "integer") or (self.kind == "number" and self.is_written)

    @cached_property
    def is_numeric(self) -> bool:
        """Whether the values are numbers; in a text file, as they are written."""
        if self.kind != "text":
            return self.kind in ("integer", "number")
        return all(_NUMBER.fullmatch(value.strip()) for value in self.filled)

    @property
    def is_decimal(self) -> bool:
        """Whether the values are numbers, some with decimals."""
        return self.is_numeric and (self.kind == "number" or any("." in str(value) for value in self.filled))

    @cached_property
    def not_numbers(self) -> list[str]:
        """The texts that are no numbers, if most are."""
        is_text = self.kind == "text"
        found = [value for value in self.filled if not _NUMBER.fullmatch(value.strip())] if is_text else []
        return found if len(found) < len(self.filled) / 2 else []

    @property
    def says_numbers(self) -> bool:
        """Whether most values are numbers, or say them."""
        return bool(self.is_numeric or self.not_numbers)

    @cached_property
    def says_fractions(self) -> bool:
        """Whether most values are numbers, or say them, and not all of them are whole."""
        numbers = [value for value in self.filled if _NUMBER.fullmatch(str(value).strip())] if self.says_numbers else []
        return not all(float(value).is_integer() for value in numbers)

    @property
    def has_fractions(self) -> bool:
        """Whether that is so of numbers, not of texts that are all written in quotes; some texts such as n/a may be among them."""
        return self.says_fractions and (self.kind == "number" or bool(self.not_numbers))

    @property
    def is_incidental(self) -> bool:
        """Whether the values say nothing about a row: there are none, or they are all the same, or names, numbers or addresses of rows."""
        if self.is_label and self.is_called_label:
            return False
        is_constant = not self.is_label and all(value == self.filled[0] for value in self.filled)
        return self.is_id or self.is_place_or_time or is_constant


def _says_share_of_yes(value: Any, *, may_be_part: bool) -> bool:
    return isinstance(value, int | float) and (value in (0, 1) or (may_be_part and 0 < value < 1))


def most(test: Callable[[Any], object], values: Sequence[Any]) -> bool:
    """Whether nine of ten values pass a test: what a column holds, although some rows are bad."""
    return 10 * sum(bool(test(value)) for value in values) >= 9 * len(values)


def texts_in(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return [text for own in value for text in texts_in(own)]
    return [value] if isinstance(value, str) else []


def _parsed(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return parse_written(text) if looks_written(text) else None


def columns_of_rows(rows: Sequence[Row], written: Collection[str] = ()) -> dict[str, SampledColumn]:
    """Return the columns of some rows; a row that lacks one has null there. Numbers in `written` are stored as they are written."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: SampledColumn(name, [row.get(name) for row in rows], name in written) for name in names}


def columns_named(columns: Mapping[str, SampledColumn], names: Sequence[str]) -> list[SampledColumn]:
    """Return the columns with these names, in any case, in the order of the names."""
    by_name = {name.lower(): column for name, column in columns.items()}
    return [by_name[name] for name in names if name in by_name]


@dataclass(frozen=True, eq=False)
class RowSample:
    rows: Mapping[str, Sequence[Row]]
    totals: Mapping[str, int | None]
    """Rows of each split; None if only the beginning was read."""
    written: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """For the rows of each split, the numbers with decimals that are stored as they are written, as text."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """The local files of each split; none if the rows are elsewhere."""

    def reading(self, kinds: Mapping[str, ColumnKind]) -> RowSample:
        """Return the sample as an objective with these columns reads it: see `SplitRows.reading`."""
        rows = {
            split: [
                row_as_read(row, own, kinds)
                for row, own in zip(rows, self.written.get(split) or [{}] * len(rows), strict=True)
            ]
            for split, rows in self.rows.items()
        }
        return replace(self, rows=rows, written={})

    @cached_property
    def columns(self) -> dict[str, SampledColumn]:
        written = {name for row in self.written.get("train", ()) for name in row}
        return columns_of_rows(self.rows["train"], written)

    @property
    def is_whole(self) -> bool:
        return self.totals["train"] == len(self.rows["train"])

    def estimated(self, split: str) -> int:
        """Return the number of rows of a split; where it is unknown, those that were read."""
        return self.totals.get(split) or len(self.rows.get(split, ()))


def read_source_sample(source: RowsFromFiles | RowsFromHubDataset | RowsFromSql, root: Path = Path()) -> RowSample:
    """Read a sample of each split of a source.

    Raises:
        RecipeError: the source is not possible, for example a query that is no SELECT.
        DataError: a row cannot be read, or there are none.
        TransientError: a Hub or a database cannot be reached.
    """
    opened, columns = open_source(source, root), JoinedColumns()
    read: dict[str, list[tuple[Row, Row]]] = {}
    totals: dict[str, int | None] = {}
    for split in opened.splits:
        indexes = opened.indexes(split) if _is_scanned(source, split, root) else None
        if indexes is not None:
            totals[split] = sum(index.rows for index in indexes)
            read[split] = _sampled(_spread(indexes, columns))
        else:
            read[split], totals[split] = _read_beginning(opened, split, columns)
        if not read[split]:
            raise DataError(f"the {split} rows", "there are none", "give files, or a query, with rows")
    rows = {split: columns.as_stored(row for row, _ in own) for split, own in read.items()}
    patterns = source.patterns if isinstance(source, RowsFromFiles) else {}
    return RowSample(rows, totals, {split: [text for _, text in own] for split, own in read.items()}, patterns)


def _is_scanned(source: RowsFromFiles | RowsFromHubDataset | RowsFromSql, split: str, root: Path) -> bool:
    """Whether all files of a split are read, to count the rows and to look at all parts of them."""
    if not isinstance(source, RowsFromFiles):
        return isinstance(source, RowsFromHubDataset)
    names = list_matching_files(source.patterns[split], root)
    return sum((root / name).stat().st_size for name in names) <= _SCANNED_BYTES


def _read_beginning(
    opened: OpenedSource, split: str, columns: JoinedColumns
) -> tuple[list[tuple[Row, Row]], int | None]:
    """Return the first rows of a split, and how many it has; None if there are more."""
    with contextlib.closing(opened.batches(split)) as batches:
        rows_left = (row for batch in batches for row in _rows(batch, columns))
        read = _sampled(islice(rows_left, SAMPLE_ROWS))
        is_whole = len(read) < SAMPLE_ROWS and next(rows_left, None) is None
    return read, len(read) if is_whole else None


def _sampled(rows: Iterable[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Return rows up to the number of bytes that a sample may have."""
    found, size = list[tuple[Row, Row]](), 0
    for pair in rows:
        found.append(pair)
        size += size_of_row(pair[0])
        if size > _SAMPLE_BYTES:
            break
    return found


def _rows(batch: SourceBatch, columns: JoinedColumns) -> Iterator[tuple[Row, Row]]:
    """Yield each row, and its numbers with decimals that are stored as they are written; note the columns."""
    found = take_rows(batch)
    columns.add(found.batch)
    return zip(found.rows, found.written, strict=True)


def _spread(indexes: Sequence[FileRowIndex], columns: JoinedColumns) -> Iterator[tuple[Row, Row]]:
    """Yield all rows, or blocks of rows at even distances: files are often sorted by a label."""
    blocks = [(index, start) for index in indexes for start in range(0, index.rows, _BLOCK_ROWS)]
    total = sum(index.rows for index in indexes)
    wanted = len(blocks) if total <= SAMPLE_ROWS else SAMPLE_ROWS // _BLOCK_ROWS
    for i in range(wanted):
        index, start = blocks[i * len(blocks) // wanted]
        for batch in index.piece(start, _BLOCK_ROWS).batches():
            yield from _rows(batch, columns)
