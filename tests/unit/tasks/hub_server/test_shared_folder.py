"""Several users of a machine, and readers of a repository: what they may use and store; and ids of their requests."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from tasks.hub_server import reader_shares
from tasks.hub_server.repositories import BareRepository
from tasks.hub_server.server import LocalHub

REPO = "alice/model"
WRITTEN_BY_GIT = ("objects", "refs")
"""dulwich takes no mode from the umask for them; they are replaced, and never written again."""


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_files_and_folders_follow_the_umask(tmp_path: Path, umask: int) -> None:
    """Over every file and folder of a Hub in which each kind of call has been made."""
    root = tmp_path / "hub"
    before = os.umask(umask)
    try:
        with LocalHub(root, tokens={"t" * 24: "alice", "u" * 24: "bob"}) as hub:
            alice, bob = (HfApi(endpoint=hub.endpoint, token=token * 24) for token in "tu")
            alice.create_repo(REPO)
            alice.create_repo("alice/old")
            alice.create_commit(REPO, [Add("a.bin", b"x"), Add("a.txt", b"x")], commit_message="a")
            made = bob.create_commit(REPO, [Add("b.bin", b"y")], commit_message="b", create_pr=True)
            bob.comment_discussion(REPO, made.pr_num, "c")
            alice.merge_pull_request(REPO, made.pr_num)
            alice.create_tag(REPO, tag="t")
            alice.move_repo("alice/old", "alice/new")
            alice.delete_repo("alice/new")
    finally:
        os.umask(before)
    found = [root, *root.rglob("*")]
    assert len(found) > 40
    for path in found:
        mode, full = path.stat().st_mode & 0o777, 0o777 if path.is_dir() else 0o666
        is_of_git = path.is_file() and (
            path.name in ("HEAD", "config", "description", "exclude") or set(WRITTEN_BY_GIT) & set(path.parts)
        )
        if is_of_git and "lfs" not in path.parts:
            assert mode & 0o444 == 0o444 & ~umask, path
        else:
            assert mode == full & ~umask, path


@pytest.mark.parametrize("call", ["read", "large", "commit", "create"])
def test_what_the_system_forbids_is_a_clear_error(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    alice.create_repo(REPO)
    alice.create_commit(REPO, [Add("a.bin", b"x")], commit_message="a")

    forbidden = {"read": "is_file", "large": "open", "commit": "open", "create": "mkdir"}[call]
    permitted = getattr(Path, forbidden)

    def forbid(self: Path, *arguments: object, **named: object) -> object:
        if self.is_relative_to(hub.root):
            raise PermissionError(13, "Permission denied", str(self))
        return permitted(self, *arguments, **named)

    calls = {
        "read": lambda: alice.model_info(REPO),
        "large": lambda: alice.create_commit(REPO, [Add("b.bin", b"y")], commit_message="b"),
        "commit": lambda: alice.create_commit(REPO, [Add("b.txt", b"y")], commit_message="b"),
        "create": lambda: alice.create_repo("alice/other"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(Path, forbidden, forbid)
        with pytest.raises((HfHubHTTPError, RuntimeError)) as raised:
            calls[call]()
    error = raised.value.__cause__ if call == "large" else raised.value
    assert isinstance(error, HfHubHTTPError)
    assert error.response.status_code == 403
    assert "operating system" in str(error)
    assert "chmod" in str(error)
    assert str(hub.root) not in str(error), "only the path in the Hub is shown"


def upload_large(hub: LocalHub, token: str, content: bytes) -> int:
    oid = hashlib.sha256(content).hexdigest()
    answer = httpx2.post(
        f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch",
        json={"operation": "upload", "objects": [{"oid": oid, "size": len(content)}]},
        headers={"Authorization": f"Bearer {token}"},
    )
    if answer.status_code != 200 or "actions" not in answer.json()["objects"][0]:
        return answer.status_code
    return httpx2.put(answer.json()["objects"][0]["actions"]["upload"]["href"], content=content).status_code


def test_reader_stores_little_in_anothers_repository(
    alice: HfApi, bob: HfApi, hub: LocalHub, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By large files, commits and comments together; and again when a writer has merged something."""
    share = 300_000
    monkeypatch.setattr(reader_shares, "SHARE_BYTES", share)
    alice.create_repo(REPO)

    def fill() -> int:
        """What of large files, proposals, commits to them and comments the Hub takes until it takes nothing more."""
        taken, number = 0, 0
        refused, statuses = set[str](), set[int]()
        for turn in range(40):
            content = os.urandom(20_000)
            taken += 20_000 * (upload_large(hub, "token-of-bob", content) == 200)
            for what in ("proposal", "commit", "comment"):
                try:
                    if what == "proposal":
                        made = bob.create_commit(
                            REPO, [Add(f"{turn}.txt", b"p" * 9000)], commit_message="p", create_pr=True
                        )
                        number = made.pr_num
                    elif what == "commit":
                        operations = [Add(f"{turn}.txt", os.urandom(9000).hex().encode())]
                        bob.create_commit(REPO, operations, commit_message="c", revision=f"refs/pr/{number}")
                    else:
                        bob.comment_discussion(REPO, number, "c" * 9000)
                    taken += 9000
                except HfHubHTTPError as error:
                    statuses.add(error.response.status_code)
                    refused.add(what)
            if len(refused) == 3:
                break
        assert (refused, statuses) == ({"proposal", "commit", "comment"}, {413})
        return taken

    assert 150_000 < fill() <= share
    assert upload_large(hub, "token-of-bob", b"x" * share) == 413
    assert upload_large(hub, "token-of-alice", b"x" * share) == 200, "who can write stores what they like"
    alice.create_commit(REPO, [Add("a.txt", b"a" * share)], commit_message="a")
    alice.merge_pull_request(REPO, 1)
    assert fill() > 150_000
    assert set(BareRepository(root / "models/alice/model.git").reader_shares._read()) == {"bob"}


def test_upload_address_is_for_one_user(alice: HfApi, hub: LocalHub) -> None:
    """A reader cannot name a writer in the address to store more."""
    alice.create_repo(REPO)
    answer = httpx2.post(
        f"{hub.endpoint}/{REPO}.git/info/lfs/objects/batch",
        json={"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1}]},
        headers={"Authorization": "Bearer token-of-bob"},
    )
    url = answer.json()["objects"][0]["actions"]["upload"]["href"]
    assert httpx2.put(url.replace("user=bob", "user=alice"), content=b"x").status_code == 403
    assert httpx2.put(url.replace("user=bob&", ""), content=b"x").status_code == 403


def test_every_answer_has_an_id(
    alice: HfApi, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice.create_repo(REPO)
    paths = ["/", f"/{REPO}", "/api/models", "/none/none", "/api/models/none/none", "/a/b/c/d", "/-/x", "/api/spaces"]
    answers = [httpx2.get(hub.endpoint + path) for path in paths]
    answers += [
        httpx2.get(hub.endpoint, headers={"Host": "evil.example"}),
        httpx2.put(f"{hub.endpoint}/uploads/a/b/c/d/1"),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    page = httpx2.get(f"{hub.endpoint}/none/none", headers={"Accept": "text/html"})
    assert page.headers["x-request-id"] in page.text
    with pytest.raises(HfHubHTTPError, match=r"Request ID: [0-9a-f]{16}"):
        alice.model_info("alice/none")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(BareRepository, "resolve", fail)
    with caplog.at_level(logging.ERROR):
        broken = httpx2.get(f"{hub.endpoint}/api/models/{REPO}")
        deadline = time.monotonic() + 10
        while broken.headers["x-request-id"] not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)  # it is logged after the answer
    assert broken.status_code == 500
    assert broken.headers["x-request-id"] in caplog.text
