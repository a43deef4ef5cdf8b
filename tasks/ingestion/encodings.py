"""Files of text as UTF-8: decompressed, and recoded if they begin with the byte order mark of UTF-16 or UTF-32.

Without a byte order mark nobody can tell an encoding for certain, so other files are refused with the command that converts them.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import pyarrow as pa

from params import DataError
from tasks.ingestion.row_limit import bounded_lines

COMPRESSIONS = (".gz", ".bz2", ".zst")
_HEAD_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MARKS = {  # those of UTF-32 begin as those of UTF-16 do
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class TextFilePosition:
    """Where reading can begin in a file of text: at a row, with its offset in bytes, and at a line."""

    row: int = 0
    offset: int = 0
    line: int = 1


START = TextFilePosition()


def format_suffix(name: str | PurePath) -> str:
    """Return the suffix that gives a file's format, in lower case: `.csv` of `rows.csv.gz`."""
    path = PurePath(name)
    return PurePath(path.stem if path.suffix.lower() in COMPRESSIONS else path.name).suffix.lower()


def is_plain_text(path: Path) -> bool:
    """Whether the bytes of a file of text are those that its readers see: it is neither compressed nor in another encoding."""
    if path.suffix.lower() in COMPRESSIONS:
        return False
    with path.open("rb") as file:
        return _marked_encoding(file.read(_HEAD_BYTES)) is None


def open_as_utf8(path: Path, name: str, begin: TextFilePosition = START) -> io.BufferedReader:
    """Open a file of text, at a place if it is plain text.

    Raises:
        DataError: it has bytes of value 0, such as UTF-16 without a byte order mark.
    """
    file = open_decompressed(path)
    head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    if encoding := _marked_encoding(head):
        return io.BufferedReader(pa.transcoding_input_stream(pa.PythonFile(file, "r"), encoding, "utf-8"))
    if zeros := head.count(b"\0"):
        file.close()
        if zeros * 20 < len(head):  # UTF-16 has one for each ASCII character, even if that is only a delimiter
            raise DataError(name, "has bytes of value 0, which text has not", conversion_fix(path, "utf-8"))
        likely = "utf-16be" if head.startswith(b"\0") else "utf-16le"
        what = f"has bytes of value 0, which text has not: it looks like {likely.upper()} without a byte order mark"
        raise DataError(name, what, conversion_fix(path, likely))
    if begin.offset:
        file.seek(begin.offset)
    return file


@contextlib.contextmanager
def translate_read_errors(path: Path, name: str) -> Iterator[None]:
    """Refuse an empty file, and raise errors of reading `path` as a `DataError` that names the file."""
    try:
        if path.stat().st_size == 0:
            raise DataError(name, "the file is empty", "add rows, or exclude the file from the pattern")
        refuse_lfs_pointer(path, name)
        yield
    except UnicodeDecodeError as error:
        raise not_utf8_error(path, name, error) from error
    except OSError as error:
        fix = "check that the file exists and that you may read it"
        raise DataError(name, f"cannot be read: {error}", fix) from error


def refuse_lfs_pointer(path: Path, name: str) -> None:
    """Refuse what Git LFS leaves in the place of a file that was not fetched."""
    with path.open("rb") as file:
        is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    if is_pointer:
        what = "is a pointer of Git LFS, which stands in place of the file"
        raise DataError(name, what, "get the file itself: git lfs pull")


def not_utf8_error(path: Path, name: str, found: UnicodeDecodeError) -> DataError:
    """Return an error with the byte offset and line in the file; the decoder's own error counts from its last block."""
    if found.encoding.startswith(("utf-16", "utf-32")):
        what = f"begins as {found.encoding[:6].upper()}, and goes on as something else: {found}"
        return DataError(name, what, "write the file again, as UTF-8")
    offset = 0
    with open_as_utf8(path, name) as file:
        for line, raw in enumerate(bounded_lines(file, name), start=1):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                what = f"not UTF-8: the byte at offset {offset + error.start} (line {line})"
                try:
                    what += f"; as Windows' cp1252 the line is {raw.decode('cp1252').strip()[:60]!r}"
                except UnicodeDecodeError:
                    fix = f"find out its encoding, and {conversion_fix(path, 'ENCODING')}"
                else:
                    fix = f"if that is right, {conversion_fix(path, 'cp1252')}; else write its encoding there"
                return DataError(f"{name}:{line}", what, fix)
            offset += len(raw)
    return DataError(name, "not UTF-8", conversion_fix(path, "ENCODING"))


def conversion_fix(path: Path, encoding: str) -> str:
    """Return the command that writes a file anew as UTF-8, without bytes of value 0."""
    return f"convert it, and use the new file: {convert_command(path, format_suffix(path), f'--encoding {encoding}')}"


def escapes_fix(path: Path) -> str:
    """Return the command that writes a JSON file anew with escapes for the control characters and line ends in its strings."""
    return f"convert it, and use the new file: {convert_command(path, format_suffix(path), '--escape-controls')}"


def convert_command(path: Path, suffix: str, options: str = "") -> str:
    """Return the command that writes a file anew, to one with this suffix."""
    return f"evergreen convert {shlex.join([str(path), clean_name(path, suffix)])} {options}".rstrip()


def clean_name(path: Path, suffix: str) -> str:
    """Return the name of a converted file, beside the file."""
    return str(path.with_name(f"{path.name.split('.')[0]}-clean{suffix}"))


def open_decompressed(path: Path) -> io.BufferedReader:
    """Open a file, which may be compressed, as bytes."""
    if path.suffix.lower() not in COMPRESSIONS:
        return path.open("rb")
    return io.BufferedReader(pa.input_stream(str(path), compression="detect"))


def _marked_encoding(head: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS.items() if head.startswith(mark)), None)
