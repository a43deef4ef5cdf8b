"""Code that a release names runs only if the project has taken it over."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from params import ModelError
from tasks.releases.clone import ProvenanceRecord, ReproducibleRelease, clone_project_in_block

FOREIGN = {
    "a pull request that was fetched to be read": ["fetch", "-q", "FORK", "main:refs/pull/7/head"],
    "a commit that was fetched without a name": ["fetch", "-q", "FORK", "main"],
    "a tag": ["fetch", "-q", "FORK", "main:refs/tags/v1"],
    "a note of git": ["fetch", "-q", "FORK", "main:refs/notes/fork"],
    "a branch of somebody's fork": ["fetch", "-q", "FORK", "main:refs/remotes/mallory/main"],
    "a pull request among the branches of the remote": ["fetch", "-q", "FORK", "main:refs/remotes/origin/pr/7"],
    "a pull request that was fetched as a local branch": ["fetch", "-q", "FORK", "main:pr-7"],
    "a replacement of a commit": ["replace", "-f", "FIRST", "BAD"],
}
OWN = {
    "a branch of the remote": ["update-ref", "refs/remotes/origin/next"],
    "HEAD, detached": ["checkout", "-q", "--detach"],
}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a remote, and a fork of it with a commit that nobody has read."""
    root, fork = tmp_path / "project", tmp_path / "fork"
    for folder in (root, fork):
        if folder == root:
            git(tmp_path, "init", "-q", "-b", "main", "project")
            git(root, "commit", "-q", "--allow-empty", "-m", "first")
            git(root, "remote", "add", "origin", str(tmp_path / "hosted"))
            git(root, "config", "--add", "remote.origin.fetch", "+refs/pull/*/head:refs/remotes/origin/pr/*")
        else:
            git(tmp_path, "clone", "-q", "project", "fork")
            (fork / "code.py").write_text("print('unread')\n")
            git(fork, "add", ".")
            git(fork, "commit", "-q", "-m", "faster")
    return root


def clone(root: Path, commit: str, trusted: tuple[str, ...] = ()) -> bool:
    """Whether the code of a commit is checked out."""
    record = ProvenanceRecord.model_construct(git_commit=commit)
    release = ReproducibleRelease("mallory/model@v1", record, {})
    with clone_project_in_block(root, commit, release, keep=False, trusted=trusted) as found:
        return (found.project / "code.py").exists()


@pytest.mark.parametrize("how", FOREIGN)
def test_a_commit_that_no_branch_of_the_project_has_does_not_run(project: Path, tmp_path: Path, how: str) -> None:
    bad, first = git(tmp_path / "fork", "rev-parse", "HEAD"), git(project, "rev-parse", "HEAD")
    if how == "a replacement of a commit":
        git(project, "fetch", "-q", str(tmp_path / "fork"), "main")
    places = {"FORK": str(tmp_path / "fork"), "BAD": bad, "FIRST": first}
    git(project, *(places.get(argument, argument) for argument in FOREIGN[how]))
    with pytest.raises(ModelError, match="is neither in HEAD nor in a branch") as caught:
        clone(project, bad)
    assert f"--trust-commit {bad}" in caught.value.fix
    assert clone(project, bad, (bad,))


@pytest.mark.parametrize("how", OWN)
def test_a_commit_of_the_project_runs(project: Path, tmp_path: Path, how: str) -> None:
    commit = git(tmp_path / "fork", "rev-parse", "HEAD")
    git(project, "fetch", "-q", str(tmp_path / "fork"), "main")
    git(project, *OWN[how], commit)
    assert clone(project, commit)
    assert not clone(project, git(project, "rev-parse", f"{commit}^"))


def test_a_local_branch_is_the_project_where_there_is_no_remote(project: Path, tmp_path: Path) -> None:
    git(project, "fetch", "-q", str(tmp_path / "fork"), "main:taken")
    git(project, "remote", "remove", "origin")
    assert clone(project, git(project, "rev-parse", "taken"))


def test_the_only_remote_is_that_of_the_project_by_any_name(project: Path, tmp_path: Path) -> None:
    git(project, "remote", "rename", "origin", "upstream")
    run = partial(git, project)
    run("fetch", "-q", str(tmp_path / "fork"), "main:refs/remotes/upstream/main")
    assert clone(project, run("rev-parse", "refs/remotes/upstream/main"))
    run("remote", "add", "mallory", str(tmp_path / "fork"))
    with pytest.raises(ModelError, match="nor in a branch"):
        clone(project, run("rev-parse", "refs/remotes/upstream/main"))
