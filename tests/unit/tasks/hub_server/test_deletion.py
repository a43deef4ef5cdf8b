"""A repository that is deleted while a request is served is a missing one, in every route and at every step."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi

from tasks.hub_server.server import LocalHub
from tests.unit.tasks.hub_server.contract import lfs_batch

REPO = "alice/model"
API = f"/api/models/{REPO}"
HEADERS = {"Authorization": "Bearer token-of-alice", "Content-Type": "application/json"}
COMMIT = "\n".join(
    json.dumps({"key": key, "value": value})
    for key, value in (("header", {"summary": "s"}), ("file", {"path": "p", "content": "x"}))
)
REQUESTS = [
    *(("GET", path, "") for path in ("/", "/api/models", f"/{REPO}", f"/{REPO}/commits/main", f"/{REPO}/tree/main")),
    ("GET", f"/{REPO}/blob/main/a.txt", ""),
    *(("GET", f"/{REPO}/resolve/main/{path}", "") for path in ("a.txt", "m.safetensors", "none")),
    *(("GET", API + path, "") for path in ("", "/auth-check", "/tree/main", "/refs", "/commits/main")),
    ("POST", f"{API}/paths-info/main", "paths=a.txt"),
    ("POST", f"{API}/preupload/main", '{"files": [{"path": "a.txt", "size": 1}]}'),
    ("POST", f"/{REPO}.git/info/lfs/objects/batch", json.dumps({"objects": [{"oid": "0" * 64, "size": 1}]})),
    ("POST", f"{API}/commit/main", COMMIT),
    ("POST", f"{API}/tag/main", '{"tag": "new"}'),
    ("DELETE", f"{API}/tag/v1", ""),
    ("POST", f"{API}/branch/new", "{}"),
    ("DELETE", f"{API}/branch/old", ""),
    *(("GET", f"{page}/discussions{path}", "") for page in (API, f"/{REPO}") for path in ("", "/1")),
    ("POST", f"{API}/commit/main?create_pr=1", COMMIT),
    ("POST", f"{API}/commit/refs%2Fpr%2F1", COMMIT),
    ("POST", f"{API}/discussions/1/comment", '{"comment": "c"}'),
    ("POST", f"{API}/discussions/1/status", '{"status": "closed"}'),
    ("POST", f"{API}/discussions/1/merge", ""),
    ("DELETE", "/api/repos/delete", '{"name": "model"}'),
    ("PUT", "upload", "1234"),
]
QUICK = ("/", f"/{REPO}", f"/{REPO}/resolve/main/m.safetensors", f"{API}?blobs=true", f"{API}/commits/main", "upload")
QUICK += (
    f"{API}/commit/main",
    f"{API}/tag/v1",
    f"{API}/discussions/1/merge",
    f"/{REPO}/discussions/1",
    "/api/repos/delete",
)
"""A request of each kind; the others are slow tests."""


class Deletion:
    """Deletes a repository just before the process opens, lists or renames something in it for the n-th time."""

    def __init__(self) -> None:
        self.path = ""
        self.left = 0
        sys.addaudithook(self.hook)  # it cannot be removed

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_step = self.left and event in ("open", "os.listdir", "os.scandir", "os.rename", "os.mkdir")
        if is_step and str(arguments[0]).startswith(self.path):
            self.left -= 1
            if not self.left:
                Path(self.path).rename(f"{self.path}.away")


@pytest.fixture(scope="module")
def deletion() -> Deletion:
    return Deletion()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param(*request, marks=() if request[1] in QUICK else pytest.mark.slow, id=" ".join(request[:2]))
        for request in REQUESTS
    ],
)
def test_deletion_at_each_step(
    alice: HfApi, hub: LocalHub, root: Path, tmp_path: Path, deletion: Deletion, method: str, path: str, body: str
) -> None:
    alice.create_repo(REPO)
    operations = [Add("README.md", b"---\nlicense: mit\n---\n"), Add("a.txt", b"x"), Add("m.safetensors", b"w")]
    alice.create_commit(REPO, operations, commit_message="files")
    alice.create_tag(REPO, tag="v1")
    alice.create_branch(REPO, branch="old")
    alice.create_commit(REPO, [Add("b.txt", b"x")], commit_message="proposal", create_pr=True)
    if path == "upload":
        digest = "03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4"
        url = lfs_batch(hub.endpoint, REPO, (digest, 4))[0]["actions"]["upload"]["href"]
        path = url.removeprefix(hub.endpoint)
    repository, copy = root / "models/alice/model.git", tmp_path / "copy"
    shutil.copytree(repository, copy)
    deletion.path = str(repository)
    with httpx2.Client(headers=HEADERS) as client:
        for step in range(1, 200):
            deletion.left = step
            answer = client.request(method, hub.endpoint + path, content=body)
            is_deleted, deletion.left = not deletion.left, 0
            if is_deleted and path not in ("/", "/api/models"):
                assert answer.status_code in (200, 303, 404), (step, answer.text)
                if answer.status_code == 404 and "none" not in path:
                    assert answer.headers["X-Error-Code"] == "RepoNotFound", (step, answer.text)
            else:
                assert answer.status_code in (200, 303) or "none" in path, (step, answer.text)
            for leftover in (repository, repository.with_name("model.git.away")):
                shutil.rmtree(leftover, ignore_errors=True)
            shutil.copytree(copy, repository)
            if not is_deleted:
                break
    assert not is_deleted
