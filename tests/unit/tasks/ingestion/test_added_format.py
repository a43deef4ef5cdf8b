"""A format of files is one class: of an installed package, or in the folder; `new`, `check` and ingest read its files."""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import openpyxl
import pytest
from typer.testing import CliRunner

from params import DataError, RecipeError
from params.foundation.artifacts import Artifacts
from params.foundation.plugins import find_plugins
from params.sections.data import RowsFromFiles
from tasks.commands import app
from tasks.diagnostics.check import check
from tasks.ingestion import formats
from tasks.ingestion.file_index import index_file
from tasks.ingestion.source import open_source
from tasks.shards.split_rows import SplitRows
from tests.support.installed import install
from tests.support.project import ROOT, write_lists_of_recipes
from tests.support.settings_check import check_settings_in_this_process

PAGE = (ROOT / "docs/add-a-format.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
GROUP = "evergreen.formats"
LINES_OF_KEYS = """
from tasks.ingestion.encodings import TextFilePosition, is_plain_text, open_as_utf8
from tasks.ingestion.formats.base import Format, RowPlaces

class LinesOfKeys(Format):
    suffixes = (".keys",)
    title = "keys"
    is_text = True

    def rows(self, path, name, wanted):
        with open_as_utf8(path, name, wanted.begin) as file:
            for number, line in enumerate(file, start=wanted.begin.line):
                yield f"{name}:{number}", dict(part.split("=") for part in line.decode().split())

    def can_be_cut(self, path, name):
        return is_plain_text(path)

    def find_places(self, path, name, known=()):
        places, offset, lines = [], 0, path.read_bytes().splitlines(keepends=True)
        for row, line in enumerate(lines):
            if row % 100 == 0:
                places.append(TextFilePosition(row, offset, row + 1))
            offset += len(line)
        return RowPlaces(places, len(lines))
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    find_plugins.cache_clear()
    yield folder
    find_plugins.cache_clear()
    sys.modules.pop("our_formats", None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    write_lists_of_recipes(root)
    monkeypatch.chdir(root)
    check_settings_in_this_process(monkeypatch)
    return root


def install_workbooks(folder: Path) -> None:
    points = re.findall(r'^(\w+) = "(.*)"$', PAGE, re.MULTILINE)
    install(folder, "our-formats", "1.0", {GROUP: dict(points)}, {"our_formats.py": CODE[0]})


def run(*arguments: str) -> None:
    CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)


def write_workbook(path: Path, rows: int, header: tuple[str, ...] = ("text", "label")) -> None:
    book = openpyxl.Workbook()
    book.active.append(header)
    for i in range(rows):
        book.active.append((f"the {['lamp', 'rain'][i % 2]} number {i}", "ab"[i % 2]))
    book.save(path)


def test_package_brings_a_format(packages: Path, project: Path) -> None:
    write_workbook(project / "data/rows.xlsx", 200)
    arguments = ("new", "mine", "--data", "data/rows.xlsx", "--model", "new", "--yes")
    with pytest.raises(DataError, match=r"\.xlsx files cannot be read"):
        run(*arguments)
    install_workbooks(packages)
    find_plugins.cache_clear()
    run(*arguments)
    assert "train: data/rows.xlsx" in (project / "params/mine.yaml").read_text()
    check(Path("params/mine.yaml"))
    run("ingest", "mine")
    raw = Artifacts("mine").raw
    rows = [row for split in ("train", "validation", "test") for row in SplitRows(raw / split).rows()]
    assert {row["text"]: row["label"] for row in rows} == {
        f"the {['lamp', 'rain'][i % 2]} number {i}": "ab"[i % 2] for i in range(200)
    }


def test_errors_name_file_and_row(packages: Path, project: Path) -> None:
    install_workbooks(packages)
    write_workbook(project / "data/a.xlsx", 3)
    write_workbook(project / "data/b.xlsx", 3, header=("text", "stars"))
    opened = open_source(RowsFromFiles(kind="files", train="data/*.xlsx"))
    with pytest.raises(DataError, match=r"data/b.xlsx: its columns differ .* lacks `label` and adds `stars`"):
        list(opened.batches("train"))
    (project / "data/c.xlsx").write_text("no workbook")
    with pytest.raises(DataError, match=r"data/c.xlsx"):
        list(open_source(RowsFromFiles(kind="files", train="data/c.xlsx")).batches("train"))
    shutil.copy(project / "data/a.xlsx", project / "data/a.xlsx.gz")
    with pytest.raises(DataError, match=r"a.xlsx.gz is compressed Excel") as error:
        open_source(RowsFromFiles(kind="files", train="data/a.xlsx.gz"))
    assert error.value.fix == "decompress it"


def test_another_version_reads_files_anew(packages: Path, project: Path) -> None:
    code, found = LINES_OF_KEYS.replace(".keys", ".own"), []
    path = project / "data/rows.own"
    path.write_text("".join(f"b={i}\n" for i in range(1000)))
    for version in ("1.0", "1.1", "1.1"):
        shutil.rmtree(packages)
        packages.mkdir()
        install(packages, "our-formats", version, {GROUP: {"own": "our_formats:LinesOfKeys"}}, {"our_formats.py": code})
        find_plugins.cache_clear()
        opened = open_source(RowsFromFiles(kind="files", train="data/rows.own"), memory=lambda _: project / "memory")
        (index,) = opened.indexes("train") or ()
        found.append((opened.revision, index.piece(0, 100).key))
    assert found[1] == found[2]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_broken_package_is_named(packages: Path, project: Path) -> None:
    install(packages, "our-formats", "1.0", {GROUP: {"odd": "our_formats:Odd"}}, {"our_formats.py": "import none"})
    (project / "data/a.odd").write_text("x")
    with pytest.raises(RecipeError, match=r"`odd` of the package our-formats 1\.0"):
        open_source(RowsFromFiles(kind="files", train="data/a.odd"))


def test_built_in_formats_come_first_and_all_are_named(packages: Path, project: Path) -> None:
    points = {"csv": "our_formats:Workbooks", "xlsx": "our_formats:Workbooks"}
    install(packages, "our-formats", "1.0", {GROUP: points}, {"our_formats.py": CODE[0]})
    assert formats.format_of("a.csv").title == "CSV"
    assert formats.readable_suffixes() == [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".xlsx"]
    (project / "data/a.xyz").write_text("x")
    with pytest.raises(DataError) as error:
        open_source(RowsFromFiles(kind="files", train="data/a.xyz"))
    assert error.value.fix == "use files that end in .csv, .tsv, .jsonl, .json, .parquet, .txt, .xlsx"


def test_file_in_the_folder_is_a_format_and_can_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines_of_keys.py").write_text(LINES_OF_KEYS)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    formats._built_in_formats.cache_clear()
    path, chance = tmp_path / "rows.keys", random.Random(0)
    path.write_text("".join(f"a={chance.randrange(10**6)} b={i}\n" for i in range(1000)))
    try:
        index = index_file(path, path.name)
        assert index.rows == 1000
        for first, count in ((0, 1000), (0, 1), (250, 300), (999, 5)):
            found = [
                (batch.address(i), row)
                for batch in index.piece(first, count).batches()
                for i, row in enumerate(batch.rows.to_pylist())
            ]
            assert [row["b"] for _, row in found] == [str(i) for i in range(first, min(1000, first + count))]
            assert found[0][0] == f"rows.keys:{first + 1}"
        (opened,) = open_source(RowsFromFiles(kind="files", train="rows.keys"), tmp_path).indexes("train") or ()
        assert opened.rows == 1000
    finally:
        formats._built_in_formats.cache_clear()
        sys.modules.pop("tasks.ingestion.formats.lines_of_keys", None)
