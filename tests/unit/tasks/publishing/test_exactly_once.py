"""Publishing through the real client to the local Hub, with faults in between: one commit, one tag, or a clear no."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.utils._http
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import disable_progress_bars, get_session

from params.errors import HubRefusedError, ModelError, RecipeError, StaleBlessingError, TransientError
from tasks.digests import folder_weights, weights_digest
from tasks.hub_client import faults
from tasks.publishing import exactly_once, secrets
from tasks.publishing.exactly_once import (
    RECEIPT,
    Head,
    Published,
    Release,
    head,
    plan_release,
    publish_release,
    remote_holds,
)
from tests.chaos.publish_faults import STRANGER, Clock, Fault, FaultyHub

# huggingface_hub uploads by `data=`, which httpx2 deprecates:
# https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/lfs.py (_upload_single_part)
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = "alice/model"
TOKEN = "token-of-alice"


# -- a Hub with faults -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def client_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    disable_progress_bars()
    # The client's own backoff between its own retries; ours is given to publish_release.
    patient = SimpleNamespace(sleep=lambda _: None, time=time.time)
    monkeypatch.setattr(huggingface_hub.utils._http, "time", patient)


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyHub, Path]]:
    root = tmp_path_factory.mktemp("hub")
    with FaultyHub(root, tokens={TOKEN: "alice", "token-of-bob": "bob"}) as running:
        yield running, root


@pytest.fixture
def hub(running_hub: tuple[FaultyHub, Path]) -> Iterator[FaultyHub]:
    """The Hub, empty and without faults: it keeps nothing outside of its folder."""
    hub, root = running_hub
    yield hub
    hub.faults.clear()
    hub.done.clear()
    shutil.rmtree(root / "models", ignore_errors=True)


@pytest.fixture
def api(hub: FaultyHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=TOKEN)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (folder / "model.safetensors").write_bytes(random.Random(0).randbytes(5000))
    (folder / "sub/empty.txt").write_bytes(b"")
    return folder


def plan(folder: Path, **changes: object) -> Release:
    settings: dict[str, object] = {"repo_id": REPO, "tag": None, "private": False, "provenance": {"data": "abc"}}
    return plan_release(folder, **(settings | changes))


def publish(api: HfApi, release: Release, clock: Clock | None = None, attempts: int = 8, **more: object) -> Published:
    return publish_release(api, release, pace=(clock or Clock()).pace(attempts), **more)


def assert_published_once(api: HfApi, release: Release, published: Published) -> None:
    history = api.list_repo_commits(release.repo_id)
    ours = [commit.commit_id for commit in history if f"Publish-Id: {release.publish_id}" in commit.message]
    assert ours == [published.commit]
    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(release.repo_id).tags}
    assert tags[release.tag] == published.commit
    found = {
        entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id
        for entry in api.list_repo_tree(release.repo_id, recursive=True, revision=release.tag)
        if hasattr(entry, "blob_id") and entry.path != ".gitattributes"
    }
    wanted = {file.path: (file.sha256, file.git_sha1) for file in release.files}
    assert found.keys() == wanted.keys()
    assert all(found[path] in wanted[path] for path in wanted)


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_the_id_is_that_of_the_content(folder: Path, tmp_path: Path) -> None:
    first = plan(folder)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in sorted(folder.rglob("*"), reverse=True):
        if file.is_file():
            (copy / file.relative_to(folder)).parent.mkdir(exist_ok=True)
            (copy / file.relative_to(folder)).write_bytes(file.read_bytes())
    assert plan(copy).publish_id == first.publish_id
    assert plan(copy, tag="v1").publish_id == first.publish_id
    assert first.tag == f"release-{first.publish_id[:12]}"
    assert plan(folder, repo_id="alice/other").publish_id != first.publish_id
    assert plan(folder, provenance={"data": "abd"}).publish_id != first.publish_id
    (folder / "sub/empty.txt").write_bytes(b"x")
    assert plan(folder).publish_id != first.publish_id
    receipt = next(file for file in first.files if file.path == RECEIPT)
    told = json.loads(receipt.source)
    assert (told["publish_id"], told["repo"], told["provenance"]) == (first.publish_id, REPO, {"data": "abc"})
    assert [file["path"] for file in told["files"]] == sorted(
        ["README.md", "config.json", "model.safetensors", "sub/empty.txt"]
    )


SECRET = "hf_" + "a1B2" * 10


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (".env", b"A=1", "is hidden"),
        (".cache/x.txt", b"x", "is hidden"),
        ("training_args.bin", b"x", "can hold pickles"),
        ("sub/a.PT", b"x", "can hold pickles"),
        ("optimizer.safetensors", b"\x80\x04\x95rest", "holds a pickle"),
        ("weights.txt", b"PK\x03\x04rest", "holds a pickle or an archive"),
        ("modeling.py", b"import os", "is code"),
        ("notes.txt", b"one\ntwo " + SECRET.encode(), "notes.txt:2: holds something like a Hugging Face token"),
        ("key.txt", b"-----BEGIN RSA PRIVATE KEY-----", "something like a private key"),
        ("config.json", b'{"auto_map": {"AutoModel": "m.M"}}', "has auto_map"),
        ("config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b'{"auto_map": {"AutoTokenizer": "t.T"}}', "has auto_map"),
        ("weights.txt", b"\x1f\x8b\x08rest", "an archive, into which nobody has looked"),
        ("data.txt", bytes(257) + b"ustar\x0000", "an archive, into which nobody has looked"),
        ("run.txt", b"#!/bin/sh\nrm", "is a program"),
        ("run", b"\x7fELF\x02", "is a program"),
        ("notes.txt", b"x" * 9000 + b" " + SECRET.encode(), "notes.txt:1: holds something like a Hugging Face token"),
        ("notes.txt", b"\n" * 9000 + SECRET.encode() + bytes(9), "notes.txt:9001: holds something like a Hugging"),
        ("a.safetensors", bytes(100) + SECRET.encode(), "a.safetensors:1: holds something like a Hugging Face token"),
        ("notes.txt", f"a\nb {SECRET}".encode("utf-16"), "notes.txt:2: holds something like a Hugging Face token"),
        ("notes.txt", f"a\nb {SECRET}".encode("utf-16-be"), "notes.txt:2: holds something like a Hugging Face token"),
        ("a.txt", b"ASIA" + b"A1" * 8, "something like an AWS key"),
        ("a.txt", b"glpat-" + b"a-" * 10, "something like a GitLab token"),
        ("a.txt", b"postgres://me:hunter2@host/rows", "something like a password in an address"),
        (RECEIPT, b"{}", "is written by the publication itself"),
    ],
)
def test_what_may_not_be_published(folder: Path, name: str, content: bytes, problem: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(problem)) as raised:
        plan(folder)
    assert name.partition("/")[0] in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_config.json", b'{"auto_map": null}'),
        ("notes.txt", b"see https://example.org:8080/a@b, mailto:a@b.org, task-" + b"a" * 40 + b", xhf_" + b"a" * 40),
        ("merges.txt", b"#version: 0.2\nMZ a\n"),
        ("more.safetensors", b"\0://\x81\x02:\x83\x04\x85\xa6\x07@a"),
    ],
)
def test_what_may_be_published(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert name in {file.path for file in plan(folder).files}


IN_USE = "token.of-a-mirror_77"


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "file", "login"])
@pytest.mark.parametrize("path", ["README.md", "model.safetensors", "sub/utf-16.txt"])
def test_the_token_in_use_is_found_whatever_it_looks_like(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, path: str
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored"))
    with (folder / path).open("ab") as file:
        file.write(f"\n{IN_USE}!".encode("utf-16-le" if "16" in path else "utf-8"))
    plan(folder)
    if place == "file":
        (tmp_path / "token").write_text(f"{IN_USE}\n")
    elif place == "login":
        (tmp_path / "stored").write_text(f"[mine]\nhf_token = {IN_USE}\n")
    else:
        monkeypatch.setenv(place, f" {IN_USE}\n")
    with pytest.raises(ModelError, match=f"{path}:[0-9]+: holds the token that this machine uses") as raised:
        plan(folder)
    assert IN_USE not in str(raised.value)


def test_a_secret_across_two_blocks_is_found_and_numbers_cost_little(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "BLOCK_BYTES", 4096)
    monkeypatch.setenv("HF_TOKEN", IN_USE)
    for start in (4080, 8192 - 30, 3 * 4096 - 1):
        (folder / "notes.txt").write_bytes(b"\n" * start + SECRET.encode() + b"\n" * 5000)
        with pytest.raises(ModelError, match=f"notes.txt:{start + 1}: holds something like a Hugging Face token"):
            plan(folder)
    (folder / "notes.txt").unlink()
    (folder / "model.safetensors").write_bytes(bytes(4 * 4096 - 5) + IN_USE.encode())
    with pytest.raises(ModelError, match=r"model\.safetensors:1: holds the token"):
        plan(folder)


def test_a_secret_in_a_name_is_found_and_not_told(folder: Path) -> None:
    (folder / f"{SECRET}.txt").write_text("x")
    with pytest.raises(ModelError, match="the name of a file holds") as raised:
        plan(folder)
    assert SECRET not in str(raised.value)


def test_all_problems_are_told_at_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (folder / "link.txt").symlink_to(folder / "README.md")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    (folder / "a.pkl").write_bytes(b"x")
    with pytest.raises(ModelError) as raised:
        plan(folder)
    told = str(raised.value)
    assert [told.count(f"{name}: is a symbolic link") for name in ("link.txt", "linked", "dangling")] == [1, 1, 1]
    assert "a.pkl" in told
    assert raised.value.where == str(folder)


def test_a_secret_in_the_provenance_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="something like a Hugging Face token"):
        plan(folder, provenance={"command": f"--token {SECRET}"})


def test_an_empty_folder_and_a_wrong_name_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no file"):
        plan(tmp_path / "empty")
    for name in ("model", "a/b/c", "alice/..", "alice/a b"):
        with pytest.raises(RecipeError, match="namespace/name"):
            plan(folder, repo_id=name)


def test_the_digest_of_the_weights_is_that_of_the_weights_alone(folder: Path, tmp_path: Path) -> None:
    first = plan(folder).weights
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert first == hashlib.sha256(f"model.safetensors {sha256}\n".encode()).hexdigest() == folder_weights(folder)
    (folder / "config.json").write_text("{}")
    assert plan(folder).weights == first
    (folder / "sub/more.safetensors").write_bytes(b"more")
    both = plan(folder).weights
    assert both == folder_weights(folder) != first
    assert both == weights_digest(dict(reversed([(file.path, file.sha256) for file in plan(folder).files])))
    (folder / "sub/more.safetensors").rename(folder / "sub/other.safetensors")
    assert plan(folder).weights != both, "the name of a file is a part of it"
    assert weights_digest({"README.md": sha256}) is None
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        folder_weights(tmp_path / "sub")


# -- without faults ----------------------------------------------------------------------------------------------------


def test_first_release_then_the_same_again(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release, lines = plan(folder), []
    published = publish(api, release, log=lines.append)
    assert published.how == "committed"
    assert_published_once(api, release, published)
    assert published.commit in lines[-1]
    assert len(api.list_repo_commits(REPO)) == 2  # and the Hub's initial one

    hub.done.clear()
    again = publish(api, plan(folder))
    assert (again.commit, again.tag, again.how) == (published.commit, published.tag, "found by its tag")
    assert not [line for line in hub.done if not line.startswith("GET")], "a second publication wrote something"


def test_a_changed_file_makes_exactly_one_more_commit(api: HfApi, folder: Path) -> None:
    first = publish(api, plan(folder))
    (folder / "sub/empty.txt").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    second_release = plan(folder)
    second = publish(api, second_release)
    assert_published_once(api, second_release, second)
    assert [commit.commit_id for commit in api.list_repo_commits(REPO)][:2] == [second.commit, first.commit]


def test_a_release_is_found_under_foreign_commits(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    published = publish(api, release)
    api.create_commit(REPO, [CommitOperationAdd("LICENSE", b"mit")], commit_message="by hand")
    api.delete_tag(REPO, tag=release.tag)
    again = publish(api, plan(folder))
    assert (again.commit, again.how) == (published.commit, "found by its id")
    assert_published_once(api, release, again)
    assert len(api.list_repo_commits(REPO)) == 3


def test_a_foreign_commit_between_look_and_act(api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create_repo(REPO)
    commit, foreign = exactly_once._commit, iter(range(2))

    def commit_after_another(*args: object) -> str:
        for number in foreign:
            content = f"from elsewhere {number}".encode()
            api.create_commit(REPO, [CommitOperationAdd("OTHER", content)], commit_message="by hand")
            break
        return commit(*args)

    monkeypatch.setattr(exactly_once, "_commit", commit_after_another)
    release = plan(folder)
    clock = Clock()
    assert_published_once(api, release, publish(api, release, clock))
    assert clock.slept == [0.5, 1.0]  # two stale parents
    assert len(api.list_repo_commits(REPO)) == 4


def test_a_tag_with_other_files_is_refused_and_left_alone(api: HfApi, folder: Path) -> None:
    api.create_repo(REPO)
    head = api.list_repo_commits(REPO)[0].commit_id
    api.create_tag(REPO, tag="v1")
    with pytest.raises(HubRefusedError, match="tag v1 holds other files"):
        publish(api, plan(folder, tag="v1"))
    assert api.list_repo_refs(REPO).tags[0].target_commit == head
    assert len(api.list_repo_commits(REPO)) == 1


def test_two_publishers_of_one_release(hub: FaultyHub, folder: Path) -> None:
    apis = [HfApi(endpoint=hub.endpoint, token=TOKEN) for _ in range(4)]
    release, start = plan(folder), threading.Barrier(len(apis))

    def run(api: HfApi) -> Published:
        start.wait()
        return publish(api, plan(folder), attempts=20)

    with ThreadPoolExecutor(len(apis)) as threads:
        results = list(threads.map(run, apis))
    assert len({published.commit for published in results}) == 1
    assert_published_once(apis[0], release, results[0])
    assert len(apis[0].list_repo_commits(REPO)) == 2


def test_a_private_release_never_goes_to_a_public_repository(api: HfApi, folder: Path) -> None:
    publish(api, plan(folder, repo_id="alice/secret", private=True))
    assert api.model_info("alice/secret").private is True
    api.create_repo(REPO, private=False)
    with pytest.raises(HubRefusedError, match="the repository is public"):
        publish(api, plan(folder, private=True))
    assert len(api.list_repo_commits(REPO)) == 1


def test_a_file_that_changes_after_the_plan_is_never_published(api: HfApi, folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        release, before = plan(folder), (folder / name).read_bytes()
        (folder / name).write_bytes(before + b" ")
        with pytest.raises(ModelError, match=name):
            publish(api, release)
        (folder / name).write_bytes(before)
    assert len(api.list_repo_commits(REPO)) == 1


def test_remote_holds(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    assert not remote_holds(api, REPO, "0" * 40)
    first = publish(api, plan(folder))
    (folder / "config.json").write_text("{}")
    publish(api, plan(folder))
    assert remote_holds(api, REPO, first.commit)
    assert not remote_holds(api, REPO, "0" * 40)
    api.create_branch(REPO, branch="side", revision=first.commit)
    side = api.create_commit(REPO, [CommitOperationAdd("x", b"x")], commit_message="side", revision="side")
    assert not remote_holds(api, REPO, side.oid)
    hub.faults.append(Fault("commits", "before", 500, times=99))
    with pytest.raises(TransientError, match="500"):
        remote_holds(api, REPO, first.commit, pace=Clock().pace())


def test_a_release_that_was_rolled_back_by_hand_is_brought_back(
    api: HfApi, running_hub: tuple[FaultyHub, Path], folder: Path
) -> None:
    first = publish(api, plan(folder))
    (folder / "config.json").write_text("{}")
    second = publish(api, plan(folder))
    repository = running_hub[1] / "models/alice/model.git"
    subprocess.run(["git", "-C", str(repository), "update-ref", "refs/heads/main", first.commit], check=True)
    assert not remote_holds(api, REPO, second.commit)
    third = publish(api, plan(folder))
    assert third.how == "committed"
    assert remote_holds(api, REPO, third.commit)
    assert publish(api, plan(folder)).commit == third.commit
    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags}
    assert tags == {first.tag: first.commit, second.tag: second.commit}, "a tag was moved"


# -- what a release replaces -------------------------------------------------------------------------------------------


def weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)


def test_the_head_is_the_model_that_main_holds(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    assert head(api, REPO) is None
    api.create_repo(REPO)
    assert head(api, REPO) is None, "there are no weights"
    release = plan(folder)
    published = publish(api, release)
    api.create_tag(REPO, tag="a-nickname", revision=published.commit)
    assert head(api, REPO) == Head(published.commit, release.tag, folder_weights(folder))
    by_hand = api.create_commit(REPO, [CommitOperationAdd("NOTES", b"x")], commit_message="by hand")
    assert head(api, REPO) == Head(by_hand.oid, None, folder_weights(folder))
    with pytest.raises(HubRefusedError, match="401"):
        head(HfApi(endpoint=hub.endpoint, token="wrong-token-x"), REPO)
    hub.faults.append(Fault("GET .*/tree/", "lost", times=2))
    lines: list[str] = []
    assert head(api, REPO, pace=Clock().pace(), log=lines.append) is not None
    hub.faults.append(Fault("refs", "before", 503, times=99))
    with pytest.raises(TransientError, match="no clear answer after 3 attempts"):
        head(api, REPO, pace=Clock().pace(3), log=lines.append)
    assert len(lines) == 3


def test_a_release_replaces_only_what_it_was_compared_with(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    with pytest.raises(StaleBlessingError, match="another model"):
        publish(api, first, replaces="0" * 64)
    publish(api, first, replaces=None)
    weights(folder, b"second")
    second = plan(folder)
    for replaces in (None, second.weights, "0" * 64):
        with pytest.raises(StaleBlessingError, match=head(api, REPO).commit) as raised:
            publish(api, second, replaces=replaces)
    assert "evaluate again" in raised.value.fix
    assert len(api.list_repo_commits(REPO)) == 2
    assert publish(api, second, replaces=first.weights).how == "committed"
    assert not publish(api, second, replaces=None).superseded, "it has landed, whatever it should have replaced"


def test_a_foreign_commit_that_leaves_the_weights_does_not_stop_a_release(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    publish(api, first)
    api.create_commit(
        REPO, [CommitOperationAdd("README.md", b"---\nlicense: mit\n---\n# By hand")], commit_message="by hand"
    )
    weights(folder, b"second")
    assert_published_once(api, plan(folder), publish(api, plan(folder), replaces=first.weights))


def test_other_weights_that_land_between_look_and_act_stop_a_release(
    api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan(folder)
    publish(api, first)
    weights(folder, b"second")
    commit, foreign = exactly_once._commit, iter(range(1))

    def commit_after_another(*args: object) -> str:
        for _ in foreign:
            operations = [CommitOperationAdd("model.safetensors", b"of a stranger")]
            api.create_commit(REPO, operations, commit_message="by hand")
        return commit(*args)

    monkeypatch.setattr(exactly_once, "_commit", commit_after_another)
    with pytest.raises(StaleBlessingError):
        publish(api, plan(folder), replaces=first.weights)
    assert [commit.title for commit in api.list_repo_commits(REPO)][:2] == ["by hand", f"Publish {first.tag}"]


def test_a_release_that_was_followed_by_another_says_so(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    assert not publish(api, first).superseded
    (folder / "config.json").write_text("{}")
    publish(api, plan(folder))
    again = publish(api, first)
    assert (again.how, again.superseded) == ("found by its tag", False), "main holds its weights"
    weights(folder, b"second")
    publish(api, plan(folder))
    assert publish(api, first).superseded
    api.delete_tag(REPO, tag=first.tag)
    again = publish(api, first)
    assert (again.how, again.superseded) == ("found by its id", True)


# -- with faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["before", "after", "lost"])
@pytest.mark.parametrize("request_line", ["POST .*/commit/", "POST .*/tag/", "POST .*/repos/create", "GET .*/refs"])
def test_an_unclear_answer_is_looked_at(api: HfApi, hub: FaultyHub, folder: Path, kind: str, request_line: str) -> None:
    release = plan(folder)
    fault = Fault(request_line, kind, 503)
    hub.faults.append(fault)
    published = publish(api, release, attempts=2)
    assert fault.times == 0, "the fault was never met"
    assert_published_once(api, release, published)
    assert len(api.list_repo_commits(REPO)) == 2
    worked = [line for line in hub.done if "/commit/main" in line]
    assert len(worked) == 1, "the commit was sent again after it had landed"


@pytest.mark.parametrize(
    "request_line", ["preupload", "objects/batch", "PUT /uploads", "GET .*/tree/", "GET .*/commits/"]
)
@pytest.mark.parametrize("status", [403, 502])
def test_faults_of_the_other_requests(api: HfApi, hub: FaultyHub, folder: Path, request_line: str, status: int) -> None:
    release = plan(folder)
    hub.faults.append(Fault(request_line, "before", status))
    if status == 403 and "uploads" not in request_line:
        with pytest.raises(HubRefusedError, match="403"):
            publish(api, release)
        return
    assert_published_once(api, release, publish(api, release, attempts=2))


@pytest.mark.parametrize("kind", ["after", "lost"])
def test_a_large_file_whose_parts_were_put_together_unheard(tmp_path: Path, folder: Path, kind: str) -> None:
    with FaultyHub(tmp_path / "hub", tokens={TOKEN: "alice"}, part_bytes=2000) as hub:
        api, release = HfApi(endpoint=hub.endpoint, token=TOKEN), plan(folder)
        hub.faults.append(Fault("POST /uploads/.*/complete", kind))
        assert_published_once(api, release, publish(api, release, attempts=2))
        assert sum(line.startswith("PUT /uploads/") for line in hub.done) == 3, "the parts were sent again"


@pytest.mark.parametrize("request_line", ["POST .*/commit/", "PUT /uploads", "GET .*/tree/", "preupload"])
def test_retry_after_is_honoured(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, request_line: str) -> None:
    release = plan(folder)
    hub.faults.append(Fault(request_line, "before", 429, {"retry-after": "37"}))
    hub.faults.append(Fault(request_line, "before", 503, {"retry-after": "11"}))
    published = publish(api, release, clock, deadline_s=60)
    assert clock.slept == [37.0, 11.0]
    assert_published_once(api, release, published)


@pytest.mark.parametrize(
    "headers",
    [
        lambda: {"retry-after": "3600"},
        lambda: {"retry-after": formatdate(time.time() + 3600, usegmt=True)},
        lambda: {"ratelimit": '"api";r=0;t=3600'},
    ],
    ids=["seconds", "date", "ratelimit"],
)
def test_a_wait_beyond_the_deadline_is_not_begun(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, headers: Callable[[], dict[str, str]]
) -> None:
    hub.faults.append(Fault("preupload", "before", 429, headers(), times=99))
    with pytest.raises(TransientError, match=r"60 s do not allow another wait of 3[56]") as raised:
        publish(api, plan(folder), clock, deadline_s=60)
    assert clock.slept == []
    assert hub.endpoint in str(raised.value)


def test_a_commit_that_the_client_only_claims_is_not_believed(
    api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create_repo(REPO)
    initial = api.list_repo_commits(REPO)[0].commit_id
    commit, lies = exactly_once._commit, iter([initial])
    monkeypatch.setattr(exactly_once, "_commit", lambda *args: next(lies, None) or commit(*args))
    release = plan(folder)
    published = publish(api, release, attempts=2)
    assert published.commit != initial
    assert_published_once(api, release, published)


class Interruption(Clock):
    """A stranger commits, again and again, while a publisher waits to look again."""

    def __init__(self, stranger: HfApi, repo: str) -> None:
        super().__init__()
        self.stranger, self.repo = stranger, repo

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        with contextlib.suppress(HfHubHTTPError):  # the head moved under it
            operations = [CommitOperationAdd(f"other-{time.monotonic_ns()}", b"x")]
            self.stranger.create_commit(self.repo, operations, commit_message="by hand")


def test_any_schedule_of_faults_with_twins_and_a_stranger(hub: FaultyHub, api: HfApi, folder: Path) -> None:
    """Faults at random requests, two publishers of one release and a foreign writer: never two, never none."""
    stranger = HfApi(endpoint=hub.endpoint, token=TOKEN, headers=STRANGER)
    for seed in range(8):
        rng, repo = random.Random(seed), f"alice/model-{seed}"
        release = plan(folder, repo_id=repo)
        api.create_repo(repo)
        matches = ["/commit/", "/tag/", "/refs", "/tree/", "/preupload/", "/uploads/", "/batch", "/commits/", ""]
        hub.faults[:] = [
            Fault(rng.choice(matches), rng.choice(["before", "after", "lost"]), rng.choice([429, 500, 502, 503, 504]))
            for _ in range(rng.randrange(1, 7))
        ]

        def run(number: int, release: Release = release, repo: str = repo) -> Published:
            twin = HfApi(endpoint=hub.endpoint, token=TOKEN)
            return publish(twin, release, Interruption(stranger, repo), attempts=60, deadline_s=1e6)

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(run, range(2))
        hub.faults.clear()
        assert first.commit == second.commit, f"seed {seed}"
        assert_published_once(api, release, first)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
def test_no_write_access(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, *, exists: bool) -> None:
    if exists:
        api.create_repo(REPO)
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    with pytest.raises(HubRefusedError, match="403") as raised:
        publish(bob, plan(folder), clock)
    assert "write access to alice" in raised.value.fix
    assert clock.slept == []


@pytest.mark.parametrize("token", ["wrong-token-x", False])
def test_no_valid_token(hub: FaultyHub, folder: Path, token: str | bool) -> None:
    with pytest.raises(HubRefusedError, match="401") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert "HF_TOKEN" in raised.value.fix
    assert "wrong-token-x" not in str(raised.value)


@pytest.mark.parametrize("token", ["token-of-alice\n", "token of alice", "tokén"])
def test_a_malformed_token_is_never_shown(hub: FaultyHub, folder: Path, token: str) -> None:
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint, token=token), plan(folder))
    assert token.strip() not in str(raised.value)
    assert hub.done == []


def test_a_malformed_token_of_the_environment_is_never_shown(
    hub: FaultyHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "token-of alice\n")
    with pytest.raises(HubRefusedError, match="the token holds white space") as raised:
        publish(HfApi(endpoint=hub.endpoint), plan(folder))
    assert "alice" not in str(raised.value).replace(REPO, "")
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n")
    assert publish(HfApi(endpoint=hub.endpoint), plan(folder)).how == "committed", "the client leaves out a line end"


def test_the_token_and_signatures_are_in_no_message(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release, lines = plan(folder), []
    hub.faults.append(Fault("PUT /uploads", "before", 500, times=99))
    with pytest.raises(TransientError, match=r"500 .*PUT /uploads/.*/whole\)") as unclear:
        publish(api, release, attempts=2, log=lines.append)
    hub.faults.clear()
    talkative = {
        "x-error-message": f"no {TOKEN}, not Bearer {TOKEN}x, at {hub.endpoint}/x?signature=abc, hf_abcdefghij"
    }
    hub.faults.append(Fault("POST .*/commit/", "before", 400, talkative))
    with pytest.raises(HubRefusedError, match=r"400 no \*\*\*") as refused:
        publish(api, release, attempts=2, log=lines.append)
    for told in (str(unclear.value), str(refused.value), *lines):
        assert TOKEN not in told
        assert not re.search(r"signature|abcdefghij", told), told


def test_a_broken_model_card_is_refused_at_once(api: HfApi, folder: Path, clock: Clock) -> None:
    (folder / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    with pytest.raises(HubRefusedError, match="not YAML"):
        publish(api, plan(folder), clock)
    assert clock.slept == []


def test_a_hub_that_is_down(hub: FaultyHub, folder: Path, clock: Clock) -> None:
    api = HfApi(endpoint="http://127.0.0.1:9", token=TOKEN)  # the discard port: nobody listens
    with pytest.raises(TransientError, match=r"after 3 attempts") as raised:
        publish(api, plan(folder), clock, attempts=3)
    assert raised.value.where == f"http://127.0.0.1:9/{REPO}"
    assert clock.slept == [0.5, 1.0]
    assert TOKEN not in str(raised.value)


def test_a_hub_that_only_fails(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock) -> None:
    hub.faults.append(Fault("", "before", 500, times=999))
    with pytest.raises(TransientError, match="500"):
        publish(api, plan(folder), clock, attempts=4)
    hub.faults.clear()
    assert not api.repo_exists(REPO)


@contextlib.contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that treats every connection as `behave` says, until the block ends."""
    stop = threading.Event()

    def treat(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while not stop.wait(0.02):
                behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=treat, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)


def drip(first: bytes) -> Callable[[socket.socket], None]:
    """A peer that says `first` on each connection, and then a byte every 20 ms for ever."""
    begun: set[socket.socket] = set()

    def behave(connection: socket.socket) -> None:
        connection.sendall(b"x" if connection in begun else first)
        begun.add(connection)

    return behave


@pytest.mark.parametrize(
    "behave",
    [
        lambda connection: None,
        drip(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nx-endless: "),
    ],
    ids=["silent", "drips a body", "drips a header"],
)
def test_the_deadline_holds_whatever_the_hub_does(folder: Path, behave: Callable[[socket.socket], None]) -> None:
    with peer(behave) as endpoint:
        api, before = HfApi(endpoint=endpoint, token=TOKEN), time.monotonic()
        for ask in (
            lambda: publish_release(api, plan(folder), deadline_s=0.6),
            lambda: head(api, REPO, deadline_s=0.6),
            lambda: remote_holds(api, REPO, "0" * 40, deadline_s=0.6),
        ):
            with pytest.raises(TransientError, match="the deadline passed in the middle of a request"):
                ask()
        assert 1.8 <= time.monotonic() - before < 4


def test_the_deadline_holds_when_an_upload_is_taken_in_slowly() -> None:
    with peer(lambda connection: connection.recv(1) and None) as endpoint, faults.bounded_client(0.6):
        before = time.monotonic()
        with pytest.raises(faults.OutOfTimeError):
            get_session().put(f"{endpoint}/uploads/x", content=bytes(50 << 20))
        assert 0.6 <= time.monotonic() - before < 2


def test_after_the_deadline_no_request_begins(hub: FaultyHub) -> None:
    with faults.bounded_client(0.0), pytest.raises(faults.OutOfTimeError):
        HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()
    assert HfApi(endpoint=hub.endpoint, token=TOKEN).whoami()["name"] == "alice", "outside there is no deadline"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_no_answer_makes_the_client_sleep_by_itself(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, status: int
) -> None:
    hub.faults.append(Fault("GET .*/tree/", "before", status, {"retry-after": "31536000"}, times=99))
    with pytest.raises(TransientError, match="60 s do not allow another wait of 31536000 s"):
        publish(api, plan(folder), clock, deadline_s=60)
    assert clock.slept == []


def test_a_hub_that_never_answers(hub: FaultyHub, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(faults._CLIENT, "is_bounded", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = HfApi(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN)
        before = time.monotonic()
        with pytest.raises(TransientError, match="ReadTimeout"):
            publish(api, plan(folder), clock, attempts=2)
        assert time.monotonic() - before < 5
    monkeypatch.undo()
    faults._CLIENT.is_bounded = False  # the next use sets the ordinary timeout again
