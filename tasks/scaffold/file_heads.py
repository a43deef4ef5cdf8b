"""The beginnings of files, for what the readers of tasks.ingestion cannot read, or would read as something else.

Readers say which line is malformed. That a table has no header is seen before, at its first rows. The error has the command that
converts the file; it changes no value.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from params import DataError
from tasks.ingestion.encodings import (
    COMPRESSIONS,
    clean_name,
    convert_command,
    format_suffix,
    open_as_utf8,
    refuse_lfs_pointer,
    translate_read_errors,
)
from tasks.ingestion.formats import SUFFIXES
from tasks.ingestion.tables import TABLE_SUFFIXES, has_quoted_cells, open_table

_HEAD_BYTES: Final = 256 << 10
_HEAD_ROWS: Final = 2000
_SAVE: Final = "save it as CSV in UTF-8 with the program that wrote it"
EXCEL_SUFFIXES: Final = (".xlsx", ".xlsm")
ARROW_SUFFIXES: Final = (".arrow", ".feather")
OTHER_FORMATS: Final = {
    **dict.fromkeys(ARROW_SUFFIXES, "make a Parquet file of it: evergreen convert {path} {parquet}"),
    ".pkl": "loading it can run code: write it as Parquet where you trust it",
    ".xls": _SAVE,
    **dict.fromkeys(EXCEL_SUFFIXES, "make a CSV file of it: evergreen convert {path} {table}"),
    ".xz": "decompress it: xz -dk {path}",
    ".zip": "take the files out, and use them: python -m zipfile -e {path} {folder}",
}
"""What to do with files that cannot be read."""
TAGGED_SUFFIXES: Final = (".conll", ".iob", ".iob2", ".bio")
_TAGGED_WORD: Final = re.compile(r"\S+([ \t]+\S+)*[ \t]+(O|[BIESLU]-\S+)", re.IGNORECASE)
_MANY_FILES: Final = 20


def refuse_misreadable_file(path: Path) -> None:
    """Refuse a file whose beginning shows that it would be misread; the error has the command that converts it.

    Raises:
        DataError: the file has another format or encoding, or no header.
    """
    suffix = format_suffix(path)
    refuse_lfs_pointer(path, str(path))
    if holds_tagged_words(path):
        fix = f"make texts with spans of it: {convert_command(path, '.jsonl')}"
        raise DataError(str(path), "has a word with its tag in each line", fix)
    if suffix in OTHER_FORMATS:
        suffixes = {"folder": "", "table": ".csv", "parquet": ".parquet"}
        new = {kind: clean_name(path, own) for kind, own in suffixes.items()}
        names = {name: shlex.quote(str(own)) for name, own in {"path": path, **new}.items()}
        raise DataError(str(path), f"{suffix} files cannot be read", OTHER_FORMATS[suffix].format(**names))
    if suffix not in SUFFIXES and path.suffix.lower() in COMPRESSIONS:
        fix = f"name it after its content, for example {path.stem}.jsonl{path.suffix}"
        raise DataError(str(path), "its name does not say what is in it", fix)
    if suffix == ".parquet":
        return
    if suffix in TABLE_SUFFIXES:
        with translate_read_errors(path, str(path)):
            _check_header(path)


def holds_tagged_words(path: Path) -> bool:
    """Whether each line is a word with its tag, as in files of CoNLL, or blank."""
    if format_suffix(path) != ".txt":
        return format_suffix(path) in TAGGED_SUFFIXES
    lines = [line for line in _head(path).decode("utf-8", errors="replace").splitlines()[:-1] if line.strip()]
    tagged = [line for line in lines if _TAGGED_WORD.fullmatch(line.strip())]
    return len(tagged) > 0.9 * len(lines) and any(re.search("[\t ][Bb]-", line) for line in tagged)


def guess_text_unit(paths: Sequence[Path]) -> tuple[Literal["line", "paragraph", "file"], str]:
    """Return what one row of these text files should be, and why."""
    if len(paths) > _MANY_FILES:
        return "file", f"there are {len(paths)} files, so each is taken for one text"
    lines = _head(paths[0]).decode("utf-8-sig", errors="replace").splitlines()
    blank = sum(not line.strip() for line in lines[1:-1])
    if blank >= max(1, len(lines) // 50):
        return "paragraph", f"{blank} of the first {len(lines)} lines are blank, which separates paragraphs"
    return "line", "there are no blank lines between paragraphs, so each line is one text"


def _head(path: Path) -> bytes:
    with open_as_utf8(path, str(path)) as file:
        return file.read(_HEAD_BYTES)


def _check_header(path: Path) -> None:
    records, name = list[list[str]](), str(path)
    is_quoted = has_quoted_cells(path, name)
    with contextlib.suppress(DataError), open_table(path, name, is_quoted=is_quoted) as (_, found):
        for _, cells in islice(found, _HEAD_ROWS):  # the reader says where one is malformed
            records.append(cells)
    for place, cell in enumerate(records[0] if len(records) > 1 else ()):
        values = {cells[place] for cells in records[1:]}
        if re.fullmatch(r"-?\d+(\.\d+)?", cell.strip()):
            why = f"its first line has the number {cell!r} where a name should be"
        elif cell and cell in values:
            why = f"{cell!r} in its first line is a value of the same column, too"
        elif len(cell) > 60 or (len(cell.split()) > 3 and cell.strip()[-1] in ".?!"):
            why = f"its first line has the text {cell[:60]!r} where a name should be"
        else:
            continue
        names = ",".join(f"column{i}" for i in range(1, len(records[0]) + 1))
        fix = f"with names of your own: {convert_command(path, '.csv', f'--header {names}')}"
        raise DataError(str(path), f"has no header: {why}", fix)
