"""git_commit_with_dirty_mark: whether a commit holds the code of a run."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from params import Recipe
from params.schema import Model
from tasks.lineage.ancestors import find_base_commit
from tasks.training.versions import git_commit_with_dirty_mark
from tests.support import tiny


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A committed project whose recipe names two functions of its own."""
    root = tmp_path / "project"
    for name in (
        "trainer/losses.py",
        "params/tiny.yaml",
        "tasks/page.jinja",
        "own/losses.py",
        "own_rows.py",
        "other.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("# committed\n")
    (root / ".gitignore").write_text("ignored/\n__pycache__/\n")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "test")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "test@example.org")
    yield root
    for name in ("own", "ignored"):
        sys.modules.pop(name, None)


@pytest.fixture
def clean(root):
    """The commit of the whole project."""
    git("init", "-q", "-b", "main")
    return commit_all()


def commit_all():
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    return git("rev-parse", "HEAD")


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def recipe(loss="own.losses:focal"):
    source = {"kind": "function", "function": "own_rows:rows"}
    return Recipe.model_validate(tiny.recipe({"data.source": source, "training.loss": {"name": loss}}))


def change(root, name):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("# changed\n")
    importlib.invalidate_caches()


def test_commit_without_changes_is_not_marked(root, clean):
    assert git_commit_with_dirty_mark(root, recipe()) == clean


CHANGED = ("trainer/losses.py", "tasks/page.jinja", "own/losses.py", "own_rows.py")
UNTRACKED = ("trainer/objectives/new.py", "params/rows.py", "tasks/new/deep/code.py")


@pytest.mark.parametrize("name", [*CHANGED, *UNTRACKED])
def test_changed_or_untracked_code_is_marked(root, clean, name):
    change(root, name)
    assert git_commit_with_dirty_mark(root, recipe()) == f"{clean}+"
    committed = commit_all()
    assert git_commit_with_dirty_mark(root, recipe()) == committed


@pytest.mark.parametrize("name", ["own/more.py", "ignored/losses.py"])
def test_named_file_that_is_not_in_git_is_marked(root, clean, name):
    change(root, name)
    function = name.removesuffix(".py").replace("/", ".") + ":focal"
    assert git_commit_with_dirty_mark(root, recipe(function)) == f"{clean}+"


def test_named_file_outside_of_the_repository_is_marked(root, clean, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shared_losses.py").touch()
    assert git_commit_with_dirty_mark(root, recipe("shared_losses:focal")) == f"{clean}+"


def test_link_to_a_file_outside_of_the_repository_is_marked(root, clean, tmp_path):
    (tmp_path / "elsewhere.py").touch()
    (root / "own" / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    importlib.invalidate_caches()
    committed = commit_all()
    assert git_commit_with_dirty_mark(root, recipe("own.linked:focal")) == f"{committed}+"


@pytest.mark.parametrize("name", ["other.py", "notes.py", "data/rows.csv", "params/new.yaml", "params/tiny.yaml"])
def test_files_that_are_no_code_of_the_run_do_not_count(root, clean, name):
    """A release records the text of its recipe and the hashes of its rows."""
    change(root, name)
    assert git_commit_with_dirty_mark(root, recipe()) == clean


@pytest.mark.parametrize("name", ["textwrap:dedent", "_pytest.python_api:raises", "not.there:focal"])
def test_installed_packages_do_not_count(root, clean, name):
    assert git_commit_with_dirty_mark(root, recipe(name)) == clean


def test_commit_is_marked_if_git_cannot_compare(root, clean):
    (root / ".git" / "index").write_bytes(b"damaged")
    assert git_commit_with_dirty_mark(root, recipe()) == f"{clean}+"


def test_outside_of_git_there_is_no_commit(root):
    assert git_commit_with_dirty_mark(root, recipe()) is None
    git("init", "-q")
    assert git_commit_with_dirty_mark(root, recipe()) is None  # nothing is committed


def test_the_commit_of_a_base_is_that_which_was_loaded_last(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    place, commit = tmp_path / "models--alice--base", "a" * 40
    (place / "snapshots" / commit).mkdir(parents=True)
    (place / "snapshots" / commit / "config.json").write_text("{}")
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    found = [find_base_commit(Model(pretrained=name)) for name in ("alice/base", "alice/other", str(tmp_path))]
    assert found == [commit, None, None]
    assert find_base_commit(Model(config={"model_type": "llama"})) is None
