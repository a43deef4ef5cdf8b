"""Releases that wait for approval: one open pull request a recipe, merged exactly once, rejected for good."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.community import Discussion

from params.foundation.errors import StaleBlessingError, TransientError
from tasks.hub_client.main_history import read_main_commits
from tasks.hub_client.release_file import RELEASE_FILE, ReleasedFile, release_id, release_record_bytes, release_tag
from tasks.publishing.hub_changes import fetch_pull_request_status
from tasks.publishing.proposal import ReleaseProposals
from tasks.publishing.release_plan import ReleaseOutcome, ReleasePlan
from tests.support.faulty_hub import Clock, Fault, FaultyHub
from tests.support.publications import REPO, contents, patient, plan, publish, write_model

RECIPE = "nightly"


def propose(
    api: HfApi, release: ReleasePlan, *, replaces: str | None = None, recipe: str = RECIPE, clock: Clock | None = None
) -> ReleaseOutcome:
    described = replace(release, description="It is better.", replaces=replaces)
    return ReleaseProposals(patient(api, clock), recipe).propose(described)


def withdraw(api: HfApi, reason: str) -> None:
    ReleaseProposals(patient(api), RECIPE).withdraw(reason)


def waiting(number: int) -> ReleaseOutcome:
    return ReleaseOutcome("proposed", pull_request=number, note=f"pull request {number} waits for approval")


def rejected(number: int) -> ReleaseOutcome:
    return ReleaseOutcome("rejected", pull_request=number, note=f"pull request {number} was closed")


def pull_requests(api: HfApi, *statuses: str) -> list[Discussion]:
    found = api.get_repo_discussions(REPO, discussion_type="pull_request")
    return sorted((one for one in found if not statuses or one.status in statuses), key=lambda one: one.num)


def comments(api: HfApi, number: int) -> list[str]:
    events = api.get_discussion_details(REPO, number).events
    return [event.content for event in events if event.type == "comment"]  # type: ignore[attr-defined]


def main_files(api: HfApi) -> list[str]:
    return sorted(api.list_repo_files(REPO))


def newer(folder: Path) -> ReleasePlan:
    (folder / "model.safetensors").write_bytes(random.Random(1).randbytes(5000))
    return plan(folder)


def test_proposal_holds_the_release_and_main_does_not(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release = plan(folder)
    assert propose(api, release) == waiting(1)
    (found,) = pull_requests(api)
    assert found.title == f"Publish {release.tag} of {RECIPE}"
    assert comments(api, 1) == [f"It is better.\n\nPublish-Id: {release.publish_id}"]
    proposed = set(api.list_repo_files(REPO, revision="refs/pr/1"))
    assert proposed == {file.path for file in release.files} | {".gitattributes"}
    assert main_files(api) == [".gitattributes"]
    assert fetch_pull_request_status(patient(api), 1) == "open"

    hub.done.clear()
    assert propose(api, release) == waiting(1)
    assert not [line for line in hub.done if not line.startswith("GET")], "a second call wrote something"


def test_merging_publishes_once_and_tags(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    api.merge_pull_request(REPO, 1)
    published = propose(api, release)
    assert published.status == "published"
    assert (published.how, published.note) == ("merged", "")
    head = api.list_repo_commits(REPO)[0].commit_id
    assert published.commit == head
    assert {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags} == {release.tag: head}
    again = propose(api, release)
    assert again.status == "published"
    assert (again.how, again.commit) == ("found by its tag", head)
    assert len(pull_requests(api)) == 1


def test_closed_proposal_is_not_made_again(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    api.change_discussion_status(REPO, 1, "closed", comment="not this one")
    assert propose(api, release) == rejected(1)
    assert fetch_pull_request_status(patient(api), 1) == "closed"
    assert propose(api, newer(folder)) == waiting(2), "another model is proposed"
    assert fetch_pull_request_status(patient(api), 99) is None


def test_what_a_person_has_decided_is_told(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    proposals = ReleaseProposals(patient(api), RECIPE)
    assert proposals.decision(1) is None, "it waits"
    api.merge_pull_request(REPO, 1)
    found = proposals.decision(1)
    head = api.list_repo_commits(REPO)[0].commit_id
    assert found == ReleaseOutcome("published", head, pull_request=1, note="pull request 1 was merged")
    assert [tag.name for tag in api.list_repo_refs(REPO).tags] == [release.tag]
    propose(api, newer(folder), replaces=release.weights)
    withdraw(api, "The gate says no.")
    assert proposals.decision(2) is None, "we have closed it ourselves"
    assert proposals.decision(99) is None


def test_rejected_weights_are_not_proposed_by_another_recipe_or_text(api: HfApi, folder: Path) -> None:
    propose(api, plan(folder))
    api.change_discussion_status(REPO, 1, "closed")
    assert propose(api, plan(folder), recipe="another") == rejected(1)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# The same model, in other words\n")
    edited = plan(folder)
    assert propose(api, edited) == rejected(1)
    api.change_discussion_status(REPO, 1, "open")
    assert propose(api, edited) == waiting(2), "whoever opens it again takes the rejection back"
    assert [one.num for one in pull_requests(api, "open")] == [2]
    api.change_discussion_status(REPO, 2, "closed")
    assert propose(api, edited) == rejected(2)


def test_rejected_model_is_not_proposed_in_another_form(api: HfApi, folder: Path) -> None:
    first = plan(folder)
    propose(api, first)
    api.change_discussion_status(REPO, 1, "closed")
    other = newer(folder)
    forms = frozenset({str(first.weights), str(other.weights)})
    assert propose(api, replace(other, forms=forms)) == rejected(1)


@pytest.mark.parametrize("how", ["superseded", "withdrawn", "stale"])
def test_proposal_that_evergreen_closed_may_return(api: HfApi, folder: Path, tmp_path: Path, how: str) -> None:
    release = plan(folder)
    propose(api, release)
    replaces = None
    if how == "superseded":
        propose(api, newer(write_model(tmp_path / "newer")))
    elif how == "withdrawn":
        withdraw(api, "It is worse.")
    else:
        other = newer(write_model(tmp_path / "newer"))
        publish(api, other)
        with pytest.raises(StaleBlessingError):
            propose(api, release)
        replaces = other.weights
    number = len(pull_requests(api)) + 1
    assert propose(api, release, replaces=replaces) == waiting(number)
    api.comment_discussion(REPO, number, comments(api, 1)[-1])
    api.comment_discussion(REPO, number, "no")
    api.change_discussion_status(REPO, number, "closed")
    assert propose(api, release, replaces=replaces) == rejected(number), "a person rejects it"


def copy_as_bob(hub: FaultyHub, release: ReleasePlan, **changed: bytes) -> int:
    """A pull request of a stranger with the title and the files of ours, some of them changed."""
    bob = HfApi(endpoint=hub.endpoint, token="token-of-bob")
    added = [CommitOperationAdd(path, content) for path, content in {**contents(release), **changed}.items()]
    title, trailer = f"Publish {release.tag} of {RECIPE}", f"Publish-Id: {release.publish_id}"
    made = bob.create_commit(REPO, added, commit_message=title, commit_description=trailer, create_pr=True)
    assert made.pr_num is not None
    return made.pr_num


@pytest.mark.parametrize("closed_by", ["bob", "alice"])
def test_copy_of_a_stranger_rejects_no_model(api: HfApi, hub: FaultyHub, folder: Path, closed_by: str) -> None:
    release = plan(folder)
    api.create_repo(REPO, private=False)
    copy_as_bob(hub, release)
    user = HfApi(endpoint=hub.endpoint, token=f"token-of-{closed_by}")
    user.change_discussion_status(REPO, 1, "closed", comment="spam")
    assert propose(api, release) == waiting(2)


def test_stranger_cannot_put_other_files_in_the_place_of_a_proposal(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release = plan(folder)
    api.create_repo(REPO, private=False)
    copy_as_bob(hub, release, NOTES=b"x")
    assert propose(api, release) == waiting(2)
    assert [one.num for one in pull_requests(api, "open")] == [2]
    assert "other files" in comments(api, 1)[-1]


def test_merged_words_of_a_stranger_give_no_tag(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release = plan(folder)
    api.create_repo(REPO, private=False)
    copy_as_bob(hub, release, NOTES=b"x")
    api.merge_pull_request(REPO, 1)
    withdraw(api, "It is worse.")
    assert api.list_repo_refs(REPO).tags == []


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "config.json": lambda content: content.replace(b"llama", b"evil1"),
    RELEASE_FILE: lambda content: content.replace(b"\n", b"\r"),
}
"""Other content of the same size by path."""


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("path", FORGERIES)
def test_other_files_of_the_same_size_are_no_release(
    api: HfApi, hub: FaultyHub, folder: Path, path: str, is_old: bool
) -> None:
    release = without_git_hashes(plan(folder)) if is_old else plan(folder)
    propose(api, release)
    copy_as_bob(hub, release, **{path: FORGERIES[path](contents(release)[path])})
    api.merge_pull_request(REPO, 2)
    withdraw(api, "It is worse.")
    assert api.list_repo_refs(REPO).tags == []
    assert [entry.kind for entry in read_main_commits(patient(api))] == ["other", "other"]
    published = publish(api, release)
    assert published.how == "committed"


def test_release_that_lists_no_git_hashes_is_known_by_its_content(api: HfApi, folder: Path) -> None:
    """As earlier versions made it."""
    release = without_git_hashes(plan(folder))
    propose(api, release)
    api.merge_pull_request(REPO, 1)
    assert [entry.kind for entry in read_main_commits(patient(api))] == ["release", "other"]
    withdraw(api, "It is worse.")
    assert [tag.name for tag in api.list_repo_refs(REPO).tags] == [release.tag]


def without_git_hashes(release: ReleasePlan) -> ReleasePlan:
    """The same release, described as earlier versions did."""
    body = json.loads(release.record)
    del body["publish_id"]
    for file in body["files"]:
        del file["git_sha1"]
    publish_id, content = release_id(body), release_record_bytes(body)
    git_sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sha256 = hashlib.sha256(content).hexdigest()
    described = ReleasedFile(path=RELEASE_FILE, size=len(content), sha256=sha256, git_sha1=git_sha1)
    files = tuple(described if file.path == RELEASE_FILE else file for file in release.files)
    return replace(release, publish_id=publish_id, tag=release_tag(publish_id), files=files, record=content)


def test_merged_release_is_found_beside_a_merge_with_its_title(api: HfApi, hub: FaultyHub, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    api.merge_pull_request(REPO, 1)
    merged = api.list_repo_commits(REPO)[0].commit_id
    copy_as_bob(hub, release, NOTES=b"x")
    api.merge_pull_request(REPO, 2)
    published = propose(api, release)
    assert published.status == "published"
    assert (published.how, published.commit) == ("merged", merged)


def test_newer_model_takes_the_place_of_the_one_that_waits(api: HfApi, folder: Path) -> None:
    propose(api, plan(folder))
    propose(api, plan(folder), recipe="another")
    second = newer(folder)
    assert propose(api, second) == waiting(3)
    assert [one.num for one in pull_requests(api, "open")] == [2, 3], "that of another recipe stays"
    assert comments(api, 1)[-1].startswith(f"A newer model of this recipe is proposed as {second.tag}.\n")


def test_proposal_is_stale_when_another_model_was_published(api: HfApi, folder: Path, tmp_path: Path) -> None:
    release = plan(folder)
    propose(api, release)
    published = publish(api, newer(folder))
    with pytest.raises(StaleBlessingError, match=published.commit):
        propose(api, release)
    assert pull_requests(api, "open") == []
    assert comments(api, 1)[-1].startswith("Another model was published since")


@pytest.mark.parametrize("is_kept", [False, True])
def test_merged_release_is_tagged_although_a_newer_model_is_there(api: HfApi, folder: Path, is_kept: bool) -> None:
    release = plan(folder)
    propose(api, release)
    api.merge_pull_request(REPO, 1)
    merged = api.list_repo_commits(REPO)[0].commit_id
    if is_kept:
        withdraw(api, "it is no better")
    else:
        assert propose(api, newer(folder), replaces=release.weights) == waiting(2)
    assert {tag.name: tag.target_commit for tag in api.list_repo_refs(REPO).tags} == {release.tag: merged}


def test_merge_of_other_files_is_not_tagged(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    own = CommitOperationAdd("notes.txt", b"words of my own")
    api.create_commit(REPO, [own], commit_message="more words", revision="refs/pr/1")
    api.merge_pull_request(REPO, 1)
    propose(api, newer(folder), replaces=release.weights)
    assert api.list_repo_refs(REPO).tags == []


def test_model_that_the_gate_no_longer_wants_is_withdrawn(api: HfApi, folder: Path) -> None:
    withdraw(api, "no repository yet")
    propose(api, plan(folder))
    withdraw(api, "It is worse.")
    assert pull_requests(api, "open") == []
    assert comments(api, 1)[-1].startswith("It is worse.\n")


def test_of_two_equal_proposals_the_older_stays(api: HfApi, folder: Path) -> None:
    """As an unclear answer can leave them: the request was sent again, and both landed."""
    release = plan(folder)
    api.create_repo(REPO)
    for _ in range(2):
        added = [CommitOperationAdd(path, content) for path, content in contents(release).items()]
        api.create_commit(REPO, added, commit_message=f"Publish {release.tag} of {RECIPE}", create_pr=True)
    assert propose(api, release) == waiting(1)
    assert [one.num for one in pull_requests(api, "open")] == [1]


def test_merge_of_other_files_is_not_this_release(api: HfApi, folder: Path) -> None:
    release = plan(folder)
    propose(api, release)
    api.create_commit(REPO, [CommitOperationAdd("NOTES", b"a")], commit_message="edited", revision="refs/pr/1")
    api.merge_pull_request(REPO, 1)
    with pytest.raises(StaleBlessingError):  # it is compared with what main holds now
        propose(api, release)
    assert api.list_repo_refs(REPO).tags == []
    assert propose(api, release, replaces=release.weights) == waiting(2)


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 12))])
def test_whatever_fails_one_proposal_is_open(api: HfApi, hub: FaultyHub, folder: Path, seed: int) -> None:
    rng, release = random.Random(seed), plan(folder)
    matches = [
        "POST /api/repos/create",
        "preupload",
        "lfs/objects/batch",
        "PUT /uploads",
        "POST .*/commit/",
        "GET .*/discussions",
    ]
    for _ in range(rng.randint(2, 6)):
        kind, status = rng.choice(["before", "after", "lost"]), rng.choice([429, 500, 502, 503, 504])
        hub.faults.append(Fault(rng.choice(matches), kind, status))
    for _ in range(8):
        try:
            found = propose(api, release)
            break
        except TransientError:
            continue
    hub.faults.clear()
    assert found == propose(api, release)
    assert found.status == "proposed"
    assert [one.num for one in pull_requests(api, "open")] == [found.pull_request]
