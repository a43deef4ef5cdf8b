"""Which files, dataset or query a recipe reads, and what DVC watches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from params import DataError, RecipeError
from tasks.scaffold.corpus import add_corpus, read_corpus
from tasks.scaffold.proposal import ObjectiveProposal
from tasks.scaffold.request import NewRecipeRequest
from tasks.scaffold.sources import find_source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("params", "data"):
        (tmp_path / name).mkdir()
    return tmp_path


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text,label\na,b\n" if path.suffix == ".csv" else '{"text": "a"}\n')


def found(root: Path, data: str, **flags: str) -> dict[str, str]:
    source = find_source(NewRecipeRequest("x", data, **flags), root).source
    return {k: v for k, v in source.model_dump(exclude_none=True).items() if k in ("train", "validation", "test")}


CASES = {
    "a file": (["data/a.csv"], "data/a.csv", {"train": "data/a.csv"}),
    "a folder": (
        ["data/q/train.csv", "data/q/test.csv", "data/q/dev.csv"],
        "data/q",
        {"train": "data/q/train.csv", "test": "data/q/test.csv", "validation": "data/q/dev.csv"},
    ),
    "shards": (
        ["data/q/train-0.jsonl", "data/q/train-1.jsonl", "data/q/test-0.jsonl"],
        "data/q/",
        {"train": "data/q/train-*.jsonl", "test": "data/q/test-0.jsonl"},
    ),
    "folders of splits": (
        ["data/q/train/0.jsonl", "data/q/train/1.jsonl", "data/q/validation/0.jsonl"],
        "data/q",
        {"train": "data/q/train/*.jsonl", "validation": "data/q/validation/0.jsonl"},
    ),
    "folders of folders": (
        ["data/q/train/a/0.jsonl", "data/q/train/b/1.jsonl"],
        "data/q",
        {"train": "data/q/train/**/*.jsonl"},
    ),
    "a glob": (["data/q/x-1.csv", "data/q/x-2.csv", "data/q/y.csv"], "data/q/x-*.csv", {"train": "data/q/x-*.csv"}),
    "no names": (["data/q/x.csv", "data/q/y.csv"], "data/q", {"train": "data/q/*.csv"}),
    "a folder called test": (["data/test/x.csv"], "data/test/x.csv", {"train": "data/test/x.csv"}),
    "a word inside a name": (["data/q/trainer.csv", "data/q/latest.csv"], "data/q", {"train": "data/q/*.csv"}),
}


@pytest.mark.parametrize(("files", "data", "expected"), CASES.values(), ids=CASES)
def test_splits_are_found_by_name(files: list[str], data: str, expected: dict[str, str], root: Path) -> None:
    write(root, *files)
    assert found(root, data) == expected


def test_flags_name_held_out_files(root: Path) -> None:
    write(root, "data/a.csv", "other/b.csv", "other/c.csv")
    flags = {"test": "other/b.csv", "validation": str(root / "other" / "c.csv")}
    with pytest.raises(DataError, match="no folder of their own"):  # DVC would watch the whole project
        found(root, "data/a.csv", **flags)
    write(root, "data/more/b.csv")
    assert found(root, "data/a.csv", test="data/more/b.csv") == {"train": "data/a.csv", "test": "data/more/b.csv"}
    with pytest.raises(DataError, match=r"--test: data/no\.csv: there is no such file"):
        found(root, "data/a.csv", test="data/no.csv")


def test_dvc_watches_the_file_or_the_folder_of_the_files(root: Path) -> None:
    write(root, "data/a.csv", "data/q/train.csv", "data/q/test.csv", "data/r/train/0.jsonl", "data/r/train/1.jsonl")

    def watched(data: str) -> str:
        return find_source(NewRecipeRequest("x", data), root).watched

    assert watched("data/a.csv") == "data/a.csv"
    assert watched(str(root / "data/a.csv")) == "data/a.csv"
    assert watched("data/q") == "data/q"
    assert watched("data/r") == "data/r/train"
    write(root, "train.csv", "test.csv")
    with pytest.raises(DataError, match="no folder of their own"):
        watched("t*.csv")


def test_what_is_not_used_is_named(root: Path) -> None:
    write(root, "data/q/train.csv", "data/q/test.csv", "data/q/other.csv")
    assert "not used: data/q/other.csv" in find_source(NewRecipeRequest("x", "data/q"), root).notes
    (note,) = find_source(NewRecipeRequest("x", "data/q/train.csv"), root).notes
    assert "add --test" in note


@pytest.mark.parametrize(
    ("data", "flags", "what"),
    [
        ("data/none.csv", {}, "there is no such file"),
        ("data", {}, "no files that can be read"),
        ("data/q", {}, "several formats: .csv, .jsonl"),
        ("data/only-test", {}, "no file of training rows"),
        ("data/x.csv", {"query": "SELECT 1"}, "needs a database"),
        ("sqlite:///rows.db", {}, "is needed for a database"),
        ("postgresql://me:secret@host/db", {"query": "SELECT 1"}, "holds a password"),
        ("hub:nothing", {}, "names no dataset"),
    ],
)
def test_what_cannot_be_a_source_is_an_error_with_its_flag(
    data: str, flags: dict[str, str], what: str, root: Path
) -> None:
    if data.startswith("data/"):
        write(root, "data/q/x.csv", "data/q/y.jsonl", "data/only-test/test.csv", "data/x.csv")
    with pytest.raises((DataError, RecipeError), match=what):
        find_source(NewRecipeRequest("x", data, **flags), root)


def test_a_query(root: Path) -> None:
    found = find_source(NewRecipeRequest("x", "sqlite:///data/rows.db", query="SELECT * FROM t"), root)
    assert found.watched == "data/rows.db"
    assert "ORDER BY" in found.notes[0]
    url = "postgresql://me:${PASSWORD}@host/db"
    found = find_source(NewRecipeRequest("x", url, query="SELECT * FROM t ORDER BY id"), root)
    assert (found.watched, found.notes) == ("tasks/ingestion/sql.py", [])


PAIRS = ObjectiveProposal("embedding", {"prompt": "query", "completion": "answer"})


@pytest.mark.parametrize(
    ("data", "corpus", "watched"),
    [
        ("data/q/a.csv", "data/q/docs.jsonl", "data/q"),
        ("data/q/a.csv", "data/d/*.jsonl", "data"),
        ("data/q", "data/q/docs.csv", "data/q"),
        ("sqlite:///data/q/a.csv", "data/d/docs.jsonl", "data"),
        ("sqlite:///${DB}", "data/d/docs.jsonl", "data/d/docs.jsonl"),
    ],
)
def test_documents_are_watched_beside_the_rows(root: Path, data: str, corpus: str, watched: str) -> None:
    write(root, "data/q/a.csv", corpus.replace("*", "docs"))
    query = "SELECT 1 ORDER BY 1" if "://" in data else None
    request = NewRecipeRequest("x", data, query=query, corpus=corpus)
    source = add_corpus(find_source(request, root), request, root)
    assert (source.corpus, source.watched) == (corpus, watched)
    if "://" not in data:
        assert source.source.patterns == {"train": "data/q/a.csv"}, "documents are no rows"


@pytest.mark.parametrize(
    ("documents", "column"),
    [
        ({"answer": "a", "text": "b"}, None),
        ({"id": "1", "body": "the text"}, "body"),
        ({"id": 1, "words": "the text"}, "words"),
    ],
)
def test_column_of_the_documents_is_found(root: Path, monkeypatch, documents: dict[str, object], column: str) -> None:
    monkeypatch.chdir(root)
    (root / "data/docs.jsonl").write_text(json.dumps(documents))
    (root / "data/a.csv").write_text("query,answer\na,b\n")
    request = NewRecipeRequest("x", "data/a.csv", corpus="data/docs.jsonl")
    source = add_corpus(find_source(request, root), request, root)
    documents, option = read_corpus(source, PAIRS, root)
    assert documents == 1
    assert {name: own.value for name, own in option.items()} == ({"document_column": column} if column else {})
    for other in ("sequence_classification", "ranking"):
        with pytest.raises(RecipeError, match=f"{other} searches no corpus"):
            read_corpus(source, ObjectiveProposal(other, {"prompt": "query"}), root)
    (root / "data/docs.jsonl").write_text(json.dumps({"one": "some words", "other": "more words"}))
    with pytest.raises(RecipeError, match=r"is not clear: one, other\n  fix: call it `text` there"):
        read_corpus(source, PAIRS, root)
    missing = NewRecipeRequest("x", "data/a.csv", corpus="data/none.jsonl")
    with pytest.raises(DataError, match="there is no such file"):
        add_corpus(find_source(missing, root), missing, root)
