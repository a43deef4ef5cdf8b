"""Rows of plain text: each line, each paragraph, or each file is one, as `text_unit` says."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tasks.ingestion.batches import AddressedRows
from tasks.ingestion.encodings import open_as_utf8
from tasks.ingestion.formats.base import Format, TextUnit, WantedRows
from tasks.ingestion.row_limit import MAX_ROW_BYTES, too_large_error

_HEAD_BYTES: Final = 256 << 10
_MANY_FILES: Final = 20


class TextFiles(Format):
    """Plain text, whose rows have one column, `text`."""

    suffixes = (".txt",)
    title = "text"
    is_text = True

    def rows(self, path: Path, name: str, wanted: WantedRows) -> AddressedRows:
        with open_as_utf8(path, name) as file:
            yield from ((where, {"text": unit}) for where, unit in _text_units(file, name, wanted.text_unit))

    def columns(self, path: Path, name: str) -> set[str]:
        return {"text"}

    def guess_options(self, paths: Sequence[Path]) -> tuple[Mapping[str, str], Sequence[str]]:
        unit, why = guess_text_unit(paths)
        return {"text_unit": unit}, [why]


def guess_text_unit(paths: Sequence[Path]) -> tuple[TextUnit, str]:
    """Return what one row of these text files should be, and why."""
    if len(paths) > _MANY_FILES:
        return "file", f"there are {len(paths)} files, so each is taken for one text"
    with open_as_utf8(paths[0], str(paths[0])) as file:
        lines = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace").splitlines()
    blank = sum(not line.strip() for line in lines[1:-1])
    if blank >= max(1, len(lines) // 50):
        return "paragraph", f"{blank} of the first {len(lines)} lines are blank, which separates paragraphs"
    return "line", "there are no blank lines between paragraphs, so each line is one text"


def _text_units(file: io.BufferedReader, name: str, unit: TextUnit) -> Iterator[tuple[str, str]]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        if unit == "file":
            whole = text.read(MAX_ROW_BYTES + 1)
            if len(whole) > MAX_ROW_BYTES:
                raise too_large_error(name)
            yield name, whole
            return
        lines: list[str] = []
        number = size = 0
        for number, line in enumerate(iter(lambda: text.readline(MAX_ROW_BYTES + 1), ""), start=1):
            size = len(line) + (size if lines else 0)
            if size > MAX_ROW_BYTES:
                raise too_large_error(f"{name}:{number - len(lines)}")
            if line.strip():
                lines.append(line.rstrip("\n"))
            if lines and (unit == "line" or not line.strip()):
                first = number - len(lines) + (1 if line.strip() else 0)
                yield f"{name}:{first}", "\n".join(lines)
                lines.clear()
        if lines:
            yield f"{name}:{number - len(lines) + 1}", "\n".join(lines)
