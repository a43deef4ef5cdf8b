"""Rows of JSON files: an object in each line, an array of objects, or objects behind each other that end in later lines."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from params import DataError
from tasks.ingestion.batches import AddressedRows
from tasks.ingestion.encodings import START, TextFilePosition, escapes_fix, is_plain_text, open_as_utf8
from tasks.ingestion.formats.base import PLACE_ROWS, Format, RowPlaces, WantedRows
from tasks.ingestion.row_limit import MAX_ROW_BYTES, bounded_lines, read_bounded_line, too_large_error

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 4096
_LINES_OF_A_TEXT = 1000
_SPACES = re.compile(r"\s*")
_NOTHING: Final = object()


class JsonFiles(Format):
    """JSON; files with an object in each line can be cut."""

    suffixes = (".jsonl", ".json")
    title = "JSON"
    is_text = True
    continues = True

    def rows(self, path: Path, name: str, wanted: WantedRows) -> AddressedRows:
        is_by_line = has_row_per_line(path, name)
        with open_as_utf8(path, name, wanted.begin) as file:
            if is_by_line:
                yield from read_json_lines(file, path, name, wanted.begin)
            else:
                yield from read_json_items(file, path, name)

    def can_be_cut(self, path: Path, name: str) -> bool:
        return is_plain_text(path) and has_row_per_line(path, name)

    def find_places(self, path: Path, name: str, known: Sequence[TextFilePosition] = ()) -> RowPlaces:
        return RowPlaces(*index_json_lines(path, known))


def has_row_per_line(path: Path, name: str) -> bool:
    """Whether a JSON file has an object in each line: it is no array, and its first object does not end in a later line."""
    with open_as_utf8(path, name) as file:
        head = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    first, line_feed, _ = head.partition(b"\n")
    return not (head.startswith(b"[") or (head.startswith(b"{") and line_feed and not first.rstrip().endswith(b"}")))


def index_json_lines(path: Path, known: Sequence[TextFilePosition] = ()) -> tuple[list[TextFilePosition], int]:
    """Return the places of every `PLACE_ROWS`th row of a file of JSON lines, from the first on, and the number of rows.

    Of the `known` places, the first ones, only what is behind the last is read.
    """
    places, begin = [*known[:-1]], known[-1] if known else START
    rows, line, offset = begin.row, begin.line, begin.offset
    with path.open("rb") as file:
        file.seek(offset)
        while block := _read_whole_lines(file, str(path), line):
            data = np.frombuffer(block, np.uint8)
            starts = np.concatenate([[0], np.flatnonzero(data[:-1] == ord("\n")) + 1])
            is_row = data[starts] == ord("{")
            for i in np.flatnonzero(~is_row).tolist():  # a blank line, or one that begins with a space
                stop = starts[i + 1] if i + 1 < len(starts) else len(block)
                encoding = "utf-8" if line + i > 1 else "utf-8-sig"
                is_row[i] = bool(block[starts[i] : stop].decode(encoding, errors="replace").strip())
            own = np.flatnonzero(is_row)
            for number in range(-rows % PLACE_ROWS, len(own), PLACE_ROWS):
                i = int(own[number])
                places.append(TextFilePosition(rows + number, offset + int(starts[i]), line + i))
            rows += len(own)
            line += len(starts)
            offset += len(block)
    return places, rows


def _read_whole_lines(file: IO[bytes], name: str, first: int) -> bytes:
    """Return the next lines, of which the first has the number `first`."""
    block = file.read(_BLOCK_BYTES)
    lines = block.count(b"\n")
    return block + read_bounded_line(file, f"{name}:{first + lines}")


def read_json_lines(file: IO[bytes], path: Path, name: str, begin: TextFilePosition) -> AddressedRows:
    """Yield the object of each line."""
    lines = bounded_lines(file, name, begin.line)
    for number, raw in enumerate(lines, start=begin.line):
        line = raw.decode("utf-8" if number > 1 else "utf-8-sig")
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            row = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            if _is_cut_off(line, error, lines):
                raise DataError(
                    where, "malformed JSON: the line ends within a text", "complete it, or remove it"
                ) from error
            raise _malformed(where, str(error), path, "write one JSON object per line") from error
        if not isinstance(row, dict):
            kind = {list: "an array", str: "a string", type(None): "null"}.get(type(row), "a number or a boolean")
            raise DataError(where, f"is {kind}, not an object", 'write one JSON object per line: {"text": "..."}')
        yield where, row


def _is_cut_off(line: str, error: Exception, rest: Iterable[bytes]) -> bool:
    """Whether a line ends within a text that does not go on in the next lines, as it does where somebody wrote its line breaks as they are."""
    whole = line.rstrip("\r\n")
    says = str(error)
    if not says.startswith(("Unterminated string", f"Invalid control character at: line 1 column {len(whole) + 1} ")):
        return False
    for raw in islice(rest, _LINES_OF_A_TEXT):
        whole += raw.decode(errors="replace")
        if b'"' not in raw or len(whole) > _BLOCK_BYTES:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(whole, strict=False)
            return False
    return True


def read_json_items(file: io.BufferedReader, path: Path, name: str) -> AddressedRows:
    """Yield the items of an array, or objects behind each other; one of them and the next block are in memory."""
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        items = _Items(text, path)
        for number in itertools.count():
            where = f"{name} item {number}"
            row, end = items.decode_next(where, is_first=number == 0)
            if row is _NOTHING:
                _refuse_more(items.rest[end + 1 :], text, name)
                return
            if not isinstance(row, dict):
                raise DataError(where, "is not an object", 'write an object for each row: {"text": "..."}')
            yield where, row
            if items.rest[end] == "]":
                _refuse_more(items.rest[end + 1 :], text, f"{name} behind item {number}")
                return
            items.at = end + items.is_array


class _Items:
    """The text of an array, or of objects behind each other, as far as it has been read."""

    def __init__(self, text: IO[str], path: Path) -> None:
        self._text, self._path = text, path
        self.rest = text.read(_BLOCK_BYTES)
        begin = _end_of_spaces(self.rest, 0)
        self.is_array = self.rest.startswith("[", begin)
        self.at = begin + self.is_array
        """Where the next item begins in `rest`, or spaces before it."""

    def decode_next(self, where: str, *, is_first: bool) -> tuple[Any, int]:
        """Return the next item, and where what follows it begins; `_NOTHING` if the array is empty."""
        while True:
            begin = _end_of_spaces(self.rest, self.at)
            if is_first and self.is_array and self.rest.startswith("]", begin):
                return _NOTHING, begin
            try:
                row, end = _DECODER.raw_decode(self.rest, begin)
            except (ValueError, RecursionError) as error:
                self._read_more(str(error), where)
                continue
            end = _end_of_spaces(self.rest, end)
            if self.rest.startswith(("]", "," if self.is_array else "{"), end):
                return row, end
            self._read_more("another row must follow", where)

    def _read_more(self, problem: str, where: str) -> None:
        """Read the next block; if there is none, the problem is no end of a block."""
        if len(self.rest) - self.at > MAX_ROW_BYTES:
            raise too_large_error(where)
        block = self._text.read(max(_BLOCK_BYTES, len(self.rest) - self.at))
        if not block and (self.is_array or self.rest.endswith("]")):
            raise _malformed(where, problem, self._path, "write the file again")
        self.rest, self.at = self.rest[self.at :] + (block or "]"), 0  # as if objects behind each other were an array


def _malformed(where: str, problem: str, path: Path, fix: str) -> DataError:
    if problem.startswith("Invalid control character"):
        problem, fix = f"{problem}, which JSON writes as an escape", escapes_fix(path)
    elif problem.startswith("Unterminated string"):
        fix += f"; or, if the string goes on in the next line, {escapes_fix(path)}"
    return DataError(where, f"malformed JSON: {problem}", fix)


def _refuse_more(rest: str, text: IO[str], where: str) -> None:
    """Refuse what follows the end of an array: its rows would be lost."""
    while not (rest := rest.strip()) and (rest := text.read(_BLOCK_BYTES)):
        pass
    if rest:
        fix = "write all rows into one array, or an object in each line"
        raise DataError(where, "malformed JSON: the array has ended, and more follows", fix)


def _end_of_spaces(text: str, begin: int) -> int:
    found = _SPACES.match(text, begin)
    return found.end() if found else begin


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!a} occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}; write null or a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
