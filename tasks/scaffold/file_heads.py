"""The beginnings of files, for what the readers of tasks.ingestion cannot read, or would read as something else.

Readers say which line is malformed. That a table has no header, its format sees before, at the first rows. The error has the command that
converts the file; it changes no value.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath
from typing import Final

from params import DataError
from tasks.ingestion.encodings import (
    COMPRESSIONS,
    clean_name,
    convert_command,
    format_suffix,
    open_as_utf8,
    refuse_lfs_pointer,
)
from tasks.ingestion.formats import find_format

_HEAD_BYTES: Final = 256 << 10
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


def is_format_named(path: PurePath) -> bool:
    """Whether the suffix of a file is that of a format which is known, if only to be refused."""
    return find_format(path) is not None or format_suffix(path) in (*OTHER_FORMATS, *TAGGED_SUFFIXES)


def refuse_misreadable_file(path: Path) -> None:
    """Refuse a file whose beginning shows that it would be misread; the error has the command that converts it.

    Raises:
        DataError: the file has another format or encoding, or no header.
    """
    suffix, own_format = format_suffix(path), find_format(path)
    refuse_lfs_pointer(path, str(path))
    if holds_tagged_words(path):
        fix = f"make texts with spans of it: {convert_command(path, '.jsonl')}"
        raise DataError(str(path), "has a word with its tag in each line", fix)
    if own_format is None and suffix in OTHER_FORMATS:
        suffixes = {"folder": "", "table": ".csv", "parquet": ".parquet"}
        new = {kind: clean_name(path, own) for kind, own in suffixes.items()}
        names = {name: shlex.quote(str(own)) for name, own in {"path": path, **new}.items()}
        raise DataError(str(path), f"{suffix} files cannot be read", OTHER_FORMATS[suffix].format(**names))
    if own_format is None and path.suffix.lower() in COMPRESSIONS:
        fix = f"name it after its content, for example {path.stem}.jsonl{path.suffix}"
        raise DataError(str(path), "its name does not say what is in it", fix)
    if own_format:
        own_format.refuse_misreading(path, str(path))


def holds_tagged_words(path: Path) -> bool:
    """Whether each line is a word with its tag, as in files of CoNLL, or blank."""
    suffix = format_suffix(path)
    if suffix != ".txt":
        return suffix in TAGGED_SUFFIXES and find_format(path) is None
    with open_as_utf8(path, str(path)) as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    lines = [line for line in head.splitlines()[:-1] if line.strip()]
    tagged = [line for line in lines if _TAGGED_WORD.fullmatch(line.strip())]
    return len(tagged) > 0.9 * len(lines) and any(re.search("[\t ][Bb]-", line) for line in tagged)
