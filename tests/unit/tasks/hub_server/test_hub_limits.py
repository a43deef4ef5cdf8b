"""What no client sends that means well: too much, odd names, what git itself can hold; refused, and nothing changes."""

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

# huggingface_hub uploads by `data=`, which httpx2 deprecates:
# https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/lfs.py (_upload_single_part)
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = "alice/model"
HEADERS = {"Authorization": "Bearer token-of-alice"}


def send_commit(hub: LocalHub, *files: tuple[str, str]) -> httpx2.Response:
    body = [{"key": "header", "value": {"summary": "by hand"}}]
    body += [{"key": "file", "value": {"path": path, "content": content}} for path, content in files]
    return httpx2.post(
        f"{hub.endpoint}/api/models/{REPO}/commit/main", content="\n".join(map(json.dumps, body)), headers=HEADERS
    )


def in_pieces(count: int, size: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * size


def test_bodies_are_bounded(alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    alice.create_repo(REPO)
    monkeypatch.setattr(limits, "BODY_BYTES", 20_000)
    monkeypatch.setattr(limits, "COMMIT_BYTES", 40_000)
    routes = {
        "/api/repos/create": 20_000,
        f"/api/models/{REPO}/preupload/main": 20_000,
        f"/api/models/{REPO}/paths-info/main": 20_000,
        "/api/validate-yaml": 20_000,
        "/-/sign-in": 20_000,
        f"/api/models/{REPO}/commit/main": 40_000,
    }
    for route, most in routes.items():
        announced = httpx2.post(hub.endpoint + route, content=b" " * (most + 1), headers=HEADERS)
        assert announced.status_code == 413, route
        dripped = httpx2.post(hub.endpoint + route, content=in_pieces(most // 1000 + 1, 1000), headers=HEADERS)
        assert dripped.status_code == 413, route
        assert "larger than" in dripped.text
        allowed = httpx2.post(hub.endpoint + route, content=in_pieces(most // 1000 - 1, 1000), headers=HEADERS)
        assert allowed.status_code != 413, route
    assert len(alice.list_repo_commits(REPO)) == 1


def test_a_part_is_no_larger_than_announced(alice: HfApi, hub: LocalHub, root: Path) -> None:
    alice.create_repo(REPO)
    size = (2 << 20) + 10
    answer = httpx2.post(
        f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch",
        json={"objects": [{"oid": "a" * 64, "size": size}]},
        headers=HEADERS,
    )
    urls = answer.json()["objects"][0]["actions"]["upload"]["header"]
    for part, most in (("1", 1 << 20), ("3", 10)):
        assert httpx2.put(urls[part], content=b"x" * (most + 1)).status_code == 422
    assert list((root / "models/alice/model.git/lfs/incoming").iterdir()) == []
    assert httpx2.put(urls["3"], content=b"x" * 10).status_code == 200


ODD_PATHS = ["a/.GiT/x", ".git ", ".git.", "git~1/x", ".g\u200cit/x", "\ufeff.git/x", "a/ /b", "...", "a\x7f", "a/\0"]
ODD_PATHS += ["x" * 256, "ä" * 128, "/".join(["y" * 99] * 11), "C:\\x"]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_names_of_files_that_mean_something_elsewhere(alice: HfApi, hub: LocalHub, path: str) -> None:
    alice.create_repo(REPO)
    assert send_commit(hub, (path, "x")).status_code == 400
    assert len(alice.list_repo_commits(REPO)) == 1


def test_names_that_are_odd_but_names(alice: HfApi, hub: LocalHub, root: Path) -> None:
    alice.create_repo(REPO)
    names = ["%2e%2e", "a b/c", "gitx/.gitkeep", "..a", "~", "ünï", "x" * 255, "*", "-rf"]
    assert send_commit(hub, *((name, "x") for name in names)).status_code == 200
    assert {entry.path for entry in alice.list_repo_tree(REPO, recursive=True)} >= set(names)
    git = ["git", "-C", str(root / "models/alice/model.git"), "fsck", "--full", "--strict"]
    assert subprocess.run(git, capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize("name", ["x" * 251, "a/" * 600 + "a", "a\0b", "a//b", "a/.b", "@{", "a~1", "\ud800", "HEAD\n"])
def test_names_of_tags_that_no_file_can_have(alice: HfApi, hub: LocalHub, name: str) -> None:
    alice.create_repo(REPO)
    url = f"{hub.endpoint}/api/models/{REPO}/tag/main"
    sent = json.dumps({"tag": name})  # by hand: the client would not send half a surrogate pair
    answer = httpx2.post(url, content=sent, headers=HEADERS | {"Content-Type": "application/json"})
    assert (answer.status_code, "malformed" in answer.text) == (400, False), answer.text
    assert not alice.list_repo_refs(REPO).tags


def test_revisions_that_are_none(alice: HfApi, hub: LocalHub) -> None:
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


def test_what_git_itself_put_there_stays_inside(alice: HfApi, hub: LocalHub, root: Path) -> None:
    """A link to another file is shown as what git holds, its text; an annotated tag stands for its commit."""
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
    for route in ("resolve", "raw"):
        assert httpx2.get(f"{hub.endpoint}/{REPO}/{route}/main/link.txt").text == "../../../secret.txt"
    assert httpx2.get(f"{hub.endpoint}/{REPO}/resolve/main/link.txt/x").status_code == 404
    assert alice.model_info(REPO, revision="v1").sha == commit
    assert alice.list_repo_refs(REPO).tags[0].target_commit == commit
    assert send_commit(hub, ("b.txt", "x")).status_code == 200


def test_no_namespace_takes_the_place_of_a_page(tmp_path: Path) -> None:
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


def test_deleting_needs_the_right(alice: HfApi, bob: HfApi, anyone: HfApi, root: Path) -> None:
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


def test_what_kills_left_is_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "models/alice"
    for name, age_s in ((".deleted-a", 0), (".new-fresh", 0), (".new-old", 2 * 24 * 3600)):
        (folder / name / "objects").mkdir(parents=True)
        then = (folder / name).stat().st_mtime - age_s
        os.utime(folder / name, (then, then))
    with LocalHub(tmp_path, tokens={}):
        assert [path.name for path in folder.iterdir()] == [".new-fresh"]


def test_a_card_is_checked_when_it_is_committed_too(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo(REPO)
    refused = send_commit(hub, ("README.md", "---\nlicense: mine\n---\n"))
    assert (refused.status_code, '"license" must be one of' in refused.json()["error"]) == (400, True)
    assert send_commit(hub, ("sub/README.md", "---\nlicense: mine\n---\n")).status_code == 200


def test_half_a_request_holds_up_nobody(alice: HfApi, hub: LocalHub) -> None:
    port = int(hub.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"POST /api/repos/create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        alice.create_repo(REPO)
        assert alice.create_commit(REPO, [Add("a", b"1")], commit_message="a").oid
