"""Deleting what no branch, tag or pull request leads to."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from tasks.hub_server.server import LocalHub
from tasks.hub_server.store import RepositoryStore
from tests.unit.tasks.hub_server.contract import lfs_batch

REPO = "alice/model"
DAY_S = 24 * 3600


@pytest.fixture
def git(root: Path, hub: LocalHub, alice: HfApi) -> Path:
    """A repository with large files on main, on a tag, on a branch that is deleted, and one without a commit."""
    alice.create_repo(REPO)
    add(alice, "main.safetensors", "main")
    alice.create_tag(REPO, tag="v1")
    add(alice, "main.safetensors", "newer")
    alice.create_branch(REPO, branch="other")
    add(alice, "other.safetensors", "other")
    alice.create_branch(REPO, branch="gone")
    add(alice, "gone.safetensors", "gone")
    alice.delete_branch(REPO, branch="gone")
    folder = root / "models/alice/model.git"
    path = large(folder, "uncommitted")
    path.parent.mkdir(parents=True)
    path.write_text("uncommitted")
    (folder / "lfs/incoming/unfinished").write_text("unfinished")
    return folder


def add(api: HfApi, name: str, content: str) -> None:
    branch = name.partition(".")[0]
    api.create_commit(REPO, [CommitOperationAdd(name, content.encode())], commit_message=name, revision=branch)


def large(git: Path, content: str) -> Path:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return git / "lfs/objects" / sha256[:2] / sha256[2:4] / sha256


def age(git: Path) -> None:
    for path in (*git.glob("lfs/*/*"), *git.glob("lfs/objects/*/*/*"), *git.glob("objects/*/*")):
        if path.is_file():
            os.utime(path, (time.time() - DAY_S - 1,) * 2)


def fsck(git: Path) -> str:
    command = ["git", "-C", str(git), "fsck", "--full", "--strict"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_only_what_nothing_leads_to_is_deleted(root: Path, git: Path, alice: HfApi) -> None:
    store = RepositoryStore(root)
    assert store.prune(remove=True) == 0, "an upload may still wait for its commit"
    age(git)
    gone = sum(len(text) for text in ("gone", "uncommitted", "unfinished"))
    freed = store.prune(remove=False)
    assert gone < freed < gone + 2000, "with the commit of the branch"
    assert large(git, "gone").exists()
    assert "dangling commit" in fsck(git)
    assert store.prune(remove=True) == freed
    assert [large(git, text).exists() for text in ("main", "newer", "other", "gone", "uncommitted")] == [True] * 3 + [
        False
    ] * 2
    assert not (git / "lfs/incoming/unfinished").exists()
    assert fsck(git) == ""
    assert store.prune(remove=True) == 0
    for revision, name, text in (("v1", "main", "main"), ("main", "main", "newer"), ("other", "other", "other")):
        path = alice.hf_hub_download(REPO, f"{name}.safetensors", revision=revision, local_dir=root / ".." / revision)
        assert Path(path).read_text() == text


def test_pull_requests_keep_their_files(root: Path, git: Path, alice: HfApi) -> None:
    for status in ("open", "closed", "merged"):
        operations = [CommitOperationAdd(f"{status}.safetensors", status.encode())]
        number = alice.create_commit(REPO, operations, commit_message=status, create_pr=True).pr_num
        assert number
        if status == "closed":
            alice.change_discussion_status(REPO, number, "closed")
        if status == "merged":
            alice.merge_pull_request(REPO, number)
    age(git)
    assert RepositoryStore(root).prune(remove=True) > 0
    assert [large(git, text).exists() for text in ("open", "closed", "merged", "gone")] == [True] * 3 + [False]
    for number, name in enumerate(("open", "closed", "merged"), start=1):
        file = alice.hf_hub_download(
            REPO, f"{name}.safetensors", revision=f"refs/pr/{number}", local_dir=root / ".." / name
        )
        assert Path(file).read_text() == name
        assert alice.get_discussion_details(REPO, number).status == name
    assert alice.change_discussion_status(REPO, 2, "open").new_status == "open"
    alice.merge_pull_request(REPO, 2)
    assert alice.file_exists(REPO, "closed.safetensors")
    assert fsck(git) == ""


def test_object_that_an_upload_counts_on_stays(root: Path, git: Path, hub: LocalHub, alice: HfApi) -> None:
    age(git)
    sha256 = hashlib.sha256(b"gone").hexdigest()
    (answer,) = lfs_batch(hub.endpoint, REPO, (sha256, 4))
    assert "actions" not in answer, "it is stored"
    RepositoryStore(root).prune(remove=True)
    assert large(git, "gone").exists()
    assert not large(git, "uncommitted").exists()
    add(alice, "main.safetensors", "gone")


def test_deleted_repository_is_passed_over(root: Path, git: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    age(git)
    store = RepositoryStore(root)
    listed = list(store.list("models"))
    monkeypatch.setattr(RepositoryStore, "list", lambda _, kind: listed if kind == "models" else [])
    store.delete("models", "alice", "model")
    assert store.prune(remove=True) == 0
