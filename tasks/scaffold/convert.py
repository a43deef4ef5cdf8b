"""`evergreen convert`: files whose rows no objective reads become JSON lines that one reads, and a workbook of Excel a CSV file.

Files that cannot be read as they are, but need no other rows, are copied (tasks.scaffold.copies).
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import itertools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from params import DataError, RecipeError
from params.foundation.artifacts import write_text_atomically
from params.foundation.installation import install_extra
from params.sections.data import RowsFromFiles
from tasks.ingestion.encodings import format_suffix, open_as_utf8, translate_read_errors
from tasks.ingestion.formats import read_rows_of_file
from tasks.ingestion.formats.base import WantedRows
from tasks.ingestion.formats.csv_tables import open_table
from tasks.ingestion.row_limit import MAX_ROW_BYTES, bounded_lines, bounded_memory, too_large_error
from tasks.ingestion.sample import take_rows
from tasks.ingestion.source import open_source
from tasks.scaffold.copies import NO_OPTIONS, CopyOptions, compare, copied_suffix, copy_file, new_file
from tasks.scaffold.file_heads import EXCEL_SUFFIXES, holds_tagged_words
from tasks.scaffold.forms import RowForm, find_row_forms
from tasks.scaffold.look import SAMPLE_ROWS, Row, columns_of_rows
from tasks.scaffold.sources import converted_name, list_matching_files, names_unlabelled

_WORD_BYTES: Final = 16
"""Of two references."""
_BOOK_BYTES: Final = 1 << 30
"""The most that a workbook has, unpacked."""
_MAX_BOOK_COLUMNS: Final = 1 << 14
_TAG: Final = re.compile(r"O|[BIESLU]-\S+", re.IGNORECASE)


def convert_files(
    patterns: Sequence[str],
    to: Path,
    names: Sequence[str] = (),
    sheet: str | None = None,
    copying: CopyOptions = NO_OPTIONS,
) -> None:
    """Write the rows of files in a form that an objective reads, alike for all of them, and say what was done.

    One file becomes the file `to`, and several, or those of globs, become files in the folder `to`. `names` are those of tags that are
    numbers, `sheet` is one of a workbook, by default the first, and `copying` says how files are read that are copied.

    Raises:
        DataError: a file cannot be read, or the rows have no form that is known.
        RecipeError: a file to write exists, or cannot hold such rows.
    """
    if len(patterns) == 1 and Path(patterns[0]).is_dir():
        _write_texts_of_classes(Path(patterns[0]), to)
        return
    paths = _list_files(patterns)
    is_book = all(format_suffix(path) in EXCEL_SUFFIXES for path in paths)
    copied = _suffix_of_copies(paths, to, copying)
    targets = _name_targets(paths, patterns, to, ".csv" if is_book else copied or ".jsonl")
    if is_book:
        for path, target in zip(paths, targets, strict=True):
            _write_sheet(path, target, sheet)
    elif copied:
        for path, target in zip(paths, targets, strict=True):
            copy_file(path, target, copying)
    else:
        form = _find_form(paths, names)
        if not sum([_write_converted(path, target, form) for path, target in zip(paths, targets, strict=True)]):
            raise DataError(patterns[0], "no row could be converted", "look at the rows that are named above")


def _list_files(patterns: Sequence[str]) -> list[Path]:
    paths = list[Path]()
    for pattern in patterns:
        names = list_matching_files(pattern, Path())
        if not names:
            raise DataError(pattern, "there is no such file", "check the path")
        paths += map(Path, names)
    return paths


def _suffix_of_copies(paths: Sequence[Path], to: Path, copying: CopyOptions) -> str:
    """Return the suffix of files that are copied; empty if their rows are to have another form."""
    copied = {copied_suffix(path, to, copying) for path in paths}
    if len(copied) > 1:
        raise DataError(
            ", ".join(map(str, paths)), "are of several formats", "convert those of each format by themselves"
        )
    return copied.pop()


def _name_targets(paths: Sequence[Path], patterns: Sequence[str], to: Path, suffix: str) -> list[Path]:
    """Return the new file for each file; RecipeError if one exists, or cannot hold what is to be written."""
    is_one = len(patterns) == 1 and Path(patterns[0]).is_file()
    targets = [to if is_one else Path(converted_name(str(path), patterns, str(to), suffix)) for path in paths]
    for target, count in Counter(targets).items():
        if target.exists() or count > 1:
            what = "exists" if target.exists() else f"would be written {count} times"
            raise RecipeError(str(target), what, "name another file or folder, or remove it")
        if target.suffix != suffix:
            fix = f"name it {target.with_suffix(suffix)}"
            raise RecipeError(str(target), f"would not say what is in it: {suffix[1:].upper()}", fix)
    return targets


def _write_texts_of_classes(folder: Path, to: Path) -> None:
    """Write a row for each text in the folders of a folder, with the name of its folder as label."""
    paths, unlabelled = _find_texts_of_classes(folder)
    if to.exists() or to.suffix != ".jsonl":
        what = "exists" if to.exists() else "would not say what is in it: JSONL"
        raise RecipeError(str(to), what, f"name another file, such as {to.with_suffix('.jsonl')}")
    with new_file(to) as partial:
        with partial.open("w", encoding="utf-8") as file:
            for row in _texts_with_labels(paths):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        written = [json.loads(line) for line in partial.read_text(encoding="utf-8").split("\n") if line]
        compare(folder, written, _texts_with_labels(paths))
    classes = Counter(row["label"] for row in written)
    print(f"wrote the texts of {', '.join(f'{name} ({count:,})' for name, count in classes.items())} into {to}")
    print(f"  compared row by row: {len(written):,} rows, 0 values changed")
    for name, count in unlabelled.items():
        print(f"  left out: {count:,} texts of {folder / name}, which is no class")


def _find_texts_of_classes(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the files of the texts that have a class, and the folders of others, with the number of their texts."""
    found = sorted(path for path in folder.glob("*/*.txt") if path.is_file())
    unlabelled = Counter(path.parent.name for path in found if names_unlabelled(path.parent.name))
    paths = [path for path in found if path.parent.name not in unlabelled]
    if not paths:
        raise DataError(str(folder), "has no folders with texts (.txt), one for each class", "name files, or a glob")
    return paths, unlabelled


def _texts_with_labels(paths: Sequence[Path]) -> Iterator[Row]:
    return ({"text": text, "label": path.parent.name} for path in paths for text in _read_text(path))


def _read_text(path: Path) -> Iterator[str]:
    batches = read_rows_of_file(path, str(path), WantedRows(text_unit="file"))
    return (row["text"] for batch in batches for row in batch.rows.to_pylist())


def _find_form(paths: Sequence[Path], names: Sequence[str]) -> RowForm:
    sample = [pair for path in paths for pair in itertools.islice(_rows(path), SAMPLE_ROWS)]
    columns = columns_of_rows([row for row, _ in sample], {name for _, texts in sample for name in texts})
    form = next((form for form in find_row_forms(columns) if form.convert), None)
    if form is None:
        what = "has no form that has to be converted"
        raise DataError(", ".join(map(str, paths)), what, "give it to `evergreen new` as it is")
    form = form._replace(what=form.what.format(found=form.found), becomes=form.becomes.format(found=form.found))
    return form._replace(found=form.found._replace(names=names)) if hasattr(form.found, "names") else form


def _write_converted(path: Path, to: Path, form: RowForm) -> int:
    """Return how many rows were written; without any there is no file."""
    found = _ConvertedRows(form, path)
    for row, texts in _rows(path):
        found.add(row, texts)
    if found.lines:
        write_text_atomically(to, "\n".join(found.lines) + "\n")
    print(f"column `{form.column}` {form.what}: wrote {form.becomes} into {to}")
    print(f"  {found.number:,} rows became {len(found.lines):,}; {found.left_out.total():,} could not be converted")
    which = "".join(f"; `{name}` in {count:,} rows" for name, count in found.changed.items())
    print(f"  compared row by row: {found.changed.total():,} values of other columns changed{which}")
    return len(found.lines)


class _ConvertedRows:
    """What the rows of a file become, as JSON, and which of their values have changed on the way."""

    def __init__(self, form: RowForm, path: Path) -> None:
        self._form, self._path = form, path
        self.lines = list[str]()
        self.number = 0
        self.left_out = Counter[str]()
        """Rows that could not be converted, by the reason."""
        self.changed = Counter[str]()
        """Values of columns that should not change, by the column."""

    def add(self, row: Row, texts: Row) -> None:
        """Convert the next row; `texts` are its numbers with decimals as they are written."""
        form = self._form
        assert form.convert is not None
        self.number += 1
        try:
            new = form.convert(row, form.column, form.found)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            self._leave_out(str(error))
            return
        written = {name: text for name, text in texts.items() if name != form.column}
        for one in new:
            kept = one | {name: written[name] for name in one.keys() & written.keys()}
            self.lines.append(json.dumps(kept, ensure_ascii=False, default=str))
            self._compare({**row, **texts}, row.keys(), json.loads(self.lines[-1]))

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] += 1
        if self.left_out[reason] == 1:
            print(f"  left out: row {self.number} of {self._path}: {reason}")

    def _compare(self, before: Row, names: Collection[str], after: Row) -> None:
        for name in {*names} & after.keys() - self._form.changed_columns:
            if after[name] != before[name] and str(after[name]) != str(before[name]):
                self.changed[name] += 1


def _rows(path: Path) -> Iterator[tuple[Row, Row]]:
    """Yield each row, and its numbers with decimals that are stored as they are written, as text."""
    if holds_tagged_words(path):
        yield from ((row, {}) for row in _tagged_texts(path))
        return
    source = open_source(RowsFromFiles(kind="files", train=str(path)), Path())
    with contextlib.closing(source.batches("train")) as batches:
        for batch in batches:
            found = take_rows(batch)
            yield from zip(found.rows, found.written, strict=True)


def _tagged_texts(path: Path) -> Iterator[Row]:
    """Yield the texts of a file with a word and its tag in each line, and blank lines between texts.

    Lines that begin with `# ` and do not end in a tag are comments.
    """
    filled = odd = 0
    for parts in _tagged_lines(path):
        filled += parts != [""]
        odd += len(parts) > 2 and not _TAG.fullmatch(parts[-1])
    if 2 * odd > filled:
        fix = "write a word and its tag in each line, or rows with text and spans as JSON lines"
        raise DataError(str(path), "has lines that do not end in tags such as O, B-PER and I-PER", fix)
    words, tags, size = list[str](), list[str](), 0
    for number, parts in enumerate(itertools.chain(_tagged_lines(path), [[""]]), start=1):
        if parts[0] == "#" and not _TAG.fullmatch(parts[-1]):
            continue
        if len(parts) == 1 and parts[0] not in ("", "-DOCSTART-"):
            raise DataError(f"{path}:{number}", "has no tag", "write a word and its tag in each line")
        if parts[0] not in ("", "-DOCSTART-"):
            size += len(parts[0]) + len(parts[-1]) + _WORD_BYTES
            if size > MAX_ROW_BYTES:
                raise too_large_error(f"{path}:{number - len(words)}")
            words.append(parts[0])
            tags.append(parts[-1])
        elif words:
            yield {"tokens": words, "tags": tags}
            words, tags, size = [], [], 0


def _tagged_lines(path: Path) -> Iterator[list[str]]:
    """Yield what spaces divide each line into."""
    with translate_read_errors(path, str(path)), open_as_utf8(path, str(path)) as file:
        for number, raw in enumerate(bounded_lines(file, str(path))):
            line = raw.decode("utf-8" if number else "utf-8-sig")
            yield re.split(r"[ \t]+", line.removesuffix("\n").strip(" \t\r"))


def _write_sheet(path: Path, to: Path, sheet: str | None) -> None:
    """Write a sheet of a workbook as CSV, without empty rows and columns."""
    _check_unpacked_size(path)
    try:
        import openpyxl  # noqa: F401 (before the limit of memory)
    except ImportError:
        what = "is a workbook of Excel, which openpyxl reads, and that is not installed"
        raise DataError(str(path), what, f"{install_extra('excel')}; then run this again") from None
    fix = "save its sheets as CSV files with the program that wrote it"
    with bounded_memory(str(path), "its cells need", fix):
        _write_cells(path, to, sheet)


def _write_cells(path: Path, to: Path, sheet: str | None) -> None:
    values, formulas = _open_book(path)
    sheets = [one.title for one in values.worksheets]
    name = sheet or sheets[0]
    if name not in sheets:
        raise RecipeError("--sheet", f"{path} has no sheet {name!a}", f"name one of {', '.join(sheets)}")
    _check_sheet(path, values[name], formulas[name])
    columns = [[_as_written(cell) for cell in column] for column in values[name].iter_cols()]
    rows = [row for row in zip(*filter(any, columns), strict=True) if any(row)]
    if not rows:
        raise DataError(str(path), f"its sheet {name!a} is empty", f"name one of {', '.join(sheets)} with --sheet")
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    with new_file(to) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8", newline="")
        with open_table(partial, str(to), is_quoted=True) as (_, written):
            compare(path, (cells for _, cells in written), map(list, rows))
    others = f"; its other sheets are {', '.join(one for one in sheets if one != name)}" if len(sheets) > 1 else ""
    print(f"wrote the {len(rows):,} lines of sheet {name} into {to}, and compared them: 0 values changed{others}")


def _open_book(path: Path) -> tuple[Any, Any]:
    """Open a workbook twice: with the values of its cells, and with their formulas."""
    import openpyxl

    try:
        with path.open("rb") as file:  # openpyxl leaves its own open where it fails
            values, formulas = (openpyxl.load_workbook(file, data_only=is_value) for is_value in (True, False))
    except MemoryError:
        raise
    except Exception as error:  # openpyxl says in many ways that a part is missing or broken
        what = f"cannot be read as a workbook: {error}"
        raise DataError(str(path), what, "save it again, as .xlsx and without a password") from error
    return values, formulas


def _check_sheet(path: Path, values: Any, formulas: Any) -> None:
    """Refuse a sheet with too many columns, or with formulas without a value, and say which cells have errors."""
    name = values.title
    if values.max_column > _MAX_BOOK_COLUMNS:
        what = f"its sheet {name!a} has more than {_MAX_BOOK_COLUMNS} columns, which Excel does not have"
        raise DataError(str(path), what, "save it again with Excel or LibreOffice")
    for cell in itertools.chain.from_iterable(formulas.iter_rows()):
        if cell.value is not None and values[cell.coordinate].value is None:
            what = f"{name}!{cell.coordinate} has a formula without its value"
            raise DataError(str(path), what, "save it again with Excel or LibreOffice, which compute values")
    errors = [cell for cell in itertools.chain.from_iterable(values.iter_rows()) if cell.data_type == "e"]
    if errors:
        where = f"{name}!{errors[0].coordinate} ({errors[0].value})"
        print(f"  left empty: {len(errors):,} cells with an error of Excel, the first one {where}")


def _check_unpacked_size(path: Path) -> None:
    """Refuse a workbook, which is a ZIP file, that takes much memory; what is no ZIP file is refused later."""
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as book:
        size = sum(part.file_size for part in book.infolist())
        if size > _BOOK_BYTES:
            what = f"has {size / 2**30:.1f} GiB unpacked, and {_BOOK_BYTES >> 30} GiB is the most"
            raise DataError(str(path), what, "save its sheets as CSV files with the program that wrote it")


def _as_written(cell: Any) -> str:
    """Return what a cell holds, of an error nothing: dates as in ISO 8601, and whole numbers with the zeros that their format puts before them."""
    value = None if cell.data_type == "e" else cell.value
    if isinstance(value, dt.datetime) and value.time() == dt.time():
        value = value.date()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
        zeros = re.fullmatch("0+", cell.number_format)
        return str(int(value)).zfill(len(zeros[0]) if zeros else 0)
    return "" if value is None else str(value)
