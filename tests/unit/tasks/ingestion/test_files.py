"""Files as a source: every format, and the error for each malformed file."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from params import DataError
from params.sections.data import RowsFromFiles
from tasks.ingestion.batches import to_readable_batch
from tasks.ingestion.source import open_source
from tasks.scaffold.file_heads import refuse_misreadable_file


def rows(root: Path, pattern: str, split: str = "train", **source: Any) -> list[dict[str, Any]]:
    opened = open_source(RowsFromFiles(kind="files", train=pattern, **source), root)
    return [row for batch in opened.batches(split) for row in to_readable_batch(batch)[1]]


def addresses(root: Path, pattern: str, **source: Any) -> list[str]:
    opened = open_source(RowsFromFiles(kind="files", train=pattern, **source), root)
    return [batch.address(i) for batch in opened.batches("train") for i in range(len(batch.rows))]


def revision(root: Path, pattern: str) -> str:
    return open_source(RowsFromFiles(kind="files", train=pattern), root).revision


def refused(root: Path, pattern: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        rows(root, pattern)
    assert message in str(caught.value)
    assert caught.value.fix


def test_csv_columns_are_typed_by_all_cells(tmp_path: Path) -> None:
    text = (
        "\ufefftext,count,share,code,mixed,void\n" + '"a, ""b""\nc",1,1.5,007,1,\n' + "plain,-20,2,1e3,x,\n" + ",,,,,\n"
    )
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    assert rows(tmp_path, "a.csv") == [
        {"text": 'a, "b"\nc', "count": 1, "share": 1.5, "code": "007", "mixed": "1", "void": None},
        {"text": "plain", "count": -20, "share": 2.0, "code": "1e3", "mixed": "x", "void": None},
        {"text": "", "count": None, "share": None, "code": "", "mixed": "", "void": None},
    ]
    assert addresses(tmp_path, "a.csv") == ["a.csv:2", "a.csv:4", "a.csv:5"]


def test_csv_numbers_that_would_lose_digits_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n12345678901234567890,12345678901234567\n2,0.5\n")
    assert rows(tmp_path, "a.csv")[0] == {"id": "12345678901234567890", "n": "12345678901234567"}


def test_jsonl_keeps_types_and_missing_keys_are_null(tmp_path: Path) -> None:
    written = [{"text": "ä\u2028", "spans": [{"label": "x", "start": 1}]}, {"text": None, "n": 1}, {"meta": {}}]
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in written)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8", newline="\r\n")
    assert rows(tmp_path, "a.jsonl") == [
        {"text": "ä\u2028", "spans": [{"label": "x", "start": 1}], "n": None, "meta": None},
        {"text": None, "spans": None, "n": 1, "meta": None},
        {"text": None, "spans": None, "n": None, "meta": None},
    ]
    assert addresses(tmp_path, "a.jsonl") == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:5"]


def test_nested_values_stay_as_they_are_written(tmp_path: Path) -> None:
    """Arrow would unite their keys, and add nulls."""
    written = [
        {"a": {"b": {}}, "c": [{}, {"d": {}}], "of": {"town": "x"}, "mixed": [1, "a"]},
        {"a": {"c": None, "b": 1}, "c": [], "of": {"left": 1, "right": 2.0}, "mixed": {"k": [None]}},
        {"a": None, "c": None, "of": "text", "mixed": None},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, written)), encoding="utf-8")
    assert list(map(json.dumps, rows(tmp_path, "a.jsonl"))) == list(map(json.dumps, written))


def test_structs_of_parquet_have_no_nulls_that_nobody_wrote(tmp_path: Path) -> None:
    calls = [[{"name": "weather", "arguments": {"town": "x"}}], [{"name": "add", "arguments": {"left": 1}}], None]
    table = pa.table(
        {
            "calls": pa.array(calls),
            "struct": pa.array([{"a": None, "b": [None]}, None, {"a": {"c": 1}, "b": None}]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "of_map": pa.array([{"m": [("k", 1)]}, None, {}], pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
            "json": pa.array(['{"n": null}', None, "1"], pa.json_()),
            "of_json": pa.array([['{"n": null}'], None, []], pa.list_(pa.string())).cast(pa.list_(pa.json_())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(tmp_path, "a.parquet") == [
        {"calls": calls[0], "struct": {"b": [None]}, "map": [("k", 1)]}
        | {"of_map": {"m": {"k": 1}}, "json": {"n": None}, "of_json": [{"n": None}]},
        {"calls": calls[1]} | dict.fromkeys(("struct", "map", "of_map", "json", "of_json")),
        {"calls": None, "struct": {"a": {"c": 1}}, "map": [], "of_map": {}, "json": 1, "of_json": []},
    ]


def test_only_line_feeds_end_a_jsonl_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":\r"x"}\r\n{"text": "y"}')
    assert addresses(tmp_path, "a.jsonl") == ["a.jsonl:1", "a.jsonl:2"]


def test_parquet_keeps_types_and_decodes_dictionaries(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int8()), "kind": pa.array(["a", "b"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    (source_batch,) = open_source(RowsFromFiles(kind="files", train="a.parquet"), tmp_path).batches("train")
    batch, _ = to_readable_batch(source_batch)
    assert batch.rows.schema == pa.schema([("n", pa.int8()), ("kind", pa.string())])
    assert batch.rows.to_pylist() == [{"n": 1, "kind": "a"}, {"n": 2, "kind": "b"}]
    assert batch.address(1) == "a.parquet row 1"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("line", [("a.txt:2", "one"), ("a.txt:3", "two"), ("a.txt:6", " three")]),
        ("paragraph", [("a.txt:2", "one\ntwo"), ("a.txt:6", " three")]),
        ("file", [("a.txt", "\none\ntwo\n \n\n three")]),
    ],
)
def test_text_units(tmp_path: Path, unit: Any, expected: list[tuple[str, str]]) -> None:
    (tmp_path / "a.txt").write_text("\none\ntwo\n \n\n three")
    found = [row["text"] for row in rows(tmp_path, "a.txt", text_unit=unit)]
    assert list(zip(addresses(tmp_path, "a.txt", text_unit=unit), found, strict=True)) == expected


def test_pattern_reads_files_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "d" / "folder.csv").mkdir(parents=True)
    (tmp_path / "d" / "b.csv").write_text("text\nfrom csv\n")
    (tmp_path / "d" / "a.jsonl").write_text('{"text": "from json"}\n')
    (tmp_path / "d" / "c.txt").write_text("from text")
    assert [row["text"] for row in rows(tmp_path, "d/*")] == ["from json", "from csv", "from text"]
    assert [row["text"] for row in rows(tmp_path, "**/*.csv")] == ["from csv"]
    assert [row["text"] for row in rows(tmp_path, str(tmp_path / "d/b.csv"))] == ["from csv"]


def test_path_may_contain_pattern_characters(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    assert rows(tmp_path, "a[1].txt") == [{"text": "x"}]


def test_revision_follows_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        root.mkdir()
        (root / "a.txt").write_text("x")
    first = revision(one, "*.txt")
    assert first == revision(two, "a.txt") == revision(two, str(two / "a.txt"))
    assert first.startswith("sha256:")
    (one / "a.txt").write_text("y")
    (two / "a.txt").rename(two / "b.txt")
    assert len({first, revision(one, "*.txt"), revision(two, "*.txt")}) == 3


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("data/*.csv", "data.source.train: data/*.csv: no file matches in {root}"),
        ("data", "data.source.train: data: is a folder\n  fix: write a pattern that matches files"),
        (
            "a.x*",
            "a.xlsx has a format that cannot be read\n  fix: use files that end in .csv, .tsv, .jsonl, .json, .parquet",
        ),
        ("a.txt", "a.txt:2: not UTF-8: the byte at offset 6 (line 2)"),
    ],
    ids=["no file", "folder", "unknown suffix", "ends inside a character"],
)
def test_unreadable_files_are_refused(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.xlsx").write_text("x")
    (tmp_path / "a.txt").write_bytes(b"one\ntw\xc3")
    refused(tmp_path, pattern, message.format(root=tmp_path))


@pytest.mark.parametrize("rest", ["", "\n", '\n{"text": "next"}\n', '\r\n{"text": "next"}\r\n{"text": "last"}'])
def test_a_line_of_json_that_is_cut_off_is_to_be_completed_or_removed(tmp_path: Path, rest: str) -> None:
    """Not to be joined with the next row, which has a line of its own."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "a cut' + rest.encode())
    refused(
        tmp_path, "a.jsonl", "a.jsonl:2: malformed JSON: the line ends within a text\n  fix: complete it, or remove it"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "text": "b"}', "a.jsonl:2: malformed JSON: the key 'text' occurs twice"),
        ('{"text": "a", "k": {"x": 1, "x": 2}}', "a.jsonl:2: malformed JSON: the key 'x' occurs twice"),
        ('{"text": "a", "k": NaN}', "a.jsonl:2: malformed JSON: JSON has no NaN"),
        ('{"text": "a", "k": [-Infinity]}', "a.jsonl:2: malformed JSON: JSON has no -Infinity"),
    ],
)
def test_ambiguous_json_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line)
    refused(tmp_path, "a.jsonl", message)


@pytest.mark.parametrize("pattern", ["b.jsonl", "*.jsonl"])
def test_pipe_or_dangling_link_is_named(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}')
    os.mkfifo(tmp_path / "b.jsonl")
    refused(tmp_path, pattern, "data.source.train: 'b.jsonl' is no regular file")
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl").symlink_to("nowhere")
    refused(tmp_path, pattern, "data.source.train: 'b.jsonl' is a link to a file that does not exist")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "txt"])
def test_empty_file_is_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").touch()
    refused(tmp_path, "a.*", f"a.{suffix}: the file is empty")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
@pytest.mark.parametrize("before", [b"", b'{"t": "\xc3\xa4"}\n' * 100_000])
def test_invalid_utf8_is_refused_with_its_offset(tmp_path: Path, suffix: str, before: bytes) -> None:
    bad = b'{"t": "caf\xe9"}\n'
    (tmp_path / f"a.{suffix}").write_bytes((before if suffix != "csv" else before.replace(b'"', b"")) + bad)
    size = len(before if suffix != "csv" else before.replace(b'"', b""))
    line = before.count(b"\n") + 1
    refused(tmp_path, "a.*", f"a.{suffix}:{line}: not UTF-8: the byte at offset {size + 10} (line {line})")


def test_invalid_utf8_offset_across_blocks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n" * (2**19 - 1) + b"x\xc3\xa4\n\xff")
    refused(tmp_path, "a.txt", f"not UTF-8: the byte at offset {2**20 + 2} (line {2**19 + 1})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "a.csv:3: has 1 cells, and the header has 2"),
        ('a,b\n"x\ny",1\nz,2,3\n', "a.csv:4: has 3 cells, and the header has 2"),
        ('a,b\n1,"x"y\n', "a.csv:2: malformed CSV: ',' expected after '\"'"),
        ('a,b\n1,2\n3,"never\nclosed\n', "a.csv:3: malformed CSV: unexpected end of data"),
        ("a,a\n1,2\n", "a.csv:1: the header has column `a` twice"),
        ("a,\n1,2\n", "a.csv:1: a column of the header has no name"),
    ],
)
def test_malformed_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    refused(tmp_path, "a.csv", message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "a.jsonl:2: malformed JSON: Expecting ',' delimiter"),
        ('["x"]', "a.jsonl:2: is an array, not an object"),
        ("3", "a.jsonl:2: is a number or a boolean, not an object"),
        ("[" * 100_000, "a.jsonl:2: malformed JSON"),
    ],
)
def test_malformed_jsonl_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + line + "\n")
    refused(tmp_path, "a.jsonl", message)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt", "a.conll"])
def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064}\nsize 12345\n")
    with pytest.raises(DataError, match="is a pointer of Git LFS") as caught:
        refuse_misreadable_file(tmp_path / name)
    assert caught.value.fix == "get the file itself: git lfs pull"
    if not name.endswith(".conll"):  # which only `convert` reads
        refused(tmp_path, name, "is a pointer of Git LFS")


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(1000))}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    refused(tmp_path, "a.parquet", "a.parquet: cannot be read as Parquet")


def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    (tmp_path / "b.csv").write_text("text,lable\nx,1\n")
    refused(tmp_path, "*.csv", "b.csv: its columns differ from those of a.csv: it lacks `label` and adds `lable`")
    source = open_source(RowsFromFiles(kind="files", train="a.csv", test="b.csv"), tmp_path)
    list(source.batches("train"))
    with pytest.raises(DataError, match=r"b.csv: its columns differ from those of a.csv"):
        list(source.batches("test"))


def test_file_deleted_after_opening_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    source = open_source(RowsFromFiles(kind="files", train="a.txt"), tmp_path)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a.txt: cannot be read: .*No such file"):
        list(source.batches("train"))
    with pytest.raises(DataError, match=r"a.txt: cannot be read: .*No such file"):
        _ = source.revision
