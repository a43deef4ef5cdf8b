"""Pieces of files: any of them has the rows, the addresses and the errors of the file as a whole."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError, InputsChangedError
from tasks.ingestion.file_index import FileRowIndex, FileRowRange, index_file
from tasks.ingestion.formats import csv_tables, json_files, read_rows_of_file
from tasks.ingestion.formats.base import WantedRows

TEXTS = ["plain", "", "two\nlines", 'a "quote"', "comma, here", "ä\u2028ö\x1c", " lead", "carriage\rreturn", "{brace"]


def rows_of(count: int) -> list[dict[str, Any]]:
    chance = random.Random(count)
    return [{"text": chance.choice(TEXTS) * chance.randint(1, 3), "n": chance.randint(0, 9)} for _ in range(count)]


def write_json(path: Path, count: int) -> None:
    chance = random.Random(1)
    between = ["\n", "\n", "\r\n", "\n\n", "\n \t\n", "\n\u3000\n", "\n "]
    text = "".join(json.dumps(row, ensure_ascii=False) + chance.choice(between) for row in rows_of(count))
    path.write_bytes(b"\xef\xbb\xbf" + text.rstrip().encode())


def write_json_behind_blank_lines(path: Path, count: int) -> None:
    write_json(path, count)
    path.write_bytes(b"\n \r\n" + path.read_bytes().removeprefix(b"\xef\xbb\xbf"))


def write_csv(path: Path, count: int) -> None:
    chance = random.Random(1)
    quoted = ('"' + row["text"].replace('"', '""') + f'",{row["n"]}' for row in rows_of(count))
    text = "text,n" + "".join(chance.choice(["\n", "\r\n", "\n\n"]) + line for line in quoted)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())


def write_old_csv(path: Path, count: int) -> None:
    """Lines end with a carriage return, but for some."""
    lines = (f"{row['n']},{i}" + ("\n" if i % 40 == 39 else "\r") for i, row in enumerate(rows_of(count)))
    path.write_bytes(b"text,n\r" + "".join(lines).encode())


def write_parquet(path: Path, count: int) -> None:
    pq.write_table(pa.Table.from_pylist(rows_of(count)), path, row_group_size=70)


def read(source: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (batch.address(i), {name: value for name, value in row.items() if value is not None})
        for batch in source
        for i, row in enumerate(batch.rows.to_pylist())
    ]


WRITERS = {
    "a.jsonl": write_json,
    "blank.jsonl": write_json_behind_blank_lines,
    "a.csv": write_csv,
    "old.csv": write_old_csv,
    "a.parquet": write_parquet,
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of every tenth row, and blocks of a few lines."""
    monkeypatch.setattr(csv_tables, "PLACE_ROWS", 10)
    monkeypatch.setattr(json_files, "PLACE_ROWS", 10)
    monkeypatch.setattr(json_files, "_BLOCK_BYTES", 100)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("count", [1, 9, 10, 345])
def test_pieces_have_the_rows_and_addresses_of_the_file(tmp_path: Path, name: str, count: int) -> None:
    path = tmp_path / name
    WRITERS[name](path, count)
    whole = read(read_rows_of_file(path, name, WantedRows(text_unit="line")))
    index = index_file(path, name)
    assert index.rows == len(whole) == count
    for first in range(0, count, 3):
        for rows in (1, 7, 20, 64, count):
            piece = index.piece(first, rows)
            assert piece.rows == min(rows, count - first)
            assert read(piece.batches()) == whole[first : first + rows]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_piece_begins_close_to_its_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, 345)
    index = index_file(tmp_path / name, name)
    assert all(0 <= first - index.piece(first, 1).begin.row < 10 for first in range(345))


def keys(index: FileRowIndex, rows: int) -> list[str]:
    return [index.piece(first, rows).key for first in range(0, index.rows, rows)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_only_pieces_that_have_changed_have_other_keys(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, 100)
    before = keys(index_file(path, name), 20)
    line = '{"text": "new", "n": 1}' if name == "a.jsonl" else "new,1"
    content = path.read_bytes()
    path.write_bytes(content + b"\n" + line.encode() * 1)
    after = keys(index_file(path, name), 20)
    assert after[:4] == before[:4]
    assert len(after) == 6
    path.write_bytes(content[:-2] + b"7" + content[-1:] if name == "a.jsonl" else content[:-1] + b"7")
    changed = keys(index_file(path, name), 20)
    assert (changed[:4], changed[4] == before[4]) == (before[:4], content == path.read_bytes())
    assert not set(keys(index_file(path, "other name"), 20)) & set(before), "errors name the file"
    path.write_bytes(content[:20] + b"\n" * (name == "a.jsonl") + content[20:].replace(b"\n", b"\n\n", 1))
    assert not set(keys(index_file(path, name), 20)) & set(before), "errors name the line"


def test_a_csv_column_that_becomes_text_changes_all_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "1\n" * 50)
    before = keys(index_file(path, "a.csv"), 20)
    path.write_text("n\n" + "1\n" * 50 + "one\n")
    index = index_file(path, "a.csv")
    assert not set(keys(index, 20)) & set(before)
    assert read(index.piece(0, 1).batches()) == [("a.csv:2", {"n": "1"})]


def test_a_changed_parquet_file_changes_all_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, 100)
    before = keys(index_file(path, "a"), 20)
    assert len(set(before)) == 5
    write_parquet(path, 101)
    assert not set(keys(index_file(path, "a"), 20)) & set(before)


def test_errors_in_a_piece_have_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"n": i}) for i in range(50)]
    lines[37] = "{oops"
    path.write_text("\n".join(lines))
    piece: FileRowRange = index_file(path, "a.jsonl").piece(30, 20)
    with pytest.raises(DataError, match=r"^a.jsonl:38: malformed JSON"):
        list(piece.batches())
    path.write_bytes("\n".join(lines).replace("{oops", "{\xff}").encode("latin1"))
    with pytest.raises(DataError, match=r"^a.jsonl:38: not UTF-8: the byte at offset \d+ \(line 38\)"):
        list(index_file(path, "a.jsonl").piece(30, 20).batches())


def test_a_file_without_rows_has_no_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n \n\n")
    (tmp_path / "a.csv").write_text("text\n")
    assert index_file(tmp_path / "a.jsonl", "a").rows == index_file(tmp_path / "a.csv", "a").rows == 0
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        index_file(tmp_path / "a.csv", "a.csv")


EDITS = {
    "a byte of a row": lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
    "cut off": lambda content, at: content[:at],
    "longer": lambda content, at: content[:at] + b"x" * 50 + content[at:],
    "other rows": lambda content, at: content[:1000] + content[1000:][::-1],
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_piece_of_a_file_that_has_changed_is_refused(tmp_path: Path, name: str, edit: str) -> None:
    """Whether the edit can be parsed or not; pieces whose bytes are as they were are still read."""
    path = tmp_path / name
    WRITERS[name](path, 345)
    content, index = path.read_bytes(), index_file(path, name)
    whole = read(index.piece(0, 345).batches())
    edited = EDITS[edit](content, len(content) // 2)
    path.write_bytes(edited)
    for first in range(0, 345, 20):
        with contextlib.suppress(InputsChangedError):
            assert read(index.piece(first, 20).batches()) == whole[first : first + 20]
    with pytest.raises(InputsChangedError, match=f"^{name}: changed while its rows were read"):
        read(index.piece(0, 345).batches())
    path.write_bytes(content)
    assert read(index.piece(0, 345).batches()) == whole


def test_row_groups_can_be_in_any_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, 345)
    whole = read(index_file(path, "a").piece(0, 345).batches())
    monkeypatch.setattr("tasks.ingestion.formats.parquet_files._are_ascending", lambda offsets: False)
    index = index_file(path, "a")
    assert len(index.found.places) == 2, "one for all row groups, and the footer"
    assert read(index.piece(100, 100).batches()) == whole[100:200]
