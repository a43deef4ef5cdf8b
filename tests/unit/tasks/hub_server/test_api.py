"""The contract: what the client relies on, one promise per test. contract.py chooses the Hub."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitInfo, HfApi
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import CommitOperationDelete as Delete
from huggingface_hub.errors import (
    BadRequestError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tasks.hub_server.server import LocalHub
from tests.unit.tasks.hub_server.contract import IS_LOCAL, TOKEN, lfs_batch, local_only


def commit(api: HfApi, repo: str, files: dict[str, bytes], **more: object) -> CommitInfo:
    operations = [Add(path, content) for path, content in files.items()]
    return api.create_commit(repo, operations, commit_message="a commit", **more)


def paths(api: HfApi, repo: str, revision: str = "main") -> list[str]:
    return [entry.path for entry in api.list_repo_tree(repo, recursive=True, revision=revision)]


def status_of(raised: pytest.ExceptionInfo[HfHubHTTPError]) -> int:
    return raised.value.response.status_code


def post_lines(endpoint: str, repo: str, *operations: dict[str, object], **header: str) -> httpx2.Response:
    """Post the lines of a commit without the client, which would refuse malformed ones."""
    body = [{"key": "header", "value": {"summary": "by hand", **header}}, *operations]
    return httpx2.post(
        f"{endpoint}/api/models/{repo}/commit/main",
        content="\n".join(map(json.dumps, body)),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-ndjson"},
    )


# -- repositories ------------------------------------------------------------------------------------------------------


def test_create_list_and_delete_repositories(alice: HfApi, repo: str, me: str) -> None:
    assert alice.whoami()["name"] == me
    assert alice.create_repo(repo).repo_id == repo
    assert alice.create_repo(repo, exist_ok=True).repo_id == repo
    assert alice.create_repo(repo, repo_type="dataset").repo_type == "dataset"
    with pytest.raises(HfHubHTTPError) as raised:
        alice.create_repo(repo)
    assert status_of(raised) == 409
    name = repo.partition("/")[2]
    for found in (alice.list_models, alice.list_datasets):
        assert [listed.id for listed in found(author=me, search=name.upper())] == [repo]
        assert not list(found(author=me, search=f"{name}-other"))
        assert not list(found(author=f"{me}-nobody", search=name))
    alice.delete_repo(repo)
    assert not alice.repo_exists(repo)
    assert alice.repo_exists(repo, repo_type="dataset")
    alice.create_repo(repo)
    assert len(alice.list_repo_commits(repo)) == 1


@local_only
@pytest.mark.parametrize("name", ["..", "a..b", "a--b", "x.git", "-x", "a/../../b", "%2e%2e", "x" * 97])
def test_create_refuses_invalid_names(root: Path, name: str, endpoint: str) -> None:
    before = sorted(root.rglob("*"))
    answer = httpx2.post(
        f"{endpoint}/api/repos/create", json={"name": name}, headers={"Authorization": "Bearer token-of-alice"}
    )
    assert answer.status_code == 400, answer.text
    assert sorted(root.rglob("*")) == before


def test_commit_regular_and_large_files(alice: HfApi, local_root: Path | None, repo: str) -> None:
    alice.create_repo(repo)
    weights = random.Random(0).randbytes(100_000)
    first = commit(
        alice, repo, {"README.md": b"---\nlicense: mit\n---\n# hi\n", "sub/model.safetensors": weights, "e": b""}
    )
    assert paths(alice, repo) == [".gitattributes", "README.md", "e", "sub", "sub/model.safetensors"]
    readme, large = alice.get_paths_info(repo, ["README.md", "sub/model.safetensors", "absent"])
    assert (readme.size, readme.lfs) == (26, None)
    assert large.lfs is not None
    assert (large.size, large.lfs.size) == (100_000, 100_000)
    assert large.lfs.sha256 == hashlib.sha256(weights).hexdigest()

    second = alice.create_commit(repo, [Delete("e"), Delete("sub/"), Add("new.txt", b"new")], commit_message="second")
    assert paths(alice, repo) == [".gitattributes", "README.md", "new.txt"]
    assert paths(alice, repo, revision=first.oid)[-1] == "sub/model.safetensors"
    history = alice.list_repo_commits(repo)
    assert [entry.title for entry in history] == ["second", "a commit", "initial commit"]
    assert [entry.commit_id for entry in history[:2]] == [second.oid, first.oid]
    assert alice.model_info(repo, files_metadata=True).sha == second.oid

    if local_root is None:
        return
    stored = list((local_root / "models/alice/model.git/lfs/objects").rglob(large.lfs.sha256))
    assert [path.read_bytes() for path in stored] == [weights]
    git = ["git", "-C", str(local_root / "models/alice/model.git")]
    assert subprocess.run([*git, "fsck", "--full", "--strict"], check=True, capture_output=True).stdout == b""
    shown = subprocess.run([*git, "show", f"{first.oid}:README.md"], check=True, capture_output=True).stdout
    assert shown.endswith(b"# hi\n")


@local_only
def test_git_clones_what_the_client_committed(alice: HfApi, root: Path, tmp_path: Path, repo: str) -> None:
    alice.create_repo(repo)
    commit(alice, repo, {"a/b.txt": b"text\n"})
    clone = tmp_path / "clone"
    source = f"file://{root}/models/alice/model.git"
    # without large files, because git-lfs may not be installed
    subprocess.run(["git", "clone", "-q", source, str(clone)], check=True)
    assert (clone / "a/b.txt").read_bytes() == b"text\n"


@local_only
def test_large_file_is_uploaded_once(alice: HfApi, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    content = random.Random(2).randbytes(1000)
    commit(alice, repo, {"one.safetensors": content})
    one = Add("one.safetensors", content).upload_info.sha256.hex()
    answers = lfs_batch(endpoint, repo, (one, 1000), ("0" * 64, 5))
    assert ["actions" in answer for answer in answers] == [False, True]


def test_stale_parent_is_refused(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    first = commit(alice, repo, {"a.txt": b"1"})
    second = commit(alice, repo, {"a.txt": b"2"}, parent_commit=first.oid)
    with pytest.raises(HfHubHTTPError) as raised:
        commit(alice, repo, {"a.txt": b"3"}, parent_commit=first.oid)
    assert status_of(raised) == 412
    assert alice.list_repo_commits(repo)[0].commit_id == second.oid


def test_exactly_one_of_concurrent_commits_lands(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    head = commit(alice, repo, {"a.txt": b"0"}).oid
    start = threading.Barrier(4)

    def attempt(number: int) -> object:
        start.wait()
        try:
            return commit(alice, repo, {"a.txt": b"%d" % number}, parent_commit=head).oid
        except HfHubHTTPError as error:
            return error.response.status_code

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(attempt, range(1, 5)))
    landed = [outcome for outcome in outcomes if outcome != 412]
    assert [entry.commit_id for entry in alice.list_repo_commits(repo)][:2] == [*landed, head], outcomes


def test_tags_and_branches(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    first, second = commit(alice, repo, {"a.txt": b"1"}), commit(alice, repo, {"a.txt": b"2"})
    alice.create_tag(repo, tag="v1", revision=first.oid)
    alice.create_branch(repo, branch="feature/x", revision="v1")
    commit(alice, repo, {"b.txt": b"b"}, revision="feature/x")
    for other in (second.oid, first.oid):
        with pytest.raises(HfHubHTTPError) as raised:
            alice.create_tag(repo, tag="v1", revision=other)
        assert status_of(raised) == 409
    refs = alice.list_repo_refs(repo)
    assert {tag.name: tag.target_commit for tag in refs.tags} == {"v1": first.oid}
    assert {branch.name for branch in refs.branches} == {"main", "feature/x"}
    assert "b.txt" in paths(alice, repo, revision="feature/x")
    assert paths(alice, repo, revision="refs/heads/feature/x") == paths(alice, repo, revision="feature/x")
    assert alice.model_info(repo, revision=first.oid[:10]).sha == first.oid
    alice.delete_tag(repo, tag="v1")
    alice.delete_branch(repo, branch="feature/x")
    with pytest.raises(RevisionNotFoundError):
        alice.delete_tag(repo, tag="v1")
    with pytest.raises(HfHubHTTPError) as raised:
        alice.delete_branch(repo, branch="main")
    assert status_of(raised) == 403
    for bad in ("a..b", "x.lock", "../../HEAD", "a b", *(("a" * 40, "-x", "refs/pr/1") if IS_LOCAL else ())):
        with pytest.raises(BadRequestError):
            alice.create_tag(repo, tag=bad)


@local_only
def test_long_tree_and_history_are_whole(alice: HfApi, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    many = [{"key": "file", "value": {"path": f"d/{number:04}", "content": "x"}} for number in range(1010)]
    assert post_lines(endpoint, repo, *many).status_code == 200
    assert len(paths(alice, repo)) == 1010 + 2  # the folder, .gitattributes
    assert len([entry.path for entry in alice.list_repo_tree(repo, "d")]) == 1010
    assert [entry.path for entry in alice.list_repo_tree(repo)] == [".gitattributes", "d"]
    for number in range(52):
        assert (
            post_lines(endpoint, repo, {"key": "file", "value": {"path": "n", "content": str(number)}}).status_code
            == 200
        )
    history = alice.list_repo_commits(repo)
    assert len(history) == len({entry.commit_id for entry in history}) == 54
    assert history[-1].title == "initial commit"


def test_path_cannot_be_both_file_and_folder(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    commit(alice, repo, {"a": b"file"})
    with pytest.raises(BadRequestError, match="cannot be both a file and the folder" if IS_LOCAL else None):
        commit(alice, repo, {"a/b": b"inside"})
    assert paths(alice, repo) == [".gitattributes", "a"]


# -- permissions -------------------------------------------------------------------------------------------------------


def test_private_repository_is_hidden_without_a_token(alice: HfApi, anyone: HfApi, repo: str, me: str) -> None:
    alice.create_repo(repo, private=True)
    head = commit(alice, repo, {"a.txt": b"1"}).oid
    assert alice.model_info(repo).private is True
    with pytest.raises(RepositoryNotFoundError):
        anyone.model_info(repo)
    with pytest.raises(RepositoryNotFoundError):
        list(anyone.list_repo_tree(repo))
    assert repo not in [model.id for model in anyone.list_models(author=me)]
    for attempt in (partial(commit, anyone, repo, {"a.txt": b"2"}), partial(anyone.create_tag, repo, tag="t")):
        with pytest.raises(HfHubHTTPError) as raised:
            attempt()
        assert status_of(raised) in (401, 403, 404)
    assert [alice.model_info(repo).sha, *alice.list_repo_refs(repo).tags] == [head]


@local_only
def test_private_repository_is_hidden_without_permission(
    alice: HfApi, bob: HfApi, anyone: HfApi, endpoint: str
) -> None:
    alice.create_repo("alice/secret", private=True)
    commit(alice, "alice/secret", {"a.txt": b"1"})
    assert alice.model_info("alice/secret").private is True
    for other in (bob, anyone):
        with pytest.raises(RepositoryNotFoundError) as raised:
            other.model_info("alice/secret")
        assert status_of(raised) == 404
        with pytest.raises(RepositoryNotFoundError):
            list(other.list_repo_tree("alice/secret"))
        assert not list(other.list_models())
        missing = httpx2.get(f"{endpoint}/alice/nothing/resolve/main/a.txt")
        hidden = httpx2.get(f"{endpoint}/alice/secret/resolve/main/a.txt")
        assert (hidden.status_code, hidden.content) == (missing.status_code, missing.content) == (404, hidden.content)
    with pytest.raises(RepositoryNotFoundError):
        commit(bob, "alice/secret", {"a.txt": b"2"})
    assert [model.id for model in alice.list_models()] == ["alice/secret"]


@local_only
def test_writing_needs_a_token_and_permission(
    alice: HfApi, bob: HfApi, anyone: HfApi, hub: LocalHub, repo: str
) -> None:
    alice.create_repo(repo)
    head = commit(alice, repo, {"a.txt": b"1"}).oid
    assert paths(bob, repo) == paths(anyone, repo) == [".gitattributes", "a.txt"]
    attempts = [
        lambda api: commit(api, repo, {"a.txt": b"2"}),
        lambda api: api.create_tag(repo, tag="t"),
        lambda api: api.create_branch(repo, branch="b"),
        lambda api: api.create_repo("alice/other"),
        lambda api: api.auth_check(repo, write=True),
    ]
    for attempt in attempts:
        with pytest.raises(HfHubHTTPError) as raised:
            attempt(bob)
        assert status_of(raised) == 403
        with pytest.raises(HfHubHTTPError) as raised:
            attempt(anyone)
        assert status_of(raised) == 401
    with pytest.raises(HfHubHTTPError) as raised:
        HfApi(endpoint=hub.endpoint, token="guess").model_info(repo)
    assert status_of(raised) == 401
    assert alice.list_repo_refs(repo).branches[0].target_commit == head
    assert not alice.list_repo_refs(repo).tags
    alice.auth_check(repo, write=True)


@local_only
def test_only_team_members_write_in_a_team(alice: HfApi, bob: HfApi) -> None:
    alice.create_repo("team/model")
    commit(alice, "team/model", {"a.txt": b"1"})
    with pytest.raises(HfHubHTTPError) as raised:
        commit(bob, "team/model", {"a.txt": b"2"})
    assert status_of(raised) == 403


@local_only
def test_upload_urls_are_signed(alice: HfApi, root: Path, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    info = Add("x.safetensors", b"some content").upload_info
    (answer,) = lfs_batch(endpoint, repo, (info.sha256.hex(), info.size))
    url = answer["actions"]["upload"]["href"]
    assert httpx2.put(url.partition("?")[0], content=b"some content").status_code == 403
    assert httpx2.put(url.replace("/alice/", "/bob/"), content=b"some content").status_code == 403
    assert httpx2.put(url.replace(f"/{info.size}?", "/1?"), content=b"some content").status_code == 403
    assert httpx2.put(url, content=b"some contenT").status_code == 422
    assert httpx2.put(url, content=b"some content and more").status_code == 422
    folder = root / "models/alice/model.git/lfs"
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert httpx2.put(url, content=b"some content").status_code == 200


# -- missing and refused -----------------------------------------------------------------------------------------------


def test_missing_things_raise_the_clients_errors(alice: HfApi, tmp_path: Path, repo: str) -> None:
    alice.create_repo(repo)
    with pytest.raises(RepositoryNotFoundError):
        alice.model_info(f"{repo}-nothing")
    with pytest.raises(RevisionNotFoundError):
        alice.model_info(repo, revision="v9")
    with pytest.raises(RevisionNotFoundError):
        alice.hf_hub_download(repo, "config.json", revision="0" * 40, cache_dir=tmp_path)
    with pytest.raises(RemoteEntryNotFoundError):
        alice.hf_hub_download(repo, "config.json", cache_dir=tmp_path)
    with pytest.raises(RemoteEntryNotFoundError):
        list(alice.list_repo_tree(repo, "folder"))
    with pytest.raises(RemoteEntryNotFoundError):
        alice.create_commit(repo, [Delete("config.json")], commit_message="x")
    assert alice.file_exists(repo, ".gitattributes")
    assert not alice.file_exists(repo, "config.json")
    assert not alice.file_exists(repo, ".gitattributes/x")
    assert alice.revision_exists(repo, "main")
    assert not alice.revision_exists(repo, "v9")
    assert not alice.repo_exists(f"{repo}-nothing")


@local_only
def test_name_without_a_namespace_is_not_found(alice: HfApi, tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        alice.model_info("gpt2")
    with pytest.raises(RepositoryNotFoundError):
        alice.hf_hub_download("gpt2", "config.json", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a/../../x", "a//b", "./a", "a/.git/config", ".GIT/config", "a\\b", "a\nb", "", "\ud800"]
)
def test_paths_outside_the_repository_are_refused(alice: HfApi, path: str, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    for operation in (
        {"key": "file", "value": {"path": path, "content": "x"}},
        {"key": "deletedFolder", "value": {"path": path}},
    ):
        status = post_lines(endpoint, repo, operation).status_code
        assert status == 400 if IS_LOCAL else 400 <= status < 500
    assert len(alice.list_repo_commits(repo)) == 1


@local_only
def test_downloads_stay_inside_the_repository(alice: HfApi, root: Path, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    (root / "outside.txt").write_text("outside")
    for path in ("..%2f..%2f..%2foutside.txt", "%2e%2e/config", "%2Fetc%2Fpasswd", "config", "HEAD"):
        assert httpx2.get(f"{endpoint}/alice/model/resolve/main/{path}").status_code == 404
    assert httpx2.get(f"{endpoint}/api/%2e%2e").status_code == 501
    assert httpx2.get(f"{endpoint}/api/models/%2e%2e/alice").status_code == 404
    assert httpx2.get(f"{endpoint}/api/models/alice/model/revision/..%2F..%2FHEAD").status_code == 404


@local_only
def test_malformed_commits_change_nothing(alice: HfApi, root: Path, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    (root / "outside.txt").write_text("outside")
    good = {"key": "file", "value": {"path": "good.txt", "content": "x"}}
    for bad in (
        {"key": "file", "value": {"path": "a.txt", "content": "not base64!", "encoding": "base64"}},
        {"key": "file", "value": {"path": "a.txt"}},
        {"key": "lfsFile", "value": {"path": "a.bin", "oid": "0" * 64, "size": 3}},
        {"key": "lfsFile", "value": {"path": "a.bin", "oid": "../../../HEAD", "size": 3}},
        {"key": "lfsFile", "value": {"path": "a.bin", "oid": str(root / "outside.txt")}},
        {"key": "rename", "value": {"path": "a.txt"}},
        {"key": "file"},
    ):
        assert post_lines(endpoint, repo, good, bad).status_code == 400, bad
    assert post_lines(endpoint, repo, good, summary="").status_code == 400
    assert post_lines(endpoint, repo, good, parentCommit="f" * 40).status_code == 412
    assert paths(alice, repo) == [".gitattributes"]


def test_invalid_model_card_is_refused(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    result = "{task: {type: t}, dataset: {type: d, name: D, config: 3}, metrics: [{type: m, value: 1}]}"
    for metadata, error in {
        "license: [unclosed": "not YAML" if IS_LOCAL else None,
        "- a\n- b": "not a mapping" if IS_LOCAL else None,
        "license: 3": '"license" must be',
        "model-index: {name: m}": '"model-index" must be an array',
        f"model-index: [{{name: m, results: [{result}]}}]": r'"model-index\[0\].results\[0\].dataset.config" must be a string',
    }.items():
        with pytest.raises(ValueError, match=error):
            commit(alice, repo, {"README.md": f"---\n{metadata}\n---\n".encode()})
    with pytest.warns(UserWarning, match="empty or missing yaml"):
        commit(alice, repo, {"README.md": b"# no metadata\n"})


def test_repository_info_has_the_cards_metadata(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    metadata = "license: mit\ntags: [evergreen]\nlibrary_name: transformers\npipeline_tag: text-classification"
    commit(alice, repo, {"README.md": f"---\n{metadata}\n---\n# Card\n".encode()})
    info = alice.model_info(repo)
    assert (info.pipeline_tag, info.library_name) == ("text-classification", "transformers")
    assert "evergreen" in info.tags
    assert info.card_data.license == "mit"


# -- downloads ---------------------------------------------------------------------------------------------------------


@local_only
@pytest.mark.parametrize("name", ["text.txt", "weights.safetensors"])
def test_range_requests(alice: HfApi, name: str, repo: str, endpoint: str) -> None:
    alice.create_repo(repo)
    content = b"0123456789" * 10
    head = commit(alice, repo, {name: content}).oid
    url = f"{endpoint}/{repo}/resolve/main/{name}"
    info = alice.get_paths_info(repo, [name])[0]
    etag = info.lfs.sha256 if info.lfs else info.blob_id
    whole = httpx2.head(url)
    assert (whole.status_code, whole.headers["content-length"], whole.content) == (200, "100", b"")
    assert (whole.headers["etag"], whole.headers["x-repo-commit"]) == (f'"{etag}"', head)
    assert whole.headers.get("x-linked-size") == ("100" if info.lfs else None)
    expected = {
        "bytes=0-4": (206, b"01234", "bytes 0-4/100"),
        "bytes=95-": (206, b"56789", "bytes 95-99/100"),
        "bytes=-3": (206, b"789", "bytes 97-99/100"),
        "bytes=90-500": (206, content[90:], "bytes 90-99/100"),
        "bytes=100-": (416, b"", "bytes */100"),
    }
    for header, (status, body, shown) in expected.items():
        answer = httpx2.get(url, headers={"Range": header})
        assert (answer.status_code, answer.content, answer.headers.get("content-range")) == (status, body, shown), (
            header
        )
    for header in ("bytes=5-3", "lines=0-1", "bytes=-"):
        assert httpx2.get(url, headers={"Range": header}).status_code == 400, header


def test_client_resumes_a_partial_download(alice: HfApi, tmp_path: Path, repo: str) -> None:
    alice.create_repo(repo)
    content = random.Random(3).randbytes(300_000)
    commit(alice, repo, {"model.safetensors": content})
    etag = alice.get_paths_info(repo, ["model.safetensors"])[0].lfs.sha256
    started = tmp_path / f"cache/models--{repo.replace('/', '--')}/blobs" / f"{etag}.incomplete"
    started.parent.mkdir(parents=True)
    started.write_bytes(content[:100_000])
    found = alice.hf_hub_download(repo, "model.safetensors", cache_dir=tmp_path / "cache")
    assert Path(found).read_bytes() == content


def test_snapshot_of_a_tag(alice: HfApi, tmp_path: Path, repo: str) -> None:
    alice.create_repo(repo)
    first = commit(alice, repo, {"a.txt": b"1", "sub/b.safetensors": b"\0" * 1000})
    alice.create_tag(repo, tag="v1", revision=first.oid)
    commit(alice, repo, {"a.txt": b"2"})
    folder = Path(alice.snapshot_download(repo, revision="v1", cache_dir=tmp_path / "cache"))
    assert folder.name == first.oid
    assert (folder / "a.txt").read_bytes() == b"1"
    assert (folder / "sub/b.safetensors").read_bytes() == b"\0" * 1000


# -- the server --------------------------------------------------------------------------------------------------------


@local_only
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "10.0.0.1"])
def test_only_loopback_hosts_are_accepted(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        LocalHub(tmp_path, tokens={}, host=host)


@local_only
@pytest.mark.parametrize("tokens", [{"t": "../x"}, {"t": "a b"}, {"": "alice"}, {"t\n": "alice"}, {"t": "datasets"}])
def test_invalid_users_and_tokens_are_refused(tmp_path: Path, tokens: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="local Hub"):
        LocalHub(tmp_path, tokens=tokens)


@local_only
def test_tokens_are_not_shown(hub: LocalHub) -> None:
    assert "token-of" not in repr(hub) + repr(hub._access)


@local_only
def test_server_stops_quickly_with_a_client_connected(root: Path) -> None:
    threads = threading.active_count()
    with LocalHub(root, tokens={}) as hub, httpx2.Client() as client:
        assert client.get(f"{hub.endpoint}/api/models").json() == []
        endpoint, before = hub.endpoint, time.monotonic()
        hub.__exit__(None, None, None)
        assert time.monotonic() - before < 2
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{endpoint}/api/models")
        hub.__enter__()
    assert threading.active_count() <= threads + 1  # an idle worker of anyio may linger
