"""Malformed requests get a status between 400 and 499, never a server error, and change nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi

from tasks.hub_server import routes_uploads
from tasks.hub_server.card_metadata import ParsedCard
from tasks.hub_server.server import LocalHub

REPO = "alice/model"
API = f"/api/models/{REPO}"
HEADERS = {"Authorization": "Bearer token-of-alice", "Content-Type": "application/json"}
VALUES: list[Any] = [None, 5, 1e300, True, "", "\0", "\ud800", "ä", "x" * 100_000, [], {}, [[]], {"a": {}}, 10**400]


@pytest.fixture
def filled(alice: HfApi) -> HfApi:
    alice.create_repo(REPO)
    operations = [
        Add("README.md", b"---\nlicense: mit\n---\n# hi\n"),
        Add("a/b.txt", b"text"),
        Add("m.safetensors", b"weights"),
    ]
    alice.create_commit(REPO, operations, commit_message="files")
    alice.create_commit(REPO, [Add("p.txt", b"p")], commit_message="proposal", create_pr=True)
    return alice


def variants(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with each of its values replaced by each of VALUES, at every depth."""
    for key, value in body.items():
        for replacement in VALUES:
            yield {**body, key: replacement}
        if isinstance(value, dict):
            yield from ({**body, key: inner} for inner in variants(value))
        if isinstance(value, list):
            yield from ({**body, key: [inner]} for item in value if isinstance(item, dict) for inner in variants(item))
            yield from ({**body, key: [replacement]} for replacement in VALUES)


LINES: list[dict[str, Any]] = [
    {"key": "header", "value": {"summary": "s", "description": "d", "parentCommit": "0" * 40}},
    {"key": "file", "value": {"path": "p", "content": "aGk=", "encoding": "base64"}},
    {"key": "lfsFile", "value": {"path": "p", "algo": "sha256", "oid": "0" * 64, "size": 5}},
    {"key": "deletedFile", "value": {"path": "a/b.txt"}},
    {"key": "deletedFolder", "value": {"path": "a"}},
]
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/repos/create", {"name": "n", "organization": "alice", "type": "model", "visibility": "public"}),
    ("DELETE", "/api/repos/delete", {"name": "n", "organization": "alice", "type": "model"}),
    ("POST", "/api/validate-yaml", {"content": "---\nlicense: mit\n---\n", "repoType": "model"}),
    ("POST", f"{API}/tag/main", {"tag": "t"}),
    ("POST", f"{API}/branch/new", {"startingPoint": "main"}),
    ("POST", f"{API}/preupload/main", {"files": [{"path": "p", "size": 1, "sample": "aGk="}]}),
    ("POST", f"{API}/discussions/1/comment", {"comment": "c"}),
    ("POST", f"{API}/discussions/1/status", {"status": "closed", "comment": "c"}),
    ("PUT", f"{API}/settings", {"visibility": "private", "gated": False}),
    ("POST", "/api/repos/move", {"fromRepo": REPO, "toRepo": "alice/moved", "type": "dataset"}),
    ("POST", f"{API}/lfs-files/batch", {"deletions": {"sha": ["0" * 64], "rewriteHistory": False}}),
    ("POST", f"/{REPO}.git/info/lfs/objects/batch", {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1}]}),
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES)
def test_values_of_another_type(filled: HfApi, hub: LocalHub, method: str, path: str, body: dict[str, Any]) -> None:
    with httpx2.Client(headers=HEADERS) as client:
        for variant in variants(body):
            answer = client.request(method, hub.endpoint + path, content=json.dumps(variant))
            assert answer.status_code != 500, (variant, answer.text)


MAY_SAY_MORE = ("/preupload/", "/lfs/objects/batch")
"""Clients send more there than this Hub needs to know, about the way of an upload."""


def test_a_field_that_the_hub_does_not_know_is_refused(filled: HfApi, hub: LocalHub) -> None:
    """It may say who may see or do something."""
    with httpx2.Client(headers=HEADERS, base_url=hub.endpoint) as client:
        for method, path, body in BODIES:
            answer = client.request(method, path, json=body | {"only_for": "alice"})
            is_known = any(part in path for part in MAY_SAY_MORE)
            assert is_known or (answer.status_code == 400 and "only_for is a field that" in answer.json()["error"]), (
                path
            )
        header = json.dumps({"key": "header", "value": {"summary": "s", "parent_commit": "0" * 40}})
        assert client.post(f"{API}/commit/main", content=header).status_code == 400
    assert filled.repo_exists(REPO)


def test_commit_lines_of_another_type(filled: HfApi, hub: LocalHub, root: Path) -> None:
    head = {"key": "header", "value": {"summary": "by hand"}}
    with httpx2.Client(headers=HEADERS) as client:
        for line in LINES:
            for variant in variants(line):
                content = "\n".join(json.dumps(item) for item in ([variant] if line is LINES[0] else [head, variant]))
                answer = client.post(f"{hub.endpoint}{API}/commit/main", content=content)
                assert answer.status_code != 500, (variant, answer.text)
        for content in ("[]", "5", '"x"', "null", "{}", "\0"):
            assert client.post(f"{hub.endpoint}{API}/commit/main", content=content).status_code == 400
    git = ["git", "-C", str(root / f"models/{REPO}.git"), "fsck", "--full", "--strict"]
    assert subprocess.run(git, capture_output=True, check=True).stderr == b""


DEEP = {"list": "[" * 100_000, "object": '{"a":' * 100_000, "complete": "[" * 900 + "]" * 900}
NO_JSON = {"long number": "1" * 5000, "NaN": "NaN", "not UTF-8": "\xff", "empty": ""}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in (DEEP | NO_JSON).items()])
def test_json_that_is_deep_or_no_json(filled: HfApi, hub: LocalHub, text: str) -> None:
    with httpx2.Client(headers=HEADERS) as client:
        for method, path, _ in BODIES:
            answer = client.request(method, hub.endpoint + path, content=text.encode("latin-1"))
            assert answer.status_code == 400, path
        for content in (text, f'{{"key": "file", "value": {text}}}'):
            answer = client.post(f"{hub.endpoint}{API}/commit/main", content=content.encode("latin-1"))
            assert answer.status_code == 400


def test_control_characters_in_a_commit_message(filled: HfApi, hub: LocalHub) -> None:
    for header in ({"summary": "a\0b"}, {"summary": "a", "description": "\0"}):
        content = json.dumps({"key": "header", "value": header})
        assert httpx2.post(f"{hub.endpoint}{API}/commit/main", content=content, headers=HEADERS).status_code == 400
    assert len(filled.list_repo_commits(REPO)) == 2


@pytest.mark.parametrize("path", ["resolve/main/a/b.txt", "resolve/main/m.safetensors"])
def test_ranges_with_long_numbers(filled: HfApi, hub: LocalHub, path: str) -> None:
    long = "9" * 5000
    for requested in (f"0-{long}", f"{long}-", f"-{long}", f"{long}-{long}"):
        answer = httpx2.get(f"{hub.endpoint}/{REPO}/{path}", headers={"Range": f"bytes={requested}"})
        assert answer.status_code == 400


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "-1", "x", "1e9", "", "\0"])
def test_query_parameters_with_unusual_numbers(filled: HfApi, hub: LocalHub, number: str) -> None:
    for path, name in (
        ("/api/models", "limit"),
        (f"{API}/tree/main", "cursor"),
        (f"{API}/commits/main", "p"),
        (f"/{REPO}/commits/main", "p"),
        (f"{API}/discussions", "p"),
        (f"/{REPO}/discussions", "p"),
    ):
        answer = httpx2.get(f"{hub.endpoint}{path}", params={name: number})
        assert answer.status_code in (200, 400), (path, answer.text)


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "0", "-1", "x", "1e9", "%00", "..%2f..%2fconfig", "1.json"])
def test_numbers_of_pull_requests(filled: HfApi, hub: LocalHub, number: str) -> None:
    with httpx2.Client(headers=HEADERS, base_url=hub.endpoint) as client:
        for path in (f"{API}/discussions/{number}", f"/{REPO}/discussions/{number}"):
            assert client.get(path).status_code in (400, 404), path
        for action, body in (("comment", '{"comment": "c"}'), ("merge", "")):
            answer = client.post(f"{API}/discussions/{number}/{action}", content=body)
            assert answer.status_code in (400, 404), action
        for body in ("[]", "{", '{"comment": 5}', "\0"):
            assert client.post(f"{API}/discussions/1/merge", content=body).status_code == 400


def test_the_most_repositories_in_a_listing(filled: HfApi, hub: LocalHub) -> None:
    assert httpx2.get(f"{hub.endpoint}/api/models", params={"limit": 10**6}).status_code == 200
    assert httpx2.get(f"{hub.endpoint}/api/models", params={"limit": 10**30}).status_code == 400


def test_too_many_or_too_large_files_are_refused(filled: HfApi, hub: LocalHub) -> None:
    for objects in ([{"oid": "0" * 64, "size": 10**15}], [{"oid": "0" * 64, "size": 1}] * 1001):
        answer = httpx2.post(
            f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch", json={"objects": objects}, headers=HEADERS
        )
        assert answer.status_code == 400


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"


def test_pointer_to_a_large_file_that_does_not_exist(filled: HfApi, hub: LocalHub, root: Path) -> None:
    stored = filled.get_paths_info(REPO, ["m.safetensors"])[0].lfs
    assert stored
    head = {"key": "header", "value": {"summary": "by hand"}}
    for oid, size in (("0" * 64, 5), (stored.sha256, 10**15), (stored.sha256, 1)):
        file = {"key": "file", "value": {"path": "false.bin", "content": POINTER.format(oid=oid, size=size)}}
        content = f"{json.dumps(head)}\n{json.dumps(file)}"
        assert httpx2.post(f"{hub.endpoint}{API}/commit/main", content=content, headers=HEADERS).status_code == 400
    # git itself accepts such a commit
    git = ["git", "-C", str(root / f"models/{REPO}.git"), "-c", "user.name=a", "-c", "user.email=a@localhost"]

    def run(*arguments: str, text: str = "") -> str:
        return subprocess.run([*git, *arguments], input=text, capture_output=True, text=True, check=True).stdout.strip()

    pointers = {
        "missing": POINTER.format(oid="0" * 64, size=5),
        "false": POINTER.format(oid=stored.sha256, size=10**15),
        "upper": POINTER.format(oid="A" * 64, size=5),
    }
    blobs = {name: run("hash-object", "-w", "--stdin", text=text) for name, text in pointers.items()}
    tree = run("mktree", text="".join(f"100644 blob {blob}\t{name}\n" for name, blob in blobs.items()))
    run("update-ref", "refs/heads/main", run("commit-tree", tree, "-m", "pointers"))
    for name in pointers:
        for method in ("GET", "HEAD"):
            answer = httpx2.request(method, f"{hub.endpoint}/{REPO}/resolve/main/{name}")
            assert answer.status_code == (200 if name == "upper" else 404), name


def test_names_and_messages_of_git_in_another_encoding(filled: HfApi, hub: LocalHub, root: Path) -> None:
    git = ["git", "-C", str(root / f"models/{REPO}.git"), "-c", "user.name=\xe4", "-c", "user.email=a@localhost"]

    def run(*arguments: str | bytes, text: bytes = b"") -> bytes:
        return subprocess.run([*git, *arguments], input=text, capture_output=True, check=True).stdout.strip()

    blob = run("hash-object", "-w", "--stdin", text=b"x").decode()
    tree = run("mktree", text=f"100644 blob {blob}\t".encode() + b"\xe4.txt\n").decode()
    commit = run("-c", "i18n.commitEncoding=latin1", "commit-tree", tree, "-F", "-", text=b"\xe4\xf6").decode()
    run("update-ref", "refs/heads/main", commit)
    run("update-ref", b"refs/tags/\xe4", commit)
    pages = ["/", f"/{REPO}", f"/{REPO}/tree/main", f"/{REPO}/commits/main"]
    for path in [*pages, API, f"{API}/tree/main", f"{API}/commits/main", f"{API}/refs"]:
        assert httpx2.get(hub.endpoint + path).status_code == 200, path


CARDS = {
    "surrogate": 'x: "\\ud800"',
    "key": '"\\ud800": 1',
    "message": '"\\ud800": 1\n"\\ud800": 2',
    "number": "x: 0x" + "f" * 5000,
}
CARDS |= {
    "tag": "x: !!bool foo",
    "empty": "x: !!int ''",
    "directive": "%YAML 1.1\n---\nx: 0777",
    "character": 'x: "\\UFFFFFFFF"',
}


@pytest.mark.parametrize("metadata", [pytest.param(text, id=name) for name, text in CARDS.items()])
def test_cards_that_no_answer_can_hold(
    filled: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    """One that is stored already, by an older version or by git, breaks neither its own pages nor the lists."""
    card = f"---\n{metadata}\n---\nhi\n"
    lines = (
        {"key": "header", "value": {"summary": "s"}},
        {"key": "file", "value": {"path": "README.md", "content": card}},
    )
    content = "\n".join(map(json.dumps, lines))
    sent = {"content": card, "repoType": "model"}
    assert httpx2.post(f"{hub.endpoint}/api/validate-yaml", json=sent).status_code == 400
    assert httpx2.post(f"{hub.endpoint}{API}/commit/main", content=content, headers=HEADERS).status_code == 400
    monkeypatch.setattr(routes_uploads, "parse_card", lambda *_, **__: ParsedCard(""))
    assert httpx2.post(f"{hub.endpoint}{API}/commit/main", content=content, headers=HEADERS).status_code == 200
    assert [model.id for model in filled.list_models(full=True, cardData=True)] == [REPO]
    assert filled.model_info(REPO).card_data is None or not filled.model_info(REPO).card_data.to_dict()
    for path in ("/", f"/{REPO}", f"/{REPO}/blob/main/README.md", API, "/api/models?cardData=true"):
        assert httpx2.get(hub.endpoint + path).status_code == 200, path
