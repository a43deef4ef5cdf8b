"""Files that are written anew for `evergreen convert`, with the same values: tables, texts in another encoding, JSON, and Arrow.

Each copy is read again and compared with the file, row by row, before it gets its name. One that would change a value is not kept.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from params import DataError, RecipeError
from params.foundation.artifacts import translate_disk_errors
from tasks.ingestion.encodings import format_suffix, open_as_utf8, open_decompressed, translate_read_errors
from tasks.ingestion.formats.csv_tables import (
    has_quoted_cells,
    is_table,
    open_table,
    refuse_quotes_of_both_kinds,
    refuse_separator_line,
)
from tasks.ingestion.row_limit import bounded_memory
from tasks.scaffold.file_heads import ARROW_SUFFIXES

Quotes = Literal["around-cells", "characters"]


class CopyOptions(NamedTuple):
    """How files are read that are written anew."""

    header: Sequence[str] = ()
    """The names of the columns of a table that has no header."""
    quotes: str = ""
    """One of `Quotes`, where nobody can tell."""
    encoding: str = ""
    escape_controls: bool = False
    """Whether JSON has control characters and line ends in its strings."""


_BLOCK_BYTES: Final = 1 << 20
_CONTROL: Final = re.compile("[\x00-\x1f]")
_STRING: Final = re.compile(r'(?s)"(?:[^"\\]++|\\.)*+"')
_NOT_SPACE: Final = re.compile(r"\S")


NO_OPTIONS: Final = CopyOptions()


def copied_suffix(path: Path, to: Path, options: CopyOptions) -> str:
    """Return the suffix of a copy that has the values of the file; empty if its rows are to have another form."""
    suffix = format_suffix(path)
    if options.encoding or options.escape_controls:
        return suffix
    if suffix in ARROW_SUFFIXES:
        return ".parquet"
    is_copied = is_table(path) and (options.header or options.quotes or to.suffix == ".csv")
    return ".csv" if is_copied else ""


def copy_file(path: Path, to: Path, options: CopyOptions) -> None:
    """Write a file anew, to one with the suffix of `copied_suffix`.

    Raises:
        DataError: the file cannot be read as the options say, or a value would be another one.
        RecipeError: an option has no such value.
    """
    if options.encoding:
        _copy_text(path, to, options.encoding)
    elif options.escape_controls:
        _copy_json(path, to)
    elif to.suffix == ".parquet":
        _copy_arrow(path, to)
    else:
        _copy_table(path, to, options.header, options.quotes)


def _copy_table(path: Path, to: Path, header: Sequence[str], quotes: str) -> None:
    """Write a table as CSV, every cell as it is; a column without a name is called `column1` and so on.

    All cells of the new file have quotes around them, so that nobody has to ask again.

    Raises:
        DataError: the table is malformed, or there are not as many names as columns.
        RecipeError: `quotes` is something else.
    """
    if quotes and quotes not in get_args(Quotes):
        raise RecipeError("--quotes", f"is {quotes!a}", f"write {' or '.join(get_args(Quotes))}")
    name = str(path)
    with translate_read_errors(path, name):
        is_quoted = quotes == "around-cells" if quotes else has_quoted_cells(path, name, has_header=not header)
        table = _Table(path, is_quoted)
        first = next(table.records(), [])
        refuse_separator_line(first, f"{name}:1")
        if header and len(header) != len(first):
            raise DataError("--header", f"names {len(header)} columns, and {name} has {len(first)}", "name each column")
        with new_file(to) as partial:
            rows, first_long = _write_records(partial, table.with_header(header))
            if first_long is not None and len(first) > 1 and not quotes:
                where = f"row {first_long} of {name}"
                refuse_quotes_of_both_kinds(path, name, where, has_header=not header)
            with open_table(partial, str(to), is_quoted=True) as (_, written):
                compare(path, (cells for _, cells in written), table.with_header(header))
    _say(path, to, f"{rows:,} rows")


class _Table(NamedTuple):
    """A table that is copied."""

    path: Path
    is_quoted: bool

    def records(self) -> Iterator[list[str]]:
        with open_table(self.path, str(self.path), is_quoted=self.is_quoted) as (_, found):
            yield from (cells for _, cells in found)

    def with_header(self, header: Sequence[str]) -> Iterator[list[str]]:
        """Yield the records behind a new header, or with a name for each column that has none."""
        found = self.records()
        if header:
            yield list(header)
        else:
            yield [one if one.strip() else f"column{i}" for i, one in enumerate(next(found), start=1)]
        yield from found


def _write_records(path: Path, records: Iterable[list[str]]) -> tuple[int, int | None]:
    """Write the header and the rows of a table, and return the number of rows, and which one is the first that holds a line end."""
    rows, first_long = 0, None
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for rows, cells in enumerate(records):
            writer.writerow(cells)
            if first_long is None and any("\n" in cell or "\r" in cell for cell in cells):
                first_long = rows
    return rows, first_long


def _copy_text(path: Path, to: Path, encoding: str) -> None:
    """Write a file of text as UTF-8, without characters of value 0; all else stays as it is.

    Raises:
        RecipeError: there is no such encoding.
        DataError: the file is in another one.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        fix = "write a name such as cp1252, latin-1, utf-16le or shift_jis"
        raise RecipeError("--encoding", f"{encoding!a} is no encoding", fix) from None

    def blocks() -> Iterator[str]:
        try:
            yield from read_blocks()
        except UnicodeDecodeError as error:
            what = f"is not in the encoding {encoding}: {error}"
            raise DataError(str(path), what, "write another one with --encoding") from error

    def read_blocks() -> Iterator[str]:
        with (
            translate_read_errors(path, str(path)),
            open_decompressed(path) as file,
            io.TextIOWrapper(file, encoding, newline="") as text,
        ):
            yield from iter(lambda: text.read(_BLOCK_BYTES), "")

    zeros = 0
    with new_file(to) as partial:
        with partial.open("w", encoding="utf-8", newline="") as file:
            for block in blocks():
                zeros += block.count("\0")
                file.write(block.replace("\0", ""))
        with partial.open(encoding="utf-8", newline="") as file:
            for block in blocks():
                kept = block.replace("\0", "")
                if file.read(len(kept)) != kept:
                    raise _changed_error(path, "a character")
    _say(path, to, f"{zeros:,} characters of value 0 were left out; all others" if zeros else "all characters")


def _copy_json(path: Path, to: Path) -> None:
    """Write a JSON file with escapes for the control characters and line ends in its strings.

    Raises:
        DataError: the file is no JSON in another way, too.
    """
    with translate_read_errors(path, str(path)), open_as_utf8(path, str(path)) as file:
        text = file.read().decode("utf-8-sig")
    new = _STRING.sub(lambda string: _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", string[0]), text)
    with new_file(to) as partial:
        partial.write_text(new, encoding="utf-8", newline="")
        with partial.open(encoding="utf-8", newline="") as file:
            written = file.read()
        count = compare(path, _json_values(path, written, strict=True), _json_values(path, text, strict=False))
    _say(path, to, f"{count:,} {'row' if count == 1 else 'rows'}")


def _copy_arrow(path: Path, to: Path) -> None:
    """Write a file of Arrow as Parquet: one of its own format, or a stream, as `datasets` writes it.

    Raises:
        DataError: the file is neither.
    """
    with translate_read_errors(path, str(path)), bounded_memory(str(path)):
        table = _read_arrow(path)
        with new_file(to) as partial:
            pq.write_table(table, partial)
            with pq.ParquetFile(partial) as written:
                compare(path, _rows_of(written.iter_batches()), _rows_of(table.to_batches()))
    _say(path, to, f"{len(table):,} rows")


def _read_arrow(path: Path) -> pa.Table:
    with path.open("rb") as file:
        is_file = file.read(4) in (b"ARRO", b"FEA1")
    try:
        if is_file:
            return pyarrow.feather.read_table(path, memory_map=False)
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all()
    except pa.ArrowException as error:
        raise DataError(str(path), f"cannot be read as Arrow: {error}", "write or download the file again") from error


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    """Yield rows as texts, in which NaN equals NaN."""
    return (repr(row) for batch in batches for row in batch.to_pylist())


def _json_values(path: Path, text: str, *, strict: bool) -> Iterator[Any]:
    """Yield the values of a JSON file, or the items if it is an array; numbers as they are written."""
    decoder = json.JSONDecoder(
        strict=strict, object_pairs_hook=list, parse_float=str, parse_int=str, parse_constant=str
    )
    at = 0
    while rest := _NOT_SPACE.search(text, at):
        try:
            value, at = decoder.raw_decode(text, rest.start())
        except (ValueError, RecursionError) as error:
            fix = "correct it; only control characters and line ends in strings can be written as escapes"
            raise DataError(str(path), f"malformed JSON: {error}", fix) from error
        is_array = text[rest.start()] == "["
        yield from value if is_array else [value]


def compare(path: Path, new: Iterable[Any], wanted: Iterable[Any]) -> int:
    """Return the number of rows; DataError if one of the new ones is another one than the file has."""
    count, missing = 0, object()
    for count, (one, other) in enumerate(zip_longest(new, wanted, fillvalue=missing), start=1):
        if one != other:
            raise _changed_error(path, f"row {count}")
    return count


def _changed_error(path: Path, what: str) -> DataError:
    fix = "nothing was written; convert the file with the program that wrote it"
    return DataError(str(path), f"{what} would be another one in the new file", fix)


@contextlib.contextmanager
def new_file(to: Path) -> Iterator[Path]:
    """Give a path to write to; the file gets its name at the end of the block, or is removed after an error."""
    partial = to.with_name(f".{to.name}.partial")
    with translate_disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.rename(to)
        finally:
            partial.unlink(missing_ok=True)


def _say(path: Path, to: Path, what: str) -> None:
    print(f"wrote {path} as {to}, and compared them: {what}, 0 values changed")
