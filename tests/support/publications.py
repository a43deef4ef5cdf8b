"""A small release, how to publish it, and what must be on the Hub then."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi

from tasks.hub_client.release_file import RELEASE_FILE
from tasks.hub_client.repository import HubRepository
from tasks.publishing.exactly_once import publish_release
from tasks.publishing.release_plan import ANY_WEIGHTS, ReleaseOutcome, ReleasePlan, plan_release
from tests.support.faulty_hub import Clock

REPO = "alice/model"
TOKEN = "token-of-alice"


def write_model(folder: Path) -> Path:
    """A folder as it may be published."""
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (folder / "model.safetensors").write_bytes(random.Random(0).randbytes(5000))
    (folder / "sub/empty.txt").write_bytes(b"")
    return folder


def plan(folder: Path, *, tag: str = "", **changes: object) -> ReleasePlan:
    """The release of a folder."""
    settings: dict[str, object] = {"repo_id": REPO, "private": False, "made_from": {"data": "abc"}}
    planned = plan_release(folder, **(settings | changes))
    return replace(planned, tag=tag or planned.tag)


def contents(release: ReleasePlan) -> dict[str, bytes]:
    """The content of each file of a release, by path."""
    paths = [file.path for file in release.files if file.path != RELEASE_FILE]
    return {RELEASE_FILE: release.record, **{path: (release.folder / path).read_bytes() for path in paths}}


def patient(
    api: HfApi,
    clock: Clock | None = None,
    attempts: int = 8,
    *,
    repo_id: str = REPO,
    timeout_s: float = 600.0,
    log: Callable[[str], None] = lambda _: None,
) -> HubRepository:
    """The repository, asked by a clock that passes only in sleep."""
    return HubRepository(api, repo_id, timeout_s=timeout_s, retries=(clock or Clock()).retries(attempts), log=log)


def publish(
    api: HfApi,
    release: ReleasePlan,
    clock: Clock | None = None,
    attempts: int = 8,
    *,
    replaces: str | None = ANY_WEIGHTS,
    timeout_s: float = 600.0,
    log: Callable[[str], None] = lambda _: None,
) -> ReleaseOutcome:
    """Publish without waiting."""
    repository = patient(api, clock, attempts, repo_id=release.repo_id, timeout_s=timeout_s, log=log)
    return publish_release(repository, replace(release, replaces=replaces))


def assert_published_once(api: HfApi, release: ReleasePlan, published: ReleaseOutcome) -> None:
    """One commit, one tag, and exactly the planned files."""
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
    planned = {file.path: (file.sha256, file.git_sha1) for file in release.files}
    assert found.keys() == planned.keys()
    assert all(found[path] in planned[path] for path in planned)
