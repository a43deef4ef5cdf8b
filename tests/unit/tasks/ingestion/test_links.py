"""No link among files of data leads to a file elsewhere, whatever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from params import DataError
from tasks.ingestion.files import FileSource
from tasks.ingestion.links import LINKED_PROJECT
from tasks.measurements.label_review.review_answers import _read_kept, take_answers
from tasks.recipes.loading import load
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


OBJECT = f"ab/{'c' * 30}"
KEPT = {
    "DVC 3": (f".dvc/cache/files/md5/{OBJECT}", ""),
    "DVC 2": (f".dvc/cache/{OBJECT}", ""),
    "DVC, elsewhere": (
        f"../cache/files/md5/{OBJECT}",
        "[core]\n    analytics = false\n[cache]\n    dir = ../../cache\n",
    ),
    "git-annex": (".git/annex/objects/4z/Gk/SHA256E-s9--ab.csv/SHA256E-s9--ab.csv", ""),
    "git-annex of a submodule": (".git/modules/rows/annex/objects/4z/Gk/WORM-s9--a.csv/WORM-s9--a.csv", ""),
}


@pytest.mark.parametrize("read", [texts, new, corpus])
@pytest.mark.parametrize("kind", KEPT)
def test_links_to_what_dvc_or_git_annex_keeps_are_followed(
    project: Path, kind: str, read: Callable[[str], object]
) -> None:
    """Of this project; what they keep of another one is a file elsewhere, whose error names the command that puts a copy there."""
    place, settings = KEPT[kind]
    for own in (".git", ".dvc"):
        (project / own).mkdir()
    (project / ".dvc/config").write_text(settings)
    kept = project / place
    kept.parent.mkdir(parents=True)
    (project / "rows/a.csv").rename(kept)
    (project / "rows/a.csv").symlink_to(kept)
    read("rows/*.csv")
    read("rows/a.csv")
    other = project.parent / "other" / place.removeprefix("../")
    other.parent.mkdir(parents=True)
    other.write_text("text,label\nPRIVATE,x\n")
    (project / "rows/b.csv").symlink_to(other)
    command = "git annex unlock" if "annex" in kind else "dvc unprotect"
    with pytest.raises(DataError, match=f"is a link that leads out.*\n  fix: `{command} rows/b.csv`"):
        read("rows/*.csv")


@pytest.mark.parametrize("place", [".git/config", ".dvc/config.local", ".git/annex/creds/key", ".dvc/cache/rows.csv"])
def test_what_else_lies_beside_these_objects_is_not_read(project: Path, place: str) -> None:
    private = project / place
    private.parent.mkdir(parents=True)
    private.write_text("text,label\nPRIVATE,x\n")
    (project / "rows/b.csv").symlink_to(private)
    with pytest.raises(DataError, match="is a link that leads out"):
        texts("rows/*.csv")


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
