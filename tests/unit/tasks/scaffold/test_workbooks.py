"""Workbooks of Excel: the command that `new` prints gives a CSV file with what the cells hold."""

from __future__ import annotations

import csv
import datetime as dt
import re
import shlex
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from params import DataError
from params.foundation.installation import install_extra
from tasks.commands import main
from tasks.scaffold.look import read_source_sample
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support.project import ROOT

LABELS = ("007", "NA", "null", "1_0")
ROWS = [(f"It\u2019s late: is it {i % 5}?", LABELS[i % 4]) for i in range(24)]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_book(rows: list[Any], path: str = "it's here.xlsx", **sheets: list[Any]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for name, own in {"rows": rows, **sheets}.items():
        sheet = book.create_sheet(name)
        for row in own:
            sheet.append(row)
    del book["Sheet"]
    book.save(path)


def cells(path: str) -> list[list[str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_new_file_with_another_cell_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_book([("text", "label"), *ROWS], "rows.xlsx")
    write_text = Path.write_text
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "write_text", lambda path, text, **options: write_text(path, text.replace("007", "7", 1), **options)
        )
        assert main(["convert", "rows.xlsx", "rows.csv"]) != 0
    assert "row 2 would be another one in the new file" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["rows.xlsx"]
    assert main(["convert", "rows.xlsx", "rows.csv"]) == 0


def test_the_command_gives_the_right_rows() -> None:
    write_book([("text", "label"), *ROWS])
    with pytest.raises(DataError, match=r"\.xlsx files cannot be read") as error:
        find_source(NewRecipeRequest("x", "it's here.xlsx"))
    command = shlex.split(error.value.fix.partition(": ")[2])
    assert command[:2] == ["evergreen", "convert"]
    assert main(command[1:]) == 0
    source = find_source(NewRecipeRequest("x", command[-1])).source
    assert [tuple(row.values()) for row in read_source_sample(source).rows["train"]] == ROWS


def test_cells_are_as_they_are_stored() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    day = dt.datetime(2024, 2, 1)
    values = [7, 7.0, 0.1, True, day, day.replace(hour=9), dt.time(9, 30), None, 'a "b",\nc', "=1+1", " x "]
    write_book([range(len(values)), values, [None] * len(values)])
    book = openpyxl.load_workbook("it's here.xlsx")
    book["rows"]["A2"].number_format = "000"
    book["rows"]["J2"].value = 2
    book.save("it's here.xlsx")
    assert main(["convert", "it's here.xlsx", "rows.csv"]) == 0
    wanted = ["007", "7", "0.1", "True", "2024-02-01", "2024-02-01T09:00:00", "09:30:00", "", 'a "b",\nc', "2", " x "]
    assert cells("rows.csv")[1:] == [wanted]


def test_an_error_of_excel_is_an_empty_cell_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    write_book([["text", "label"], ["a", "b"], ["c", "#N/A"], ["#DIV/0!", "d"], ["said: #N/A", "#n/a"]])
    book = openpyxl.load_workbook("it's here.xlsx")
    assert [book["rows"][place].data_type for place in ("B3", "A4", "A5", "B5")] == ["e", "e", "s", "s"]
    assert main(["convert", "it's here.xlsx", "rows.csv"]) == 0
    assert cells("rows.csv")[1:] == [["a", "b"], ["c", ""], ["", "d"], ["said: #N/A", "#n/a"]]
    assert "left empty: 2 cells with an error of Excel, the first one rows!B3 (#N/A)" in capsys.readouterr().out


def test_a_sheet_is_named_and_others_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    write_book([["a"], ["1"]], more=[[None, "b"], [None, "2"]])
    assert main(["convert", "it's here.xlsx", "rows.csv"]) == 0
    assert "its other sheets are more" in capsys.readouterr().out
    assert main(["convert", "it's here.xlsx", "more.csv", "--sheet", "more"]) == 0
    assert (cells("rows.csv"), cells("more.csv")) == ([["a"], ["1"]], [["b"], ["2"]])
    assert main(["convert", "it's here.xlsx", "third.csv", "--sheet", "third"]) != 0
    assert "name one of rows, more" in capsys.readouterr().err


def test_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write_book([["a"], ["=1+1"]])
    Path("torn.xlsx").write_bytes(Path("it's here.xlsx").read_bytes()[:900])
    with zipfile.ZipFile("it's here.xlsx") as book, zipfile.ZipFile("broken.xlsx", "w") as broken:
        for part in book.namelist():
            broken.writestr(part, b"<x><" if "sheet1" in part else book.read(part))
    write_book([], "empty.xlsx", more=[["a"]])
    for name, what in (
        ("it's here", "rows!A2 has a formula without its value"),
        ("torn", "cannot be read as a workbook"),
        ("broken", "cannot be read as a workbook"),
        ("empty", "its sheet 'rows' is empty\n  fix: name one of rows, more with --sheet"),
    ):
        assert main(["convert", f"{name}.xlsx", "rows.csv"]) != 0
        assert what in capsys.readouterr().err
    assert main(["convert", "it's here.xlsx", "rows.jsonl"]) != 0
    assert "name it rows.csv" in capsys.readouterr().err


def test_without_openpyxl_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.xlsx").touch()
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert main(["convert", "rows.xlsx", "rows.csv"]) != 0
    assert install_extra("excel") in capsys.readouterr().err
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["excel"]
    assert extra[0] in re.findall(r"^\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
