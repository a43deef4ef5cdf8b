"""What the beginning of a file shows, and that the command in the error writes a file that can be read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from params import DataError
from tasks.scaffold.file_heads import guess_text_unit, refuse_misreadable_file
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source

ROWS = [("Where is my card, please?", "card"), ("It rains; what now?", "weather"), ("Is it late?", "time")] * 4


def lines(delimiter: str, header: bool = True) -> str:
    rows = [("question", "topic"), *ROWS] if header else ROWS
    return "\n".join(f"{text}{delimiter}{label}" for text, label in rows) + "\n"


MESSY = {
    "semicolons": (
        "rows.csv",
        "question;topic\n" + "".join(f'"{t}";{x}\n' for t, x in ROWS),
        "separated by semicolons",
    ),
    "tabs": ("rows.csv", lines("\t"), "separated by tabs"),
    "tsv": ("rows.tsv", lines("\t"), ".tsv files cannot be read"),
    "a JSON array": ("rows.json", json.dumps([{"question": t, "topic": x} for t, x in ROWS]), "JSON array"),
}


@pytest.mark.parametrize(("name", "content", "what"), MESSY.values(), ids=MESSY)
def test_the_fix_converts_the_file(name: str, content: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=what) as error:
        refuse_misreadable_file(path)
    command = shlex.split(error.value.fix.partition(": ")[2])
    assert command[:2] == ["python", "-c"]
    exec(command[2], {})
    (clean,) = set(path.parent.iterdir()) - {path}
    sample = read_source_sample(
        find_source(NewRecipeRequest("x", str(clean.relative_to(tmp_path))), tmp_path).source, tmp_path
    )
    assert [(row["question"], row["topic"]) for row in sample.rows["train"]] == ROWS


def test_a_table_without_a_header_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame(ROWS).to_csv(path, index=False, header=False)
    with pytest.raises(DataError, match=r"has no header: ") as error:
        refuse_misreadable_file(path)
    code = shlex.split(error.value.fix.partition(": ")[2])[2]
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "rows-clean.csv").read_text().splitlines()[:2] == [
        "column1,column2",
        '"Where is my card, please?",card',
    ]


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


def test_other_encodings_and_pretty_json_are_named(tmp_path: Path) -> None:
    for name, content, what in (
        ("wide.csv", "text,label\nä,b\n".encode("utf-16"), "is UTF-16"),
        ("pretty.json", b'{\n  "text": "a",\n  "label": "b"\n}\n', "over several lines"),
        ("rows.pkl", b"", "loading it can run code"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=what):
            refuse_misreadable_file(tmp_path / name)


def test_the_unit_of_a_text_follows_from_its_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("a\nb\n\nc\n\nd\n")
    assert guess_text_unit([path])[0] == "paragraph"
    path.write_text("a\nb\nc\n\n")
    assert guess_text_unit([path])[0] == "line"
    assert guess_text_unit([path] * 30)[0] == "file"
