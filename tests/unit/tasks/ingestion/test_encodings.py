"""Files as people have them: compressed, in other encodings, with other delimiters, as JSON arrays. No value changes."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from params import DataError
from params.foundation.artifacts import Artifacts
from params.schema import Launch
from params.sections.data import Data, RowsFromFiles
from tasks.commands import main
from tasks.ingestion.batches import to_readable_batch
from tasks.ingestion.source import open_source
from tasks.ingestion.stage import ingest
from tasks.shards.split_rows import SplitRows

LABELS = ("007", "NA", "null", "1_0", "None", "3.10", "#1", "-")
ROWS = [
    {"text": f"It\u2019s; number, {i}\t| \u2028 \u20ac5\nnext\n\U0001f600", "label": LABELS[i % 8]} for i in range(24)
]


def as_csv(delimiter: str, quoting: Any = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting)
    writer.writerows([["text", "label"], *([*row.values()] for row in ROWS)])
    return text.getvalue()


TEXTS: dict[str, str] = {
    ".csv": as_csv(","),
    "quoted.csv": as_csv(",", csv.QUOTE_ALL),
    "semicolons.csv": as_csv(";"),
    "tabs.csv": as_csv("\t"),
    "bars.csv": as_csv("|"),
    ".tsv": as_csv("\t"),
    ".jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "array.json": json.dumps(ROWS, ensure_ascii=False),
    "pretty.json": json.dumps(ROWS, indent=1, ensure_ascii=False),
    "behind-each-other.json": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "array-of-lines.jsonl": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


def source(name: str, root: Path, **options: Any) -> Any:
    return open_source(RowsFromFiles(kind="files", train=name, **options), root)


def rows(name: str, root: Path) -> list[dict[str, Any]]:
    opened = source(name, root)
    indexes = opened.indexes("train")
    batches = opened.batches("train") if indexes is None else (b for i in indexes for b in i.piece(0, i.rows).batches())
    return [row for batch in batches for row in to_readable_batch(batch)[1]]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_of_any_form_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, compression: str, encoding: str
) -> None:
    monkeypatch.setattr("tasks.ingestion.formats.json_files._BLOCK_BYTES", 100)
    name = f"rows{kind}{compression}"
    (tmp_path / name).write_bytes(COMPRESSED[compression](TEXTS[kind].encode(encoding)))
    assert rows(name, tmp_path) == ROWS


def test_numbers_of_a_compressed_table_stay_as_they_are_written(tmp_path: Path) -> None:
    text = "question,answer\n" + "".join(f"How much is {i}?,{i}.50\n" for i in range(40))
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = Data.model_validate(
        {"source": {"kind": "files", "train": "rows.csv.gz"}, "split": {"test": 0.3, "validation": 0.3}}
    )
    ingest(Artifacts("r", tmp_path), data=data, seed=1, launch=Launch(micro_batch_size=1))
    found = SplitRows(tmp_path / "runs/r/raw/train").reading({"answer": "string"}).rows()
    assert {row["answer"] for row in found} < {f"{i}.50" for i in range(40)}


def test_compressed_and_plain_text_have_the_same_units(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n\nthree\n"))
    assert [row["text"] for row in rows("a.txt.gz", tmp_path)] == ["one\ntwo", "three"]


def refusal(name: str, content: bytes, root: Path) -> DataError:
    (root / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        rows(name, root)
    return caught.value


@pytest.mark.parametrize(
    ("name", "encoding", "what"),
    [
        ("rows.csv", "cp1252", "not UTF-8: .* as Windows' cp1252 the line is 'It\u2019s number 0 \u20ac5,007'"),
        ("rows.jsonl", "cp1252", "not UTF-8"),
        ("rows.csv.gz", "cp1252", "not UTF-8"),
        ("rows.csv", "utf-16le", "it looks like UTF-16LE without a byte order mark"),
        ("rows.csv", "utf-16be", "it looks like UTF-16BE without a byte order mark"),
        ("rows.jsonl", "utf-16le", "it looks like UTF-16LE without a byte order mark"),
        ("rows.csv", "utf-8", "has bytes of value 0, which text has not$"),
        ("rows.csv.gz", "utf-8", "has bytes of value 0, which text has not$"),
    ],
)
def test_the_command_for_another_encoding_gives_the_right_rows(
    tmp_path: Path, name: str, encoding: str, what: str
) -> None:
    wanted = [{"text": f"It\u2019s number {i} \u20ac5", "label": LABELS[i % 8]} for i in range(24)]
    lines = [f"{row['text']},{row['label']}" for row in wanted]
    text = "\n".join(["text,label", *lines] if ".csv" in name else [json.dumps(r, ensure_ascii=False) for r in wanted])
    content = (text.replace("7", "\0007") if encoding == "utf-8" else text).encode(encoding)
    error = refusal(name, gzip.compress(content) if name.endswith(".gz") else content, tmp_path)
    assert re.search(what, error.what)
    assert main(shlex.split(re.findall("evergreen (convert [^;]+)", error.fix)[0])) == 0
    (new,) = {path.name for path in tmp_path.iterdir()} - {name}
    assert rows(new, tmp_path) == wanted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "a\x01\tb \\" c", "n": 12.50}\r\n{"text": "d\u2028e"}\n'),
        ("a.jsonl", '{"text": "a\x01\tb \\" c",\t"n": 12.50}\n\n{"text": "d\u2028e"}'),
        ("a.json", '[{"text": "a\x01\tb \\" c", "n": 12.50},\n\t{"text": "d\u2028e"}]'),
        ("a.json", '{\n"text": "a\x01\tb \\" c", "n": 12.50\n}\n{\n"text": "d\u2028e"}'),
        ("a.jsonl.gz", '{"text": "a\x01\tb \\" c", "n": 12.50}\n{"text": "d\u2028e"}'),
        ("a.jsonl.bz2", '{"text": "a\x01\tb \\" c", "n": 12.50}\n{"text": "d\u2028e"}'),
        ("a.jsonl", '{"text": "a\n\tb \\" c", "n": 12.50}\n{"text": "d\u2028e"}'),
        ("a.json", '[{"text": "a\n\tb \\" c", "n": 12.50}, {"text": "d\u2028e"}]'),
        ("a.jsonl", '{"text": "d\u2028e"}\n{"text": "a\n\tb \\" c", "n": 12.50}\n{"text": "last"}\n'),
    ],
)
def test_the_command_for_raw_control_characters_gives_the_right_rows(tmp_path: Path, name: str, content: str) -> None:
    error = refusal(name, COMPRESSED.get(Path(name).suffix, bytes)(content.encode()), tmp_path)
    assert "malformed JSON: " in error.what
    assert main(shlex.split(re.findall("evergreen (convert [^;]+)", error.fix)[0])) == 0
    (new,) = {path.name for path in tmp_path.iterdir()} - {name}
    control = "\x01" if "\x01" in content else "\n"
    first, second = sorted(rows(new, tmp_path)[:2], key=lambda row: row["text"])
    assert (first["text"], first["n"], second["text"]) == (f'a{control}\tb " c', 12.5, "d\u2028e")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[{"a": 1}, 2]', "a.json item 1: is not an object"),
        ("a.json", '[{"a": 1}, {"a": ', "a.json item 1: malformed JSON"),
        ("a.json", '[{"a": 1} {"a": 2}]', "a.json item 0: malformed JSON: another row must follow"),
        ("a.json", '{\n"a": 1}\n{"a": 2', "a.json item 1: malformed JSON"),
        ("a.json", '[{"a": 1}]\n[{"a": 2}]', "a.json behind item 0: malformed JSON: the array has ended"),
        ("a.jsonl", '[]\n{"a": 2}', "a.jsonl: malformed JSON: the array has ended, and more follows"),
        ("a.json", '{\n"a": 1}\n]\n{"a": 2}', "a.json behind item 0: malformed JSON: the array has ended"),
        ("a.json", '[{"a": NaN}]', "a.json item 0: malformed JSON: JSON has no NaN"),
    ],
)
def test_malformed_items_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    assert message in str(refusal(name, content.encode(), tmp_path))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.zst", "a.jsonl.bz2"])
def test_damaged_compression_is_a_data_error(tmp_path: Path, name: str) -> None:
    content = COMPRESSED[Path(name).suffix](TEXTS[".csv" if ".csv" in name else ".jsonl"].encode() * 40)
    for damaged in (content[: len(content) // 2], b"text,label\nx,y\n"):
        assert name in refusal(name, damaged, tmp_path).where
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(DataError, match="compressed Parquet"):
        source("a.parquet.gz", tmp_path)


def test_text_that_is_cut_inside_of_a_character_is_named(tmp_path: Path) -> None:
    error = refusal("a.csv", TEXTS[".csv"].encode("utf-16")[:-1], tmp_path)
    assert error.what.startswith("begins as UTF-16, and goes on as something else")


def test_an_empty_array_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[ ]")
    assert rows("a.json", tmp_path) == []
