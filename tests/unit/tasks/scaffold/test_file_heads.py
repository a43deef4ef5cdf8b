"""What the beginning of a file shows, and that the command in the error writes a file that can be read."""

from __future__ import annotations

import csv
import io
import lzma
import shlex
import subprocess
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from params import DataError
from tasks.scaffold.file_heads import EXCEL_SUFFIXES, OTHER_FORMATS, guess_text_unit, refuse_misreadable_file
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support import forked

LABELS = ("007", "NA", "null", "1_0")
ROWS = [(f"It\u2019s late: is it {i % 5}?", LABELS[i % 4]) for i in range(24)]
TABLE = pa.table({"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]})


def lines(delimiter: str = ",", header: bool = True) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([("text", "label"), *ROWS] if header else ROWS)
    return text.getvalue()


def arrow_stream() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def arrow_file() -> bytes:
    sink = io.BytesIO()
    feather.write_feather(TABLE, sink)
    return sink.getvalue()


def archive() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr("in/rows.csv", lines())
    return sink.getvalue()


CONVERTED = {
    "no header": ("rows.csv", lines(header=False).encode(), "has no header"),
    "no header, semicolons": ("rows.csv", lines(";", header=False).encode(), "has no header"),
    "no header, in a folder": ("it's here/rows.tsv", lines("\t", header=False).encode(), "has no header"),
    "an index": (
        "rows.csv",
        lines().replace("\r\n", "\r\n1,").join([",", ""])[:-2].encode(),
        "pandas writes its index",
    ),
    "Windows": ("rows.csv", lines().encode("cp1252"), "not UTF-8"),
    "UTF-16 without a mark": ("rows.csv", lines().encode("utf-16le"), "looks like UTF-16LE"),
    ".arrow": ("rows.arrow", arrow_stream(), "cannot be read"),
    ".arrow as a file": ("rows.arrow", arrow_file(), "cannot be read"),
    ".feather": ("rows.feather", arrow_file(), "cannot be read"),
    ".xz": ("rows.csv.xz", lzma.compress(lines().encode()), "cannot be read"),
    ".zip": ("rows.zip", archive(), "cannot be read"),
}


def sample(path: Path, root: Path) -> list[tuple[str, str]]:
    found = find_source(NewRecipeRequest("x", str(path.relative_to(root))), root).source
    return [tuple(row.values()) for row in read_source_sample(found, root).rows["train"]]


@pytest.mark.parametrize(("name", "content", "what"), CONVERTED.values(), ids=CONVERTED)
def test_the_command_in_the_fix_gives_the_right_rows(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as error:
        sample(path, tmp_path)
    command = error.value.fix.split(": ", 1)[1].partition("; else")[0]
    python = shlex.quote(forked.python())
    subprocess.run(["sh", "-c", command.replace("python -", f"{python} -", 1)], check=True)
    (clean,) = {path for path in path.parent.rglob("*") if path.is_file()} - {path}
    assert sample(clean, tmp_path) == ROWS


def test_every_kind_of_file_that_is_refused_is_converted_above() -> None:
    converted = {Path(name).suffix for name, _, _ in CONVERTED.values()}
    without_command = {".pkl", ".xls", *EXCEL_SUFFIXES}  # a workbook has tests of its own
    assert set(OTHER_FORMATS) - without_command <= converted
    assert not any(" -" in OTHER_FORMATS[suffix] for suffix in without_command)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("rain,weather\nsun,weather\nbread,food\n", "'weather' in its first line is a value"),
        ("7,weather\n8,food\n", "has the number '7'"),
        ("what about the rain?,weather\nis there bread?,food\n", "has the text 'what about the rain"),
    ],
)
def test_each_sign_of_a_missing_header_is_enough(content: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=what):
        refuse_misreadable_file(path)


@pytest.mark.parametrize(
    "content",
    [
        "text,label\na,b\n",
        "text,label\n",
        "id,question text,is it good?\n1,how,yes\n",
        "text\nsemicolons; in; texts\n",
        '"a, b",label\nx,y\n',
    ],
)
def test_a_header_is_not_taken_for_a_row(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    refuse_misreadable_file(path)


def test_files_without_a_command_say_what_to_do(tmp_path: Path) -> None:
    for name, what in (
        ("rows.pkl", "loading it can run code"),
        ("rows.xls", "save it as CSV in UTF-8"),
        ("rows.gz", "name it after its content, for example rows.jsonl.gz"),
    ):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=what):
            refuse_misreadable_file(tmp_path / name)


def test_the_unit_of_a_text_follows_from_its_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("a\nb\n\nc\n\nd\n")
    assert guess_text_unit([path])[0] == "paragraph"
    path.write_text("a\nb\nc\n\n")
    assert guess_text_unit([path])[0] == "line"
    assert guess_text_unit([path] * 30)[0] == "file"
