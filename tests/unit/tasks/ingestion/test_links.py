"""No link among files of data leads to a file elsewhere, whatever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from params import DataError, load
from tasks.evaluation.review_answers import _read_kept, take_answers
from tasks.ingestion.files import FileSource
from tasks.ingestion.links import LINKED_PROJECT
from tasks.scaffold.convert import convert_files
from tasks.scaffold.corpus import add_corpus
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source
from tests.support.project import TINY

LEAVING = {
    "a file": ("b.csv", "../home/key"),
    "an absolute path": ("b.csv", "ABSOLUTE/home/key"),
    "a folder": ("more", "../home"),
    "a link to a link": ("b.csv", "c"),
    "a hidden file of the project": ("b.csv", "../project.csv"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    (root / "rows").mkdir(parents=True)
    (root / "home").mkdir()
    (root / "home" / "key").write_text("text,label\nPRIVATE,x\n")
    (root / "home" / "key.csv").write_text("text,label\nPRIVATE,x\n")
    (root / ".env").write_text("text,label\nPRIVATE,x\n")
    (root / "project.csv").symlink_to(".env")
    (root / "rows" / "a.csv").write_text("text,label\nhonest,x\n")
    monkeypatch.chdir(root)
    return root


def link(root: Path, name: str, target: str) -> None:
    if target == "c":
        (root / "rows" / "c").symlink_to("../home/key")
    (root / "rows" / name).symlink_to(target.replace("ABSOLUTE", str(root)))


def texts(pattern: str, root: Path = Path()) -> list[str]:
    batches = FileSource({"train": pattern}, root).batches("train")
    return [row["text"] for batch in batches for row in batch.rows.to_pylist()]


def new(pattern: str) -> object:
    return find_source(NewRecipeRequest(name="x", data=pattern), Path())


def convert(pattern: str) -> None:
    convert_files([pattern], Path("out"))


def corpus(pattern: str) -> object:
    found = new("rows/a.csv")
    return add_corpus(found, NewRecipeRequest(name="x", data="rows/a.csv", corpus=pattern), Path())  # type: ignore[arg-type]


def corrections(pattern: str) -> object:
    path = Path("params/tiny.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(TINY.replace("data:\n", f"data:\n  corrections: {pattern}\n", 1))
    return _read_kept(load(path))


READERS: list[Callable[[str], object]] = [texts, new, convert, corpus, corrections]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("pattern", ["rows/*.csv", "rows/**/*.csv", "rows/**"])
@pytest.mark.parametrize("kind", LEAVING)
def test_link_out_of_the_folder_is_not_followed(
    project: Path, kind: str, pattern: str, read: Callable[[str], object]
) -> None:
    link(project, *LEAVING[kind])
    if kind == "a folder" and pattern == "rows/*.csv":
        pattern = "rows/*/*.csv"
    with pytest.raises(DataError, match="is a link that leads out of its folder"):
        read(pattern)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_named_file_that_is_such_a_link_is_not_followed(project: Path, read: Callable[[str], object]) -> None:
    link(project, "b.csv", "../home/key.csv")
    with pytest.raises(DataError, match="name the file or folder that it leads to"):
        read("rows/b.csv")


def test_answers_of_a_review_are_read_from_no_such_link(project: Path) -> None:
    link(project, "b.csv", "../home/key.csv")
    Path("params").mkdir()
    Path("params/tiny.yaml").write_text(TINY.replace("data:\n", "data:\n  corrections: rows/kept.csv\n", 1))
    with pytest.raises(DataError, match="is a link that leads out of its folder"):
        take_answers(Path("params/tiny.yaml"), Path("rows/b.csv"), may_be_new=True)


def test_links_within_the_folder_are_followed(project: Path) -> None:
    (project / "rows" / "more").mkdir()
    (project / "rows" / "more" / "b.csv").symlink_to("../a.csv")
    assert texts("rows/**/*.csv") == ["honest", "honest"]


def test_a_folder_that_somebody_names_may_be_a_link(project: Path, tmp_path: Path) -> None:
    (project / "rows").rename(tmp_path / "shared")
    (project / "rows").symlink_to(tmp_path / "shared")
    assert texts("rows/*.csv") == texts("rows/a.csv") == texts(str(tmp_path / "shared/*.csv")) == ["honest"]


def test_links_to_the_cache_of_dvc_are_followed(project: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache/files/md5/ab" / ("c" * 30)
    cached.parent.mkdir(parents=True)
    (project / "rows" / "a.csv").rename(cached)
    (project / "rows" / "a.csv").symlink_to(cached)
    assert texts("rows/*.csv") == texts("rows/a.csv") == ["honest"]


@pytest.mark.parametrize("pattern", ["rows/*.csv", "rows/a.csv", "rows/**"])
def test_a_temporary_clone_reads_the_files_of_its_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (tmp_path / "clone/rows").mkdir(parents=True)
    (tmp_path / "clone/rows/a.csv").symlink_to(project / "rows/a.csv")
    monkeypatch.chdir(tmp_path / "clone")
    with pytest.raises(DataError, match="leads out"):
        texts(pattern)
    monkeypatch.setenv(LINKED_PROJECT, str(project))
    assert texts(pattern) == ["honest"]
    Path("rows/a.csv").unlink()
    Path("rows/a.csv").symlink_to(project / "home/key.csv")
    with pytest.raises(DataError, match="leads out"):
        texts(pattern)


def test_hidden_files_that_a_pattern_names_are_read(project: Path) -> None:
    (project / "rows" / "a.csv").rename(project / "rows" / ".a.csv")
    assert texts("rows/.*.csv") == ["honest"]
