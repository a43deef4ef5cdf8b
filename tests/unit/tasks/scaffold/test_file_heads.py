"""What the beginning of a file shows. The commands in the errors are run in test_named_commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from params import DataError
from tasks.ingestion.formats.text_files import guess_text_unit
from tasks.scaffold.file_heads import refuse_misreadable_file


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
