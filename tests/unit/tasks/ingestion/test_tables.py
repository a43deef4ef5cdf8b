"""Tables of any cells are read as they were written, or refused: with quotes, delimiters and line ends, by every usual writer."""

from __future__ import annotations

import csv
import io
import logging
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from params import DataError
from tasks.commands import main
from tasks.ingestion.formats import read_rows_of_file
from tasks.scaffold.copies import CopyOptions, copy_file

Table = list[list[str]]
CELL = st.one_of(
    st.sampled_from(['"', '""', '"a"', '"a', 'a"', "a\tb", "a,b", "a\nb", "7", ""]), st.text('"\t,\n\ra 1', max_size=6)
)
TABLE = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=6)
)
QUOTING: dict[str, Any] = {"minimal": csv.QUOTE_MINIMAL, "all": csv.QUOTE_ALL, "texts": csv.QUOTE_NONNUMERIC}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def read(path: Path) -> Table:
    """Return the cells as text."""
    rows = [row for batch in read_rows_of_file(path, path.name) for row in batch.rows.to_pylist()]
    return [["" if value is None else str(value) for value in row.values()] for row in rows]


def read_or_refused(path: Path, text: str, names: list[str]) -> Table | None:
    """Return the cells of a table; those of one without a header by the command that gives it one. None if it is refused."""
    path.write_text(text, encoding="utf-8", newline="")
    clean = path.with_name("clean.csv")
    try:
        if names:
            copy_file(path, clean, CopyOptions(header=names))
        return read(clean if names else path)
    except DataError:
        return None


def names_of(table: Table) -> list[str]:
    return [f"name{i}" for i in range(len(table[0]))]


@given(TABLE, st.sampled_from([(".csv", ","), (".csv", ";"), (".csv", "\t"), (".tsv", "\t")]), st.booleans(), st.data())
@settings(max_examples=100, deadline=None)
def test_what_a_program_writes_is_read_as_it_was_or_refused(
    folder: Path, table: Table, kind: tuple[str, str], has_header: bool, data: st.DataObject
) -> None:
    suffix, delimiter = kind
    has_header |= delimiter not in {".csv": ",", ".tsv": "\t"}[suffix]  # a header says what separates columns
    writer, end = data.draw(st.sampled_from([*QUOTING, "pandas"])), data.draw(st.sampled_from(["\n", "\r\n"]))
    if end == "\n":  # Python writes carriage returns without quotes then, as if they were ends of lines
        table = [[cell.rstrip("\r") if has_header else cell.replace("\r", "") for cell in row] for row in table]
    text, names = io.StringIO(newline=""), names_of(table)
    if writer == "pandas":
        pd.DataFrame(table, columns=names).to_csv(
            text, sep=delimiter, index=False, header=has_header, lineterminator=end
        )
    else:
        lines = [names, *table] if has_header else table
        csv.writer(text, delimiter=delimiter, quoting=QUOTING[writer], lineterminator=end).writerows(lines)
    found = read_or_refused(folder / f"rows{suffix}", text.getvalue(), [] if has_header else names)
    assert found in (None, table)


@given(TABLE, st.sampled_from([(".csv", ","), (".tsv", "\t")]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_cells_that_are_only_joined_are_read_as_they_were_or_refused(
    folder: Path, table: Table, kind: tuple[str, str], has_header: bool
) -> None:
    """Where a program may have written quotes around cells, these cells lose them; of one column, lines between quotes are one row."""
    suffix, delimiter = kind
    table = [[re.sub(r"[,\t\n\r]", " ", cell) for cell in row] for row in table if any(row)] or [["x"] * len(table[0])]
    lines = [names_of(table), *table] if has_header else table
    text = "".join(delimiter.join(row) + "\n" for row in lines)
    found = read_or_refused(folder / f"rows{suffix}", text, [] if has_header else names_of(table))
    if len(table[0]) == 1 and found and any("\n" in row[0] for row in found):
        return
    in_quotes = [[re.fullmatch('"((?:[^"]|"")*)"', cell) for cell in row] for row in table]
    is_csv = suffix == ".csv" or all(
        match or '"' not in cell
        for one, row in zip(in_quotes, table, strict=True)
        for match, cell in zip(one, row, strict=True)
    )
    without = [
        [match[1].replace('""', '"') if match else cell for match, cell in zip(one, row, strict=True)]
        for one, row in zip(in_quotes, table, strict=True)
    ]
    assert found in (None, table) or (is_csv and found == without)


@given(TABLE)
@example([["a, b\nc", "pos"], ["d", "neg"]])
@settings(max_examples=50, deadline=None)
def test_nobody_is_asked_about_the_quotes_of_a_new_file(folder: Path, table: Table) -> None:
    """Also where each of its lines has as many cells as the first."""
    text, path, clean = io.StringIO(newline=""), folder / "asked.tsv", folder / "answered.csv"
    table = [[cell.replace("\r", "") for cell in row] for row in table]
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([names_of(table), *table])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    copy_file(path, clean, CopyOptions(quotes="around-cells"))
    assert read(clean) == table


def film(*more: str) -> str:
    """Return 300 lines of a table with tabs; each tenth text begins with a quote, and each text behind it ends with one."""
    chance = random.Random(3)
    marks = {0: '"{}, she says', 1: '{}, he answers"'}
    rows = [(marks.get(i % 10, "{}").format(f"scene {i} is slow"), chance.choice(["pos", "neg"])) for i in range(300)]
    return "\n".join(["sentence\tlabel", *map("\t".join, rows), *more]) + "\n"


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_lines_with_bare_quotes_are_rows_and_where_nobody_can_tell_a_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    delimiter = "\t" if suffix == ".tsv" else ";"
    text = film().replace("\t", delimiter)
    wanted = [line.split(delimiter) for line in text.splitlines()[1:]]
    Path(f"film{suffix}").write_text(text)
    with pytest.raises(DataError, match="each line has as many cells as the first") as caught:
        read(Path(f"film{suffix}"))
    assert caught.value.where == f"film{suffix}:2"
    commands = re.findall(r"evergreen (convert film\S+ \S+ --quotes [a-z-]+)", caught.value.fix)
    for command, rows in zip(commands, (300, 270), strict=True):
        Path("film-clean.csv").unlink(missing_ok=True)
        assert main(command.split()) == 0
        assert len(read(Path("film-clean.csv"))) == rows
        assert rows == 270 or read(Path("film-clean.csv")) == wanted
    Path(f"film{suffix}").write_text(text + f'a "bare" quote{delimiter}pos\n')
    if suffix == ".tsv":  # a program that writes CSV would have put that text in quotes, too
        assert read(Path("film.tsv")) == [*wanted, ['a "bare" quote', "pos"]]


def test_quotes_around_a_few_texts_are_characters_and_around_all_of_a_column_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"A whole sentence."\tpos\nHe said it\tneg\n')
    assert read(path)[0] == ['"A whole sentence."', "pos"]
    path.write_text('text\tlabel\n"A whole sentence."\tpos\n"He said it"\tneg\n')
    assert read(path)[0] == ["A whole sentence.", "pos"]
    path.write_text('text\tlabel\nHe said it\tpos\n"He said ""hi"""\tneg\n')
    assert read(path)[1] == ['He said "hi"', "neg"]
    path.write_text('"text"\t"label"\n"say "hi" now"\tpos\n')
    with pytest.raises(DataError, match="malformed CSV") as caught:
        read(path)
    assert caught.value.fix.endswith("correct what is no row then: its header has quotes around a cell")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_that_hold_line_ends_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str) -> None:
    (tmp_path / "a.csv").write_bytes(f'text,label\n"a, b, c{end}d",pos\ne,neg\n'.encode())
    with caplog.at_level(logging.INFO):
        assert read(tmp_path / "a.csv")[0] == [f"a, b, c{end}d", "pos"]
    assert "a.csv: 1 of 2 rows hold line ends" in caplog.text


def test_a_malformed_table_names_the_command_for_bare_quotes_where_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"Yes", he said,pos\n'.replace(", he", " he"))
    with pytest.raises(DataError, match="malformed CSV") as caught:
        read(tmp_path / "a.csv")
    assert "--quotes characters" in caught.value.fix
    (tmp_path / "a.tsv").write_text('text\tlabel\n"Yes", he said\tpos\nno label\n')
    with pytest.raises(DataError, match="malformed CSV") as caught:
        read(tmp_path / "a.tsv")
    assert "line 3 has 1 cells, and the first has 2" in caught.value.fix


@pytest.mark.parametrize("delimiter", [";", ",", "|"])
def test_a_line_for_excel_is_neither_a_header_nor_a_row(delimiter: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{line}\n" for line in (f"sep={delimiter}", f"text{delimiter}label", f"a{delimiter}b")))
    with pytest.raises(DataError, match="tells Excel what separates cells"):
        read(path)
    with pytest.raises(DataError, match="tells Excel what separates cells"):
        copy_file(path, tmp_path / "new.csv", CopyOptions())
