"""`evergreen convert` changes no value that it need not change."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.commands import main
from tasks.scaffold.convert import _write_converted, convert_files
from tasks.scaffold.forms import RowForm
from tests.unit.tasks.scaffold.test_forms import CHAT


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def converted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return converted_file("rows.jsonl")


def converted_file(name: str) -> list[dict[str, Any]]:
    convert_files([name], Path("new.jsonl"))
    return [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]


def test_numbers_beside_a_converted_column_of_a_table_stay_as_they_are_written() -> None:
    cells = [("3.10", "12.50", "007"), ("3.1", "0.37", "1_0")]
    with Path("rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ("messages", "version", "price", "code"),
                *((json.dumps(CHAT), *own) for own in cells * 10),
            ]
        )
    rows = converted_file("rows.csv")
    assert rows[0]["messages"] == CHAT
    assert [(row["version"], row["price"], row["code"]) for row in rows] == cells * 10


def test_numbers_of_a_table_are_texts_already(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.csv").write_text("question,answer\n" + "".join(f"What is {i} halves?,{i}.50\n" for i in range(20)))
    assert main(["convert", "rows.csv", "new.jsonl"]) != 0
    assert "no form that has to be converted" in capsys.readouterr().err


def test_what_records_hold_is_said_by_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    converted([{"number": i, "translation": {"{a}": f"a {i}", "b": "b"}} for i in range(20)])
    assert "column `translation` holds records with '{a}', 'b': wrote" in capsys.readouterr().out


def test_an_answer_that_is_a_whole_conversation_gets_no_prompt_twice(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "a \u201cb\u201d", "completion": CHAT} for _ in range(20)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "rows.jsonl", "new.jsonl"]) != 0
    assert "no form that has to be converted" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["./rows.jsonl", "more/../rows.jsonl", "more//rows.jsonl", "{folder}/rows.jsonl"])
def test_a_file_is_one_file_however_its_path_is_written(name: str, tmp_path: Path) -> None:
    Path("more").mkdir()
    for folder in (".", "more"):
        Path(folder, "rows.jsonl").write_text(json.dumps({"text": "a text", "label": ["a"]}) + "\n")
    rows = converted_file(name.format(folder=tmp_path))
    assert rows == [{"text": "a text", "label": "a"}]


def test_values_of_other_columns_that_change_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """No form that is known changes any; one that did would be said."""
    rows = [{"text": f"a text {i}", "answer": ["accept", "reject"][i % 2], "price": i} for i in range(20)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def convert(row: dict[str, Any], name: str, _: Any) -> list[dict[str, Any]]:
        return [{**row, name: "new", "price": max(row["price"], 15)}]

    form = RowForm("is old", "it anew", lambda *_: True, convert, column="answer")
    assert _write_converted(Path("rows.jsonl"), Path("new.jsonl"), form) == 20
    said = "compared row by row: 15 values of other columns changed; `price` in 15 rows"
    assert said in capsys.readouterr().out
