"""The beginnings of files, for what the readers of tasks.ingestion cannot read, or would read as something else.

Readers say which line is malformed. That a table has semicolons, no header, or is a JSON array is seen before, at its first bytes.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from params import DataError

_HEAD_BYTES: Final = 256 << 10
OTHER_FORMATS: Final = {
    ".tsv": 'pd.read_csv({path}, sep="\\t")',
    ".xlsx": "pd.read_excel({path})",
    ".xls": "pd.read_excel({path})",
    ".gz": "pd.read_csv({path})",
    ".zip": "pd.read_csv({path})",
    ".feather": "pd.read_feather({path})",
    ".arrow": "pd.read_feather({path})",
    ".pkl": None,
}
"""How pandas reads what the sources do not."""
_BYTE_ORDER_MARKS: Final = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MANY_FILES: Final = 20


def check_head(path: Path) -> None:
    """Refuse a file whose beginning shows that it would be misread; the error has the command that converts it.

    Raises:
        DataError: the file has another format, encoding or delimiter, or no header.
    """
    suffix = path.suffix.lower()
    if suffix in OTHER_FORMATS:
        raise _convert(path, f"{suffix} files cannot be read", OTHER_FORMATS[suffix])
    if not path.is_file() or suffix == ".parquet":
        return
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            fix = (
                f"convert it: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > {shlex.quote(_clean_name(path))}"
            )
            raise DataError(str(path), f"is {encoding.upper()}, and must be UTF-8", fix)
    text = head.decode("utf-8-sig", errors="replace")
    if suffix == ".csv":
        _check_csv(path, text)
    elif suffix in (".json", ".jsonl"):
        _check_json(path, text)


def text_unit(paths: Sequence[Path]) -> tuple[Literal["line", "paragraph", "file"], str]:
    """Return what one row of these text files should be, and why."""
    if len(paths) > _MANY_FILES:
        return "file", f"there are {len(paths)} files, so each is taken for one text"
    with paths[0].open("rb") as file:
        lines = file.read(_HEAD_BYTES).decode("utf-8", errors="replace").splitlines()
    blank = sum(not line.strip() for line in lines[1:-1])
    if blank >= max(1, len(lines) // 50):
        return "paragraph", f"{blank} of the first {len(lines)} lines are blank, which separates paragraphs"
    return "line", "there are no blank lines between paragraphs, so each line is one text"


def _check_csv(path: Path, text: str) -> None:
    lines = [line for line in text.splitlines() if line.strip()][:100]
    if not lines:
        return
    for delimiter, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
        if delimiter in lines[0] and "," not in lines[0]:
            what = f"its columns are separated by {name}: {lines[0][:60]!r}"
            raise _convert(path, what, f"pd.read_csv({{path}}, sep={json.dumps(delimiter)})")
    try:
        records = list(csv.reader(io.StringIO("\n".join(text.splitlines()[:2000]))))
    except csv.Error:
        return  # the reader says where
    records = [cells for cells in records if cells]
    if why := _no_header(records):
        names = [f"column{i}" for i in range(1, len(records[0]) + 1)]
        read = f"pd.read_csv({{path}}, header=None, names={json.dumps(names)})"
        raise _convert(path, f"has no header: {why}", read, hint=", with names of your own")


def _no_header(records: Sequence[Sequence[str]]) -> str | None:
    """Return why the first record looks like a row; None if it looks like names of columns."""
    if len(records) < 2:
        return None
    header = records[0]
    for place, cell in enumerate(header):
        values = {cells[place] for cells in records[1:] if len(cells) == len(header)}
        if re.fullmatch(r"-?\d+(\.\d+)?", cell.strip()):
            return f"its first line has the number {cell!r} where a name should be"
        if cell and cell in values:
            return f"{cell!r} in its first line is a value of the same column, too"
        if len(cell) > 60 or (len(cell.split()) > 3 and cell.strip()[-1] in ".?!"):
            return f"its first line has the text {cell[:60]!r} where a name should be"
    return None


def _check_json(path: Path, text: str) -> None:
    start = text.lstrip()
    if start.startswith("["):
        raise _convert(path, "is a JSON array, and must have one object per line", "pd.read_json({path})", lines=True)
    first = start.splitlines()[0].strip() if start else ""
    if first == "{" or (first.startswith("{") and not first.endswith("}") and len(start.splitlines()) > 1):
        fix = "write each object in one line, for example with `jq -c . FILE`"
        raise DataError(str(path), "has JSON objects over several lines, and must have one object per line", fix)


def _convert(path: Path, what: str, read: str | None, *, hint: str = "", lines: bool = False) -> DataError:
    """Return an error whose fix is the command that writes a file that can be read."""
    if read is None:
        return DataError(str(path), f"{what}: loading it can run code", "write it as Parquet where you trust it")
    lines = lines or ".json" in path.suffixes
    target = _clean_name(path, ".jsonl" if lines else ".csv")
    write = (
        f'to_json({json.dumps(target)}, orient="records", lines=True)'
        if lines
        else f"to_csv({json.dumps(target)}, index=False)"
    )
    code = f"import pandas as pd; {read.format(path=json.dumps(str(path)))}.{write}"
    return DataError(str(path), what, f"convert it{hint}: python -c {shlex.quote(code)}")


def _clean_name(path: Path, suffix: str | None = None) -> str:
    stem = path.name.split(".")[0]
    return str(path.with_name(f"{stem}-clean{suffix or path.suffix}"))
