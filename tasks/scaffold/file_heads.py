"""The beginnings of files, for what the readers of tasks.ingestion cannot read, or would read as something else.

Readers say which line is malformed. That a table has semicolons, no header, or is a JSON array is seen before, at its first bytes.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from params import DataError
from tasks.ingestion.formats import JSON_SUFFIXES

_HEAD_BYTES: Final = 256 << 10
OTHER_FORMATS: Final = {
    ".tsv": 'pd.read_csv({path}, sep="\\t")',
    **dict.fromkeys((".xlsx", ".xls"), "pd.read_excel({path})"),
    **dict.fromkeys((".gz", ".zip"), "pd.read_csv({path})"),
    **dict.fromkeys((".feather", ".arrow"), "pd.read_feather({path})"),
    ".pkl": None,
}
"""How pandas reads what the sources do not."""
TAGGED_SUFFIXES: Final = (".conll", ".iob", ".iob2", ".bio")
_TAGGED_WORD: Final = re.compile(r"\S+([ \t]+\S+)*[ \t]+(O|[BIESLU]-\S+)")
_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MANY_FILES: Final = 20


def refuse_misreadable_file(path: Path) -> None:
    """Refuse a file whose beginning shows that it would be misread; the error has the command that converts it.

    Raises:
        DataError: the file has another format, encoding or delimiter, or no header.
    """
    suffix = path.suffix.lower()
    if suffix in TAGGED_SUFFIXES or (suffix == ".txt" and holds_tagged_words(path)):
        command = f"evergreen convert {shlex.quote(str(path))} {shlex.quote(_clean(path) + '.jsonl')}"
        raise DataError(str(path), "has a word with its tag in each line", f"make texts with spans of it: {command}")
    if suffix in OTHER_FORMATS:
        raise _convert(path, f"{suffix} files cannot be read", OTHER_FORMATS[suffix])
    if suffix == ".parquet":
        return
    head = _head(path)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        convert = f"iconv -f utf-16 -t utf-8 {shlex.quote(str(path))} > {shlex.quote(_clean(path) + path.suffix)}"
        raise DataError(str(path), "is UTF-16, and must be UTF-8", f"convert it: {convert}")
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    if suffix == ".csv":
        _check_csv(path, lines)
    elif suffix in JSON_SUFFIXES:
        first = next((line.strip() for line in lines if line.strip()), "")
        if first.startswith("["):
            what = "is a JSON array, and must have one object per line"
            raise _convert(path, what, "pd.read_json({path})", lines=True)
        if first == "{" or (first.startswith("{") and not first.endswith("}") and len(lines) > 1):
            fix = "write each object in one line, for example with `jq -c . FILE`"
            raise DataError(str(path), "has JSON objects over several lines, and must have one object per line", fix)


def holds_tagged_words(path: Path) -> bool:
    """Whether each line is a word with its tag, as in files of CoNLL, or blank."""
    if path.suffix.lower() in TAGGED_SUFFIXES:
        return True
    lines = [line for line in _head(path).decode("utf-8", errors="replace").splitlines()[:-1] if line.strip()]
    tagged = [line for line in lines if _TAGGED_WORD.fullmatch(line.strip())]
    return len(tagged) > 0.9 * len(lines) and any("\tB-" in line or " B-" in line for line in tagged)


def guess_text_unit(paths: Sequence[Path]) -> tuple[Literal["line", "paragraph", "file"], str]:
    """Return what one row of these text files should be, and why."""
    if len(paths) > _MANY_FILES:
        return "file", f"there are {len(paths)} files, so each is taken for one text"
    lines = _head(paths[0]).decode("utf-8", errors="replace").splitlines()
    blank = sum(not line.strip() for line in lines[1:-1])
    if blank >= max(1, len(lines) // 50):
        return "paragraph", f"{blank} of the first {len(lines)} lines are blank, which separates paragraphs"
    return "line", "there are no blank lines between paragraphs, so each line is one text"


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _check_csv(path: Path, lines: Sequence[str]) -> None:
    first = next((line for line in lines if line.strip()), "")
    for delimiter, name in _DELIMITERS.items():
        if delimiter in first and "," not in first:
            what = f"its columns are separated by {name}: {first[:60]!r}"
            raise _convert(path, what, f"pd.read_csv({{path}}, sep={json.dumps(delimiter)})")
    try:
        records = [cells for cells in csv.reader(lines[:2000]) if cells]
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
        read = f"pd.read_csv({{path}}, header=None, names={json.dumps(names)})"
        raise _convert(path, f"has no header: {why}", read, hint=", with names of your own")


def _convert(path: Path, what: str, read: str | None, *, hint: str = "", lines: bool = False) -> DataError:
    """Return an error whose fix is the command that writes a file that can be read."""
    if read is None:
        return DataError(str(path), f"{what}: loading it can run code", "write it as Parquet where you trust it")
    write = f"to_csv({json.dumps(_clean(path) + '.csv')}, index=False)"
    if lines or ".json" in path.suffixes:
        write = f'to_json({json.dumps(_clean(path) + ".jsonl")}, orient="records", lines=True)'
    code = f"import pandas as pd; {read.format(path=json.dumps(str(path)))}.{write}"
    return DataError(str(path), what, f"convert it{hint}: python -c {shlex.quote(code)}")


def _clean(path: Path) -> str:
    return str(path.with_name(f"{path.name.split('.')[0]}-clean"))
