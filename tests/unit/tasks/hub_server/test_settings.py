"""What the owner of a repository changes: visibility, name, and large files that are deleted for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

from tasks.hub_server.server import LocalHub

REPO, OTHER = "alice/model", "team/other"


def commit(api: HfApi, repo: str, files: dict[str, bytes], **more: object) -> str:
    operations = [Add(path, content) for path, content in files.items()]
    return str(api.create_commit(repo, operations, commit_message=f"add {', '.join(files)}", **more).oid)


def status_of(raised: pytest.ExceptionInfo[HfHubHTTPError]) -> int:
    return raised.value.response.status_code


def test_visibility_changes_at_once(alice: HfApi, bob: HfApi, anyone: HfApi) -> None:
    alice.create_repo(REPO)
    assert anyone.repo_exists(REPO)
    alice.update_repo_settings(REPO, private=True)
    assert alice.model_info(REPO).private
    for other in (bob, anyone):
        assert not other.repo_exists(REPO)
        assert not list(other.list_models())
    with pytest.raises(RepositoryNotFoundError):
        bob.update_repo_settings(REPO, visibility="public")
    alice.update_repo_settings(REPO, visibility="public")
    assert anyone.repo_exists(REPO)
    with pytest.raises(HfHubHTTPError) as raised:
        bob.update_repo_settings(REPO, private=True)
    assert status_of(raised) == 403
    with pytest.raises(HfHubHTTPError, match="no gated access") as raised:
        alice.update_repo_settings(REPO, gated="auto", private=True)
    assert status_of(raised) == 501
    assert not alice.model_info(REPO).private, "a refused change changes nothing"


SAID = [
    ({"private": True}, True),  # what huggingface_hub sent before 1.0
    ({"private": False}, False),
    ({"visibility": "private"}, True),
    ({"visibility": "public", "private": None}, False),
    ({"visibility": "private", "private": True}, True),
]
REFUSED: list[dict[str, Any]] = [
    {"visibility": "secret"},
    {"visibility": "Private"},
    {"visibility": "protected"},
    {"private": "perhaps"},
    {"visibility": "public", "private": True},
    {"visibility": "private", "private": False},
    {"private": True, "resourceGroupId": "5"},
    {"public": False},
    {"Private": True},
]


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_visibility_is_honoured_or_refused_however_a_client_says_it(
    alice: HfApi, anyone: HfApi, hub: LocalHub, kind: str
) -> None:
    """As the requests of huggingface_hub 0.36 and 2.4 have it, and as they might have it by mistake."""
    settings = f"/api/{kind}s/{REPO}/settings"
    with httpx2.Client(base_url=hub.endpoint, headers={"Authorization": "Bearer token-of-alice"}) as client:

        def create(said: dict[str, Any]) -> httpx2.Response:
            name = {"name": "model", "organization": "alice", "type": kind}
            return client.post("/api/repos/create", json=name | said)

        def refused(answer: httpx2.Response) -> bool:
            return answer.status_code == 400 and any(key in answer.json()["error"] for key in ("visibility", *said))

        for said, is_private in SAID:
            assert create(said).status_code == 200
            assert anyone.repo_exists(REPO, repo_type=kind) is not is_private, said
            alice.update_repo_settings(REPO, private=not is_private, repo_type=kind)
            assert client.put(settings, json=said).json() == {"private": is_private}
            assert anyone.repo_exists(REPO, repo_type=kind) is not is_private, said
            alice.delete_repo(REPO, repo_type=kind)
        for said in [*REFUSED, {"gated": "auto"}]:
            assert refused(create(said)), said
        assert not alice.repo_exists(REPO, repo_type=kind)
        alice.create_repo(REPO, repo_type=kind, private=True)
        for said in [*REFUSED, {"gated": "yes"}]:
            assert refused(client.put(settings, json=said)), said
        assert alice.repo_info(REPO, repo_type=kind).private


def test_renamed_repository_keeps_everything_and_frees_its_name(alice: HfApi, bob: HfApi) -> None:
    alice.create_repo(REPO, private=True)
    oid = commit(alice, REPO, {"model.safetensors": b"weights"})
    alice.create_tag(REPO, tag="v1")
    alice.create_commit(REPO, [Add("b.txt", b"b")], commit_message="proposal", create_pr=True)
    with pytest.raises(RepositoryNotFoundError):
        bob.move_repo(REPO, "bob/model")
    for name, expected in (("bob/model", 403), ("alice/..", 400)):
        with pytest.raises(HfHubHTTPError) as raised:
            alice.move_repo(REPO, name)
        assert status_of(raised) == expected
    alice.create_repo(OTHER)
    with pytest.raises(HfHubHTTPError, match="A model repository called team/other already exists") as raised:
        alice.move_repo(REPO, OTHER)
    assert status_of(raised) == 409
    alice.delete_repo(OTHER)

    alice.move_repo(REPO, OTHER)
    assert not alice.repo_exists(REPO)
    assert alice.model_info(OTHER, revision="v1").sha == oid
    assert alice.model_info(OTHER).private
    assert [each.title for each in alice.get_repo_discussions(OTHER)] == ["proposal"]
    alice.create_repo(REPO)
    assert alice.list_repo_files(REPO) == [".gitattributes"]


def test_deleted_large_files_leave_the_disk_and_commits_stay(
    alice: HfApi, bob: HfApi, anyone: HfApi, root: Path, tmp_path: Path
) -> None:
    alice.create_repo(REPO)
    commit(alice, REPO, {"rows.npz": b"leaked", "model.safetensors": b"good"})
    oid = commit(alice, REPO, {"a.txt": b"a", "copy/rows.npz": b"leaked"})
    alice.create_commit(REPO, [Add("b.npz", b"waits")], commit_message="waits", create_pr=True)
    for other, expected in ((bob, 403), (anyone, 401)):
        with pytest.raises(HfHubHTTPError) as raised:
            list(other.list_lfs_files(REPO))
        assert status_of(raised) == expected

    found = {file.filename: file for file in alice.list_lfs_files(REPO)}
    assert {name: file.ref for name, file in found.items()} == {
        "b.npz": "refs/pr/1",
        "copy/rows.npz": "refs/heads/main",
        "model.safetensors": "refs/heads/main",
    }
    with pytest.raises(HfHubHTTPError) as raised:
        bob.permanently_delete_lfs_files(REPO, found.values())
    assert status_of(raised) == 403
    with pytest.raises(HfHubHTTPError, match="pass rewrite_history=False") as raised:
        alice.permanently_delete_lfs_files(REPO, found.values())
    assert status_of(raised) == 501
    alice.permanently_delete_lfs_files(REPO, [found["copy/rows.npz"]], rewrite_history=False)

    stored = [path.read_bytes() for path in (root / "models/alice/model.git/lfs").rglob("*") if path.is_file()]
    assert sorted(stored) == [b"good", b"waits"]
    assert alice.model_info(REPO).sha == oid
    with pytest.raises(EntryNotFoundError, match="not stored"):
        alice.hf_hub_download(REPO, "rows.npz", cache_dir=tmp_path)


def test_a_space_cannot_be_created_or_moved(alice: HfApi, hub: LocalHub) -> None:
    for call in (
        lambda: alice.create_repo("alice/app", repo_type="space", space_sdk="gradio"),
        lambda: alice.move_repo(REPO, OTHER, repo_type="space"),
        lambda: alice.delete_repo(REPO, repo_type="space"),
    ):
        with pytest.raises(
            HfHubHTTPError, match="no repositories of the type 'space', only models and datasets"
        ) as raised:
            call()
        assert status_of(raised) == 501
