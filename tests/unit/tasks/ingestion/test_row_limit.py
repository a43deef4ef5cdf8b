"""A row has a largest size in every format, compressed or not: a few bytes of a file cannot take all memory."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError
from tasks.ingestion import batches, formats, parts, row_limit
from tasks.ingestion.batches import to_batches
from tasks.ingestion.encodings import not_utf8_error
from tasks.ingestion.files import FileSource
from tasks.ingestion.formats import json_files, text_files
from tasks.ingestion.formats.base import WantedRows
from tasks.ingestion.parquet import SourceColumn, columns_of_batch, widen_schema_in_place
from tasks.scaffold import convert
from tasks.scaffold.convert import _rows as rows_to_convert
from tests.support.project import ROOT

LIMIT = 1 << 16
LONG = "a" * (LIMIT + 1)
ROWS = {
    "rows.jsonl": f'{{"text": "hi"}}\n{{"text": "{LONG}"}}\n',
    "array.json": f'[{{"text": "hi"}}, {{"text": "{LONG}"}}]',
    "open.json": f'[{{"text": "hi"}}, {{"text": "{LONG}',
    "nested.jsonl": '{"text": "hi"}\n{"text": ' + json.dumps([[[LONG]]]) + "}\n",
    "small.jsonl": '{"text": "hi"}\n{"text": ' + "[" + ",".join(["[]"] * LIMIT) + "]}\n",
    "cell.csv": f'text,label\nhi,x\n"{LONG}",x\n',
    "open.csv": f'text,label\nhi,x\n"{LONG}',
    "lines.csv": 'text,label\nhi,x\n"' + "a\n" * LIMIT + '",x\n',
    "cells.csv": "text,label\nhi,x\n" + "," * (LIMIT + 1) + "\n",
    "header.csv": f"{LONG},label\nhi,x\n",
    "rows.tsv": f"text\tlabel\nhi\tx\n{LONG}\tx\n",
    "line.txt": f"hi\n\n{LONG}\n",
    "paragraph.txt": "hi\n\n" + "aaaa\n" * LIMIT,
    "words.conll": "hi O\n\n" + "word O\n" * LIMIT,
    "bytes.jsonl": b'{"text": "hi"}\n'.decode() + f'{{"text": "{LONG}\udcff"}}\n',
}


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (row_limit, batches, json_files, text_files, convert):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", LIMIT)
    monkeypatch.setattr(json_files, "_BLOCK_BYTES", 4096)
    monkeypatch.chdir(tmp_path)


def written(name: str, packing: str) -> Path:
    content = ROWS[name].encode(errors="surrogateescape")
    path = Path(f"{name}{packing}")
    if packing:
        kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}[packing]
        with pa.CompressedOutputStream(str(path), kind) as file:
            file.write(content)
    else:
        path.write_bytes(content)
    return path


def read(path: Path, **options: str) -> list[dict[str, object]]:
    if path.name.startswith("words"):
        return [row for row, _ in rows_to_convert(path)]
    found = formats.read_rows_of_file(path, path.name, WantedRows(**options))  # type: ignore[arg-type]
    return [row for batch in found for row in batch.rows.to_pylist()]


@pytest.mark.parametrize("packing", ["", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_is_too_large_is_a_bad_row(name: str, packing: str) -> None:
    path = written(name, packing)
    with pytest.raises(DataError, match=r"the row has more than .* MiB|field larger than field limit") as caught:
        read(path)
    place = {"header.csv": 1, "words.conll": 3, "line.txt": 3, "paragraph.txt": 3, "array.json": 1, "open.json": 1}
    place |= {"rows.jsonl": 2, "nested.jsonl": 2, "small.jsonl": 2, "bytes.jsonl": 2}
    assert str(place.get(name, 3)) in caught.value.where


@pytest.mark.parametrize("name", ["long.jsonl", "cell.csv", "rows.tsv"])
def test_the_index_of_a_file_is_bounded_too(name: str) -> None:
    if name == "long.jsonl":
        Path(name).write_text(f'{{"text": "hi"}}\n{{"text": "{LONG + LONG}"}}\n')
    else:
        written(name, "")
    with pytest.raises(DataError, match=r"the row has more than|field larger"):
        FileSource({"train": name}, Path()).indexes("train")


def test_a_file_that_is_one_text_is_bounded() -> None:
    with pytest.raises(DataError, match="the row has more than"):
        read(written("line.txt", ".gz"), text_unit="file")


def test_looking_for_a_byte_that_is_no_text_is_bounded() -> None:
    path = written("bytes.jsonl", "")
    with pytest.raises(DataError, match="the row has more than"):
        raise not_utf8_error(path, path.name, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"))


def wide(name: str, columns: int) -> Path:
    """Write rows whose columns, all together, are so many: few bytes that name many cells."""
    names = [f"c{number}" for number in range(columns)]
    path = Path(name)
    if name.endswith(".csv"):
        path.write_text(",".join(names) + "\n" + ",".join("1" * columns) + "\n")
    elif name.endswith(".parquet"):
        pq.write_table(pa.table({own: [1] for own in names}), path)
    elif name == "row.jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    else:  # one more column in each row
        path.write_text("".join(json.dumps({own: 1}) + "\n" for own in names))
    return path


@pytest.mark.parametrize("name", ["cells.csv", "cells.parquet", "row.jsonl", "rows.jsonl"])
def test_columns_have_a_largest_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limit, "MAX_COLUMNS", 20)
    assert read(wide(name, 20))
    with pytest.raises(DataError, match="more than 20 columns") as caught:
        read(wide(name, 21))
    assert caught.value.where == {"rows.jsonl": "rows.jsonl:21", "row.jsonl": "row.jsonl:1"}.get(
        name, f"{name}:1" if name.endswith(".csv") else name
    )


def test_columns_of_all_batches_and_parts_have_a_largest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limit, "MAX_COLUMNS", 20)
    columns = dict[str, SourceColumn]()

    def add(number: int) -> None:
        (batch,) = to_batches((f"row {number}", {f"c{number}": 1}) for _ in range(1))
        widen_schema_in_place(columns, columns_of_batch(batch, columns))

    for number in range(20):
        add(number)
    with pytest.raises(DataError, match="more than 20 columns") as caught:
        add(20)
    assert caught.value.where == "row 20"


def test_smaller_rows_are_read() -> None:
    Path("rows.jsonl").write_text("".join(json.dumps({"text": "a" * (LIMIT - 100)}) + "\n" for _ in range(5)))
    assert len(read(Path("rows.jsonl"))) == 5


def table(kind: str) -> pa.Table:
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), pa.array(["a" * (LIMIT + 1)]))
    columns: dict[str, Callable[[], object]] = {
        "text": lambda: ["hi", LONG],
        "bytes": lambda: [b"hi", LONG.encode()],
        "shared": lambda: shared,
        "list": lambda: pa.ListArray.from_arrays([0, 1, LIMIT + 1], pa.array(np.zeros(LIMIT + 1, "u1"))),
        "nulls": lambda: pa.ListArray.from_arrays([0, 1, LIMIT + 1], pa.nulls(LIMIT + 1)),
        "bits": lambda: pa.ListArray.from_arrays([0, 1, LIMIT + 1], pa.array(np.zeros(LIMIT + 1, bool))),
        "record": lambda: [{"a": "hi"}, {"a": LONG}],
    }
    return pa.table({"text": columns[kind]()})


@pytest.mark.parametrize("kind", ["text", "bytes", "shared", "list", "nulls", "bits", "record"])
def test_a_row_of_parquet_that_is_too_large_is_a_bad_row(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limit, "BATCH_BYTES", LIMIT)
    pq.write_table(table(kind), "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet row [01]: the row has more than"):
        read(Path("rows.parquet"))


def test_batches_are_bounded_and_keep_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_limit, batches):
        monkeypatch.setattr(module, "BATCH_BYTES", 10_000)
    rows = [{"text": str(i) * 500} for i in range(300)]
    found = list(to_batches(((f"row {i}", row) for i, row in enumerate(rows))))
    assert max(batch.rows.nbytes for batch in found) < 30_000
    pq.write_table(pa.Table.from_pylist(rows), "rows.parquet")
    own = list(formats.read_rows_of_file(Path("rows.parquet"), "rows.parquet"))
    assert max(batch.rows.nbytes for batch in own) < 30_000
    for several in (found, own):
        assert [row for batch in several for row in batch.rows.to_pylist()] == rows
        last = [batch.address(0).rpartition(" ")[2] for batch in several]
        starts = np.cumsum([0, *(len(batch.rows) for batch in several)])[:-1]
        assert last == [str(start) for start in starts]


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}])
def test_a_deep_row_is_measured(wrap: Callable[[object], object]) -> None:
    """Down to the depth from which on it is refused."""
    value: object = LONG
    for _ in range(20_000):
        value = wrap(value)
    assert row_limit.size_of_row({"text": value}) < 1000


@pytest.mark.parametrize("empty", [[], {}, (), None, 1])
def test_what_is_empty_has_a_size(empty: object) -> None:
    """A reference to it takes memory, too."""
    assert row_limit.size_of_row({"text": [empty] * 1000}) >= 8000


def test_a_part_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PART_BYTES", 1000)
    found = to_batches((f"row {i}", {"text": "a" * 900}) for i in range(600))
    from tasks.ingestion.row_choice import RowChoice
    from tasks.ingestion.split_assigner import SplitAssigner

    division = SplitAssigner("train", {}, {}, 1)
    choice = RowChoice.of("data.source", row_choice_source(), None)
    with pytest.raises(DataError, match=r"row 0: the rows up to here have more than .* GiB together"):
        parts._write(choice, division, Path(), (0, found))


def row_choice_source() -> object:
    from params.sections.data import RowsFromFiles

    return RowsFromFiles(kind="files", train="rows.jsonl")


def test_memory_for_a_batch_of_parquet_is_bounded() -> None:
    """A list of 20 million numbers in a file of some KiB."""
    numbers = pa.array(np.zeros(20_000_000, "i8"))
    pq.write_table(pa.table({"text": pa.ListArray.from_arrays([0, 0, len(numbers)], numbers)}), "rows.parquet")
    assert Path("rows.parquet").stat().st_size < 200_000
    code = """
import resource
from pathlib import Path
from params import DataError
from tasks.ingestion import row_limit
from tasks.ingestion.formats import read_rows_of_file
row_limit._DECODE_BYTES = 100 << 20
try:
    list(read_rows_of_file(Path("rows.parquet"), "rows.parquet"))
except DataError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_DATA) == (-1, -1))
"""
    # of this pool, all memory counts at once; others have reserved some before
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "its next rows need more than" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("True\n")


def test_a_workbook_that_unpacks_to_very_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_BOOK_BYTES", 1 << 20)
    with zipfile.ZipFile("book.xlsx", "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("xl/worksheets/sheet1.xml", b" " * (2 << 20))
    with pytest.raises(DataError, match="GiB unpacked"):
        convert.convert_files(["book.xlsx"], Path("out.csv"))


def workbook(path: Path, rows: int, columns: int) -> None:
    """Write a workbook of a few KiB with very many cells."""
    openpyxl = pytest.importorskip("openpyxl")
    openpyxl.Workbook().save("small.xlsx")
    sheet = "xl/worksheets/sheet1.xml"
    with zipfile.ZipFile("small.xlsx") as small, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name in small.namelist():
            if name != sheet:
                book.writestr(name, small.read(name))
        cells = "<row>" + "<c><v>1</v></c>" * columns + "</row>"
        space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        book.writestr(sheet, f'<worksheet xmlns="{space}"><sheetData>{cells * rows}</sheetData></worksheet>')


def test_memory_for_a_workbook_is_bounded() -> None:
    workbook(Path("book.xlsx"), 300, 100)
    assert Path("book.xlsx").stat().st_size < 20_000
    convert.convert_files(["book.xlsx"], Path("whole.csv"))
    code = f"""\
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tasks.ingestion import row_limit
from tasks.scaffold import convert
row_limit._DECODE_BYTES = 8 << 20
convert.convert_files(["book.xlsx"], Path("out.csv"))
"""
    # in a process of its own, because this one may have memory left that others have freed
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DataError" in done.stderr
    assert "its cells need more than" in done.stderr
    assert not Path("out.csv").exists()


def test_a_workbook_with_columns_that_have_no_name_is_refused() -> None:
    workbook(Path("book.xlsx"), 1, 18_300)
    with pytest.raises(DataError, match="columns, which Excel does not have"):
        convert.convert_files(["book.xlsx"], Path("out.csv"))
