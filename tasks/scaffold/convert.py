"""`evergreen convert`: a file whose rows no objective reads becomes JSON lines that one reads."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from params import DataError, RecipeError
from params.foundation.artifacts import write_text_atomically
from params.schema import RowsFromFiles
from tasks.ingestion.batches import to_readable_batch
from tasks.ingestion.formats import JSON_SUFFIXES
from tasks.ingestion.source import open_source
from tasks.scaffold.file_heads import holds_tagged_words
from tasks.scaffold.forms import find_row_forms
from tasks.scaffold.look import SAMPLE_ROWS, Row, columns_of_rows

_TAG: Final = re.compile(r"O|[BIESLU]-\S+")


def convert_file(path: Path, to: Path, names: Sequence[str] = ()) -> None:
    """Write the rows of a file in a form that an objective reads, and say what was done.

    Raises:
        DataError: the file cannot be read, or has no form that is known.
        RecipeError: the other file exists.
    """
    if to.exists():
        raise RecipeError(str(to), "exists", "name another file, or remove it")
    if not path.is_file():
        raise DataError(str(path), "there is no such file", "check the path")
    sample = list(islice(_rows(path), SAMPLE_ROWS))
    forms = [form for form in find_row_forms(columns_of_rows(sample), names) if form.convert]
    if not forms:
        raise DataError(str(path), "has no form that has to be converted", "give it to `evergreen new` as it is")
    form, lines, left_out = forms[0], list[str](), Counter[str]()
    assert form.convert is not None
    for number, row in enumerate(_rows(path), start=1):
        try:
            new = form.convert(row)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            left_out[str(error)] += 1
            if left_out[str(error)] == 1:
                print(f"  left out: row {number}: {error}")
            continue
        lines += (json.dumps(one, ensure_ascii=False, default=str) for one in new)
    if not lines:
        raise DataError(str(path), "no row could be converted", "look at the rows that are named above")
    write_text_atomically(to, "\n".join(lines) + "\n")
    print(f"column `{form.column}` {form.what}: wrote {form.becomes} into {to}")
    print(f"  {number:,} rows became {len(lines):,}; {left_out.total():,} could not be converted")


def read_json_rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON lines file as they are written; DataError for a line that is none."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            row = None
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path) from error
            with contextlib.suppress(ValueError):
                row = json.loads(line) if line.strip() else {}
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number}", "is no JSON object", "write one object per line")
            if row:
                yield row


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix.lower() in JSON_SUFFIXES:
        yield from read_json_rows(path)
    elif holds_tagged_words(path):
        yield from _tagged_texts(path)
    else:
        source = open_source(RowsFromFiles(kind="files", train=str(path)), Path())
        with contextlib.closing(source.batches("train")) as batches:
            for batch in batches:
                yield from to_readable_batch(batch)[1]


def _tagged_texts(path: Path) -> Iterator[Row]:
    """Yield the texts of a file with a word and its tag in each line, and blank lines between texts.

    Lines that begin with `# ` and do not end in a tag are comments.
    """
    lines = [re.split(r"[ \t]+", line.strip(" \t\r")) for line in _read_text(path).split("\n")]
    filled = [parts for parts in lines if parts != [""]]
    if 2 * sum(len(parts) > 2 and not _TAG.fullmatch(parts[-1]) for parts in filled) > len(filled):
        fix = "write a word and its tag in each line, or rows with text and spans as JSON lines"
        raise DataError(str(path), "has lines that do not end in tags such as O, B-PER and I-PER", fix)
    words, tags = list[str](), list[str]()
    for number, parts in enumerate([*lines, [""]], start=1):
        if parts[0] == "#" and not _TAG.fullmatch(parts[-1]):
            continue
        if len(parts) == 1 and parts[0] not in ("", "-DOCSTART-"):
            raise DataError(f"{path}:{number}", "has no tag", "write a word and its tag in each line")
        if parts[0] not in ("", "-DOCSTART-"):
            words.append(parts[0])
            tags.append(parts[-1])
        elif words:
            yield {"tokens": words, "tags": tags}
            words, tags = [], []


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error


def _not_utf8(path: Path) -> DataError:
    return DataError(str(path), "is not UTF-8", "convert it first, such as with iconv -f WINDOWS-1252 -t UTF-8")
