"""Hostile or malformed requests change nothing: bodies that are too large, names special to git, and more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from tasks.hub_server import limits
from tasks.hub_server.server import LocalHub
from tests.support.hub_browser import own_page

REPO = "alice/model"
HEADERS = {"Authorization": "Bearer token-of-alice"}


def post_commit(hub: LocalHub, *files: tuple[str, str]) -> httpx2.Response:
    body = [{"key": "header", "value": {"summary": "by hand"}}]
    body += [{"key": "file", "value": {"path": path, "content": content}} for path, content in files]
    return httpx2.post(
        f"{hub.endpoint}/api/models/{REPO}/commit/main", content="\n".join(map(json.dumps, body)), headers=HEADERS
    )


def chunks(count: int, size: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * size


def test_body_size_is_limited(alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    alice.create_repo(REPO)
    alice.create_commit(REPO, [Add("p.txt", b"p")], commit_message="proposal", create_pr=True)
    monkeypatch.setattr(limits, "BODY_BYTES", 20_000)
    monkeypatch.setattr(limits, "COMMIT_BYTES", 40_000)
    routes = {
        "/api/repos/create": 20_000,
        f"/api/models/{REPO}/preupload/main": 20_000,
        f"/api/models/{REPO}/paths-info/main": 20_000,
        "/api/validate-yaml": 20_000,
        f"/api/models/{REPO}/discussions/1/comment": 20_000,
        f"/api/models/{REPO}/discussions/1/merge": 20_000,
        f"/api/models/{REPO}/commit/refs%2Fpr%2F1": 40_000,
        "/-/sign-in": 20_000,
        f"/api/models/{REPO}/commit/main": 40_000,
    }
    headers = HEADERS | own_page(hub.endpoint)
    for route, limit in routes.items():
        with_length = httpx2.post(hub.endpoint + route, content=b" " * (limit + 1), headers=headers)
        assert with_length.status_code == 413, route
        chunked = httpx2.post(hub.endpoint + route, content=chunks(limit // 1000 + 1, 1000), headers=headers)
        assert chunked.status_code == 413, route
        assert "larger than" in chunked.text
        allowed = httpx2.post(hub.endpoint + route, content=chunks(limit // 1000 - 1, 1000), headers=headers)
        assert allowed.status_code != 413, route
    assert [entry.title for entry in alice.list_repo_commits(REPO)] == ["proposal (#1)", "initial commit"], (
        "a merge has no body"
    )


DANGEROUS_PATHS = [
    "a/.GiT/x",
    ".git ",
    ".git.",
    "git~1/x",
    ".g\u200cit/x",
    "\ufeff.git/x",
    "a/ /b",
    "...",
    "a\x7f",
    "a/\0",
]
DANGEROUS_PATHS += ["x" * 256, "ä" * 128, "/".join(["y" * 99] * 11), "C:\\x"]


@pytest.mark.parametrize("path", DANGEROUS_PATHS)
def test_paths_special_to_git_or_a_file_system_are_refused(alice: HfApi, hub: LocalHub, path: str) -> None:
    alice.create_repo(REPO)
    assert post_commit(hub, (path, "x")).status_code == 400
    assert len(alice.list_repo_commits(REPO)) == 1


def test_unusual_but_valid_paths_are_accepted(alice: HfApi, hub: LocalHub, root: Path) -> None:
    alice.create_repo(REPO)
    names = ["%2e%2e", "a b/c", "gitx/.gitkeep", "..a", "~", "ünï", "x" * 255, "*", "-rf"]
    assert post_commit(hub, *((name, "x") for name in names)).status_code == 200
    assert {entry.path for entry in alice.list_repo_tree(REPO, recursive=True)} >= set(names)
    git = ["git", "-C", str(root / "models/alice/model.git"), "fsck", "--full", "--strict"]
    assert subprocess.run(git, capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize("name", ["x" * 251, "a/" * 600 + "a", "a\0b", "a//b", "a/.b", "@{", "a~1", "\ud800", "HEAD\n"])
def test_invalid_tag_names_are_refused(alice: HfApi, hub: LocalHub, name: str) -> None:
    alice.create_repo(REPO)
    url = f"{hub.endpoint}/api/models/{REPO}/tag/main"
    body = json.dumps({"tag": name})  # without the client, which would not send half a surrogate pair
    answer = httpx2.post(url, content=body, headers=HEADERS | {"Content-Type": "application/json"})
    assert (answer.status_code, "malformed" in answer.text) == (400, name == "\ud800"), answer.text
    assert not alice.list_repo_refs(REPO).tags


def test_invalid_revisions_are_not_found(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo(REPO)
    for name in (
        "x" * 300,
        "a%2F" * 600 + "a",
        "%00",
        "%ff",
        "..%2f..%2fconfig",
        "refs%2Fheads%2F..%2F..%2FHEAD",
        "HEAD",
    ):
        for url in (f"/api/models/{REPO}/revision/{name}", f"/{REPO}/resolve/{name}/x", f"/{REPO}/tree/{name}"):
            assert httpx2.get(hub.endpoint + url).status_code == 404, url
        for kind in ("tag", "branch"):
            answer = httpx2.delete(f"{hub.endpoint}/api/models/{REPO}/{kind}/{name}", headers=HEADERS)
            assert answer.status_code in (400, 404), name


def test_symlinks_and_annotated_tags_of_git(alice: HfApi, hub: LocalHub, root: Path) -> None:
    """A symlink is served as its text and never followed; an annotated tag resolves to its commit."""
    alice.create_repo(REPO)
    (root / "secret.txt").write_text("secret")
    git = ["git", "-C", str(root / "models/alice/model.git"), "-c", "user.name=a", "-c", "user.email=a@localhost"]

    def run(*arguments: str, text: str = "") -> str:
        return subprocess.run([*git, *arguments], input=text, capture_output=True, text=True, check=True).stdout.strip()

    target = run("hash-object", "-w", "--stdin", text="../../../secret.txt")
    tree = run("mktree", text=f"120000 blob {target}\tlink.txt\n")
    commit = run("commit-tree", tree, "-m", "a link")
    run("update-ref", "refs/heads/main", commit)
    run("tag", "-a", "v1", "-m", "annotated", commit)
    assert httpx2.get(f"{hub.endpoint}/{REPO}/resolve/main/link.txt").text == "../../../secret.txt"
    assert httpx2.get(f"{hub.endpoint}/{REPO}/resolve/main/link.txt/x").status_code == 404
    assert alice.model_info(REPO, revision="v1").sha == commit
    assert alice.list_repo_refs(REPO).tags[0].target_commit == commit
    assert post_commit(hub, ("b.txt", "x")).status_code == 200


def test_reserved_namespaces_are_refused(tmp_path: Path) -> None:
    with LocalHub(tmp_path, tokens={"token-of-root": "root"}, administrators=["root"]) as hub:
        api = HfApi(endpoint=hub.endpoint, token="token-of-root")
        for namespace in ("api", "datasets", "Models", "uploads", "-"):
            answer = httpx2.post(
                f"{hub.endpoint}/api/repos/create",
                json={"name": "x", "organization": namespace},
                headers={"Authorization": "Bearer token-of-root"},
            )
            assert answer.status_code == 400
        api.create_repo("anybody/x", private=True)
        assert api.model_info("anybody/x").private
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["anybody"]


def test_deleting_needs_write_permission(alice: HfApi, bob: HfApi, anyone: HfApi, root: Path) -> None:
    alice.create_repo(REPO)
    alice.create_repo("alice/secret", private=True)
    for api, repo, status in (
        (anyone, REPO, 401),
        (bob, REPO, 403),
        (bob, "alice/secret", 404),
        (bob, "alice/nothing", 404),
    ):
        with pytest.raises(HfHubHTTPError) as raised:
            api.delete_repo(repo)
        assert raised.value.response.status_code == status
    alice.delete_repo(REPO)
    with pytest.raises(RepositoryNotFoundError):
        alice.delete_repo(REPO)
    alice.delete_repo(REPO, missing_ok=True)
    assert [path.name for path in (root / "models/alice").iterdir()] == ["secret.git"]
    alice.create_repo(REPO)
    assert len(alice.list_repo_commits(REPO)) == 1


def test_start_deletes_leftovers_of_killed_processes(tmp_path: Path) -> None:
    folder = tmp_path / "models/alice"
    for name, age_s in ((".deleted-a", 0), (".new-fresh", 0), (".new-old", 2 * 24 * 3600)):
        (folder / name / "objects").mkdir(parents=True)
        then = (folder / name).stat().st_mtime - age_s
        os.utime(folder / name, (then, then))
    with LocalHub(tmp_path, tokens={}):
        assert [path.name for path in folder.iterdir()] == [".new-fresh"]


def test_commit_validates_the_card(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo(REPO)
    refused = post_commit(hub, ("README.md", "---\nlicense: 3\n---\n"))
    assert (refused.status_code, '"license" must be a string' in refused.json()["error"]) == (400, True)
    assert post_commit(hub, ("sub/README.md", "---\nlicense: 3\n---\n")).status_code == 200


def test_unfinished_request_does_not_block_others(alice: HfApi, hub: LocalHub) -> None:
    port = int(hub.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"POST /api/repos/create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        alice.create_repo(REPO)
        assert alice.create_commit(REPO, [Add("a", b"1")], commit_message="a").oid
