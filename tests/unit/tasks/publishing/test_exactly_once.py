"""Publishing with the real client to a local Hub with faults: exactly one commit and one tag."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

from params.foundation.errors import HubRefusedError, ModelError, StaleBlessingError, TransientError
from tasks.hub_client.repository import HubRepository
from tasks.publishing.release_plan import ReleaseOutcome, ReleasePlan
from tests.support.faulty_hub import STRANGER, Clock, Fault, FaultyHub
from tests.support.publications import REPO, TOKEN, assert_published_once, plan, publish

SUPERSEDED = "it was published before, and main holds another model now"


def test_publishing_the_same_release_again_writes_nothing(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release, lines = plan(folder), []
    published = publish(api, release, log=lines.append)
    assert published.how == "committed"
    assert_published_once(api, release, published)
    assert published.commit in lines[-1]
    assert len(api.list_repo_commits(REPO)) == 2  # plus the initial commit

    hub.done.clear()
    again = publish(api, plan(folder))
    assert (again.commit, again.how) == (published.commit, "found by its tag")
    assert not [line for line in hub.done if not line.startswith("GET")], "a second publication wrote something"


def test_changed_file_makes_one_more_commit(api: HfApi, folder: Path) -> None:
    first = publish(api, plan(folder))
    (folder / "sub/empty.txt").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    second_release = plan(folder)
    second = publish(api, second_release)
    assert_published_once(api, second_release, second)
    assert [commit.commit_id for commit in api.list_repo_commits(REPO)][:2] == [second.commit, first.commit]


def test_release_is_found_below_foreign_commits(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    published = publish(api, release)
    api.create_commit(REPO, [CommitOperationAdd("LICENSE", b"mit")], commit_message="by hand")
    api.delete_tag(REPO, tag=release.tag)
    again = publish(api, plan(folder))
    assert (again.commit, again.how) == (published.commit, "found by its id")
    assert_published_once(api, release, again)
    assert len(api.list_repo_commits(REPO)) == 3


def test_copied_id_stops_no_release(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    """Whoever makes a pull request may know the id of a release that waits: their words are in main's history, too."""
    release = plan(folder)
    api.create_repo(REPO)
    trailer = f"Publish-Id: {release.publish_id}"
    own = CommitOperationAdd("NOTES", b"x")
    api.create_commit(REPO, [own], commit_message="some notes", commit_description=trailer)
    published = publish(api, release)
    assert published.how == "committed"
    assert {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags} == {release.tag: published.commit}
    api.delete_tag(REPO, tag=release.tag)
    own = CommitOperationAdd("NOTES", b"y")
    api.create_commit(REPO, [own], commit_message="more notes", commit_description=trailer)
    assert publish(api, plan(folder)).commit == published.commit


def test_release_lands_after_concurrent_foreign_commits(
    api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create_repo(REPO)
    commit, foreign = HubRepository.commit, iter(range(2))

    def foreign_commit_first(*args: Any, **options: Any) -> str:
        for number in foreign:
            content = f"from elsewhere {number}".encode()
            api.create_commit(REPO, [CommitOperationAdd("OTHER", content)], commit_message="by hand")
            break
        return commit(*args, **options)

    monkeypatch.setattr(HubRepository, "commit", foreign_commit_first)
    release = plan(folder)
    clock = Clock()
    assert_published_once(api, release, publish(api, release, clock))
    assert clock.slept == [0.5, 1.0]  # two stale parents
    assert len(api.list_repo_commits(REPO)) == 4


def test_tag_with_other_files_is_refused(api: HfApi, folder: Path) -> None:
    api.create_repo(REPO)
    head = api.list_repo_commits(REPO)[0].commit_id
    api.create_tag(REPO, tag="v1")
    with pytest.raises(HubRefusedError, match="tag v1 holds other files"):
        publish(api, plan(folder, tag="v1"))
    assert api.list_repo_refs(REPO).tags[0].target_commit == head
    assert len(api.list_repo_commits(REPO)) == 1


def test_concurrent_publishers_land_one_release(hub: FaultyHub, folder: Path) -> None:
    apis = [HfApi(endpoint=hub.endpoint, token=TOKEN) for _ in range(4)]
    release, start = plan(folder), threading.Barrier(len(apis))

    def run(api: HfApi) -> ReleaseOutcome:
        start.wait()
        return publish(api, plan(folder), attempts=20)

    with ThreadPoolExecutor(len(apis)) as threads:
        results = list(threads.map(run, apis))
    assert len({published.commit for published in results}) == 1
    assert_published_once(apis[0], release, results[0])
    assert len(apis[0].list_repo_commits(REPO)) == 2


def test_private_release_is_refused_by_a_public_repository(api: HfApi, folder: Path) -> None:
    publish(api, plan(folder, repo_id="alice/secret", private=True))
    assert api.model_info("alice/secret").private is True
    api.create_repo(REPO, private=False)
    with pytest.raises(HubRefusedError, match="the repository is public"):
        publish(api, plan(folder, private=True))
    assert len(api.list_repo_commits(REPO)) == 1


def test_file_changed_after_the_plan_is_not_published(api: HfApi, folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        release, before = plan(folder), (folder / name).read_bytes()
        (folder / name).write_bytes(before + b" ")
        with pytest.raises(ModelError, match=name):
            publish(api, release)
        (folder / name).write_bytes(before)
    assert len(api.list_repo_commits(REPO)) == 1


def test_release_removed_by_hand_is_published_again(
    api: HfApi, running_hub: tuple[FaultyHub, Path], folder: Path
) -> None:
    first, first_tag = publish(api, plan(folder)), plan(folder).tag
    (folder / "config.json").write_text("{}")
    second, second_tag = publish(api, plan(folder)), plan(folder).tag
    repository = running_hub[1] / "models/alice/model.git"
    subprocess.run(["git", "-C", str(repository), "update-ref", "refs/heads/main", first.commit], check=True)
    assert not HubRepository(api, REPO).holds(second.commit)
    third = publish(api, plan(folder))
    assert third.how == "committed"
    assert HubRepository(api, REPO).holds(third.commit)
    assert publish(api, plan(folder)).commit == third.commit
    tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags}
    assert tags == {first_tag: first.commit, second_tag: second.commit}, "a tag was moved"


def weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)


def test_release_replaces_only_the_weights_it_was_compared_with(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    with pytest.raises(StaleBlessingError, match="another model"):
        publish(api, first, replaces="0" * 64)
    publish(api, first, replaces=None)
    weights(folder, b"second")
    second = plan(folder)
    for replaces in (None, second.weights, "0" * 64):
        with pytest.raises(StaleBlessingError, match=HubRepository(api, REPO).head().commit) as raised:
            publish(api, second, replaces=replaces)
    assert "evaluate again" in raised.value.fix
    assert len(api.list_repo_commits(REPO)) == 2
    assert publish(api, second, replaces=first.weights).how == "committed"
    assert not publish(api, second, replaces=None).note, "it has landed already"


def test_foreign_commit_with_the_same_weights_does_not_stop_a_release(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    publish(api, first)
    api.create_commit(
        REPO, [CommitOperationAdd("README.md", b"---\nlicense: mit\n---\n# By hand")], commit_message="by hand"
    )
    weights(folder, b"second")
    assert_published_once(api, plan(folder), publish(api, plan(folder), replaces=first.weights))


def test_concurrent_foreign_weights_stop_a_release(api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan(folder)
    publish(api, first)
    weights(folder, b"second")
    commit, foreign = HubRepository.commit, iter(range(1))

    def foreign_commit_first(*args: Any, **options: Any) -> str:
        for _ in foreign:
            operations = [CommitOperationAdd("model.safetensors", b"of a stranger")]
            api.create_commit(REPO, operations, commit_message="by hand")
        return commit(*args, **options)

    monkeypatch.setattr(HubRepository, "commit", foreign_commit_first)
    with pytest.raises(StaleBlessingError):
        publish(api, plan(folder), replaces=first.weights)
    assert [commit.title for commit in api.list_repo_commits(REPO)][:2] == ["by hand", f"Publish {first.tag}"]


def test_superseded_release_is_reported(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    assert not publish(api, first).note
    (folder / "config.json").write_text("{}")
    publish(api, plan(folder))
    again = publish(api, first)
    assert (again.how, again.note) == ("found by its tag", ""), "main holds its weights"
    weights(folder, b"second")
    publish(api, plan(folder))
    assert publish(api, first).note == SUPERSEDED
    api.delete_tag(REPO, tag=first.tag)
    again = publish(api, first)
    assert (again.how, again.note) == ("found by its id", SUPERSEDED)


@pytest.mark.parametrize("kind", ["before", "after", "lost"])
@pytest.mark.parametrize("request_line", ["POST .*/commit/", "POST .*/tag/", "POST .*/repos/create", "GET .*/refs"])
def test_unclear_answer_does_not_repeat_the_commit(
    api: HfApi, hub: FaultyHub, folder: Path, kind: str, request_line: str
) -> None:
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
def test_faults_of_other_requests(api: HfApi, hub: FaultyHub, folder: Path, request_line: str, status: int) -> None:
    release = plan(folder)
    hub.faults.append(Fault(request_line, "before", status))
    if status == 403 and "uploads" not in request_line:
        with pytest.raises(HubRefusedError, match="403"):
            publish(api, release)
        return
    assert_published_once(api, release, publish(api, release, attempts=2))


@pytest.mark.parametrize("status", [403, 410])
def test_expired_upload_is_begun_again(api: HfApi, hub: FaultyHub, folder: Path, status: int) -> None:
    """Its URL is signed for a limited time; the parts in which huggingface.co takes a file are gone once they were joined."""
    release = plan(folder)
    hub.faults.append(Fault("PUT /uploads", "before", status))
    assert_published_once(api, release, publish(api, release, attempts=2))


def test_upload_that_arrived_is_not_repeated(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    """Whatever the Hub answers after it, the next attempt finds the file."""
    release = plan(folder)
    hub.faults.append(Fault("PUT /uploads", "after", 404))
    assert_published_once(api, release, publish(api, release, attempts=2))
    assert len([line for line in hub.done if line.startswith("PUT /uploads/")]) == 1, "the file was sent again"


@pytest.mark.parametrize("request_line", ["POST .*/commit/", "PUT /uploads", "GET .*/tree/", "preupload"])
def test_retry_after_is_respected(api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, request_line: str) -> None:
    release = plan(folder)
    hub.faults.append(Fault(request_line, "before", 429, {"retry-after": "37"}))
    hub.faults.append(Fault(request_line, "before", 503, {"retry-after": "11"}))
    published = publish(api, release, clock, timeout_s=60)
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
def test_wait_beyond_the_deadline_is_an_error(
    api: HfApi, hub: FaultyHub, folder: Path, clock: Clock, headers: Callable[[], dict[str, str]]
) -> None:
    hub.faults.append(Fault("preupload", "before", 429, headers(), times=99))
    with pytest.raises(TransientError, match=r"60 s do not allow another wait of 3[56]") as raised:
        publish(api, plan(folder), clock, timeout_s=60)
    assert clock.slept == []
    assert hub.endpoint in str(raised.value)


def test_commit_id_of_the_client_is_verified(api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create_repo(REPO)
    initial = api.list_repo_commits(REPO)[0].commit_id
    commit, lies = HubRepository.commit, iter([initial])
    monkeypatch.setattr(HubRepository, "commit", lambda *args, **options: next(lies, None) or commit(*args, **options))
    release = plan(folder)
    published = publish(api, release, attempts=2)
    assert published.commit != initial
    assert_published_once(api, release, published)


class StrangerClock(Clock):
    """A clock in whose sleeps a stranger commits."""

    def __init__(self, stranger: HfApi, repo: str) -> None:
        super().__init__()
        self.stranger, self.repo = stranger, repo

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        with contextlib.suppress(HfHubHTTPError):  # the head has moved
            operations = [CommitOperationAdd(f"other-{time.monotonic_ns()}", b"x")]
            self.stranger.create_commit(self.repo, operations, commit_message="by hand")


def test_random_faults_with_concurrent_writers_land_one_release(hub: FaultyHub, api: HfApi, folder: Path) -> None:
    """Random faults, two publishers of one release and a foreign writer."""
    stranger = HfApi(endpoint=hub.endpoint, token=TOKEN, headers=STRANGER)
    for seed in range(4):
        rng, repo = random.Random(seed), f"alice/model-{seed}"
        release = plan(folder, repo_id=repo)
        api.create_repo(repo)
        matches = ["/commit/", "/tag/", "/refs", "/tree/", "/preupload/", "/uploads/", "/batch", "/commits/", ""]
        hub.faults[:] = [
            Fault(rng.choice(matches), rng.choice(["before", "after", "lost"]), rng.choice([429, 500, 502, 503, 504]))
            for _ in range(rng.randrange(1, 7))
        ]

        def run(number: int, release: ReleasePlan = release, repo: str = repo) -> ReleaseOutcome:
            twin = HfApi(endpoint=hub.endpoint, token=TOKEN)
            return publish(twin, release, StrangerClock(stranger, repo), attempts=60, timeout_s=1e6)

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(run, range(2))
        hub.faults.clear()
        assert first.commit == second.commit, f"seed {seed}"
        assert_published_once(api, release, first)
