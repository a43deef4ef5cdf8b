"""The beginnings of files, for what the readers of tasks.ingestion cannot read, or would read as something else.

Readers say which line is malformed. That a table has no header is seen before, at its first bytes. The error has the command that
converts the file; it changes no value.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from params import DataError
from tasks.ingestion.encodings import COMPRESSIONS, clean_name, format_suffix, open_as_utf8, table_fix
from tasks.ingestion.formats import SUFFIXES, TABLE_SUFFIXES, find_delimiter, translate_read_errors

_HEAD_BYTES: Final = 256 << 10
_TO_PARQUET: Final = (
    "import pyarrow as a, pyarrow.feather as f, pyarrow.parquet as q; q.write_table({read}({path}){rest}, {new})"
)
_SAVE: Final = "save it as CSV in UTF-8 with the program that wrote it"
EXCEL_SUFFIXES: Final = (".xlsx", ".xlsm")
OTHER_FORMATS: Final = {
    ".arrow": "",
    ".feather": "",
    ".pkl": "loading it can run code: write it as Parquet where you trust it",
    ".xls": _SAVE,
    **dict.fromkeys(EXCEL_SUFFIXES, "make a CSV file of it: evergreen convert {path} {table}"),
    ".xz": "decompress it: xz -dk {path}",
    ".zip": "take the files out, and use them: python -m zipfile -e {path} {folder}",
}
"""What to do with files that cannot be read; those of Arrow are converted as their first bytes say."""
TAGGED_SUFFIXES: Final = (".conll", ".iob", ".iob2", ".bio")
_TAGGED_WORD: Final = re.compile(r"\S+([ \t]+\S+)*[ \t]+(O|[BIESLU]-\S+)", re.IGNORECASE)
_MANY_FILES: Final = 20


def refuse_misreadable_file(path: Path) -> None:
    """Refuse a file whose beginning shows that it would be misread; the error has the command that converts it.

    Raises:
        DataError: the file has another format or encoding, or no header.
    """
    suffix = format_suffix(path)
    if holds_tagged_words(path):
        command = f"evergreen convert {shlex.quote(str(path))} {shlex.quote(clean_name(path, '.jsonl'))}"
        raise DataError(str(path), "has a word with its tag in each line", f"make texts with spans of it: {command}")
    if suffix in OTHER_FORMATS:
        new = {"folder": clean_name(path, ""), "table": clean_name(path, ".csv")}
        names = {name: shlex.quote(str(own)) for name, own in {"path": path, **new}.items()}
        fix = OTHER_FORMATS[suffix].format(**names) or _arrow_fix(path)
        raise DataError(str(path), f"{suffix} files cannot be read", fix)
    if suffix not in SUFFIXES and path.suffix.lower() in COMPRESSIONS:
        fix = f"name it after its content, for example {path.stem}.jsonl{path.suffix}"
        raise DataError(str(path), "its name does not say what is in it", fix)
    if suffix == ".parquet":
        return
    with translate_read_errors(path, str(path)):
        lines = _head(path).decode("utf-8-sig", errors="replace").splitlines()
        if suffix in TABLE_SUFFIXES:
            _check_header(path, lines)


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


def _check_header(path: Path, lines: Sequence[str]) -> None:
    delimiter = find_delimiter(path, str(path))
    try:
        records = [cells for cells in csv.reader(lines[:2000], delimiter=delimiter) if cells]
    except csv.Error:
        return  # the reader says where
    for place, cell in enumerate(records[0] if len(records) > 1 else ()):
        values = {cells[place] for cells in records[1:] if len(cells) == len(records[0])}
        if re.fullmatch(r"-?\d+(\.\d+)?", cell.strip()):
            why = f"its first line has the number {cell!r} where a name should be"
        elif cell and cell in values:
            why = f"{cell!r} in its first line is a value of the same column, too"
        elif len(cell) > 60 or (len(cell.split()) > 3 and cell.strip()[-1] in ".?!"):
            why = f"its first line has the text {cell[:60]!r} where a name should be"
        else:
            continue
        names = [f"column{i}" for i in range(1, len(records[0]) + 1)]
        fix = table_fix(path, f"header=None, names={json.dumps(names)}", delimiter)
        raise DataError(str(path), f"has no header: {why}", f"with names of your own, {fix}")


def _arrow_fix(path: Path) -> str:
    """Return the command that writes a file of Arrow as Parquet: a file of its own format, or a stream, as `datasets` writes it."""
    with path.open("rb") as file:
        is_file = file.read(4) in (b"ARRO", b"FEA1")
    read, rest = ("f.read_table", "") if is_file else ("a.ipc.open_stream", ".read_all()")
    names = {"path": json.dumps(str(path)), "new": json.dumps(clean_name(path, ".parquet"))}
    code = _TO_PARQUET.format(read=read, rest=rest, **names)
    return f"convert it, and use the new file: python -c {shlex.quote(code)}"
