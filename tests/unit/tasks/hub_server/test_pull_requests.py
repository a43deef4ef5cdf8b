"""Pull requests, as the client makes, reads and merges them. Part of the contract: contract.py chooses the Hub."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitInfo, DiscussionWithDetails, HfApi
from huggingface_hub import CommitOperationAdd as Add
from huggingface_hub import CommitOperationDelete as Delete
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tasks.hub_server.server import LocalHub
from tests.unit.tasks.hub_server.contract import IS_LOCAL, local_only

REPO = "alice/model"


def commit(api: HfApi, repo: str, files: dict[str, bytes], message: str = "a commit", **more: object) -> CommitInfo:
    operations = [Add(path, content) for path, content in files.items()]
    return api.create_commit(repo, operations, commit_message=message, **more)


def propose(api: HfApi, repo: str, files: dict[str, bytes | None], **more: object) -> int:
    """Make a pull request that writes files, and deletes those without content."""
    operations = [Delete(path) if content is None else Add(path, content) for path, content in files.items()]
    made = api.create_commit(repo, operations, commit_message=f"change {', '.join(files)}", create_pr=True, **more)
    assert made.pr_num
    return made.pr_num


def contents(api: HfApi, repo: str, folder: Path, revision: str = "main") -> dict[str, bytes]:
    """The files of a revision, without .gitattributes."""
    names = [name for name in api.list_repo_files(repo, revision=revision) if name != ".gitattributes"]
    return {
        name: Path(api.hf_hub_download(repo, name, revision=revision, cache_dir=folder)).read_bytes() for name in names
    }


def events(details: DiscussionWithDetails) -> list[tuple[str, str]]:
    names = {"comment": "content", "commit": "summary", "status-change": "new_status"}
    return [(event.type, getattr(event, names[event.type])) for event in details.events]


def status_of(call: Callable[[], object]) -> int:
    with pytest.raises(HfHubHTTPError) as raised:
        call()
    return raised.value.response.status_code


def test_commit_makes_a_pull_request(alice: HfApi, repo: str, me: str, tmp_path: Path) -> None:
    alice.create_repo(repo)
    head = commit(alice, repo, {"a.txt": b"1\n"})
    made = commit(
        alice,
        repo,
        {"a.txt": b"2\n", "b.safetensors": b"weights"},
        message="Better weights",
        commit_description="They are **better**.",
        create_pr=True,
    )
    assert (made.pr_num, made.pr_revision) == (1, "refs/pr/1")
    assert str(made.pr_url).endswith(f"/{repo}/discussions/1")
    assert alice.model_info(repo).sha == head.oid, "main is as it was"
    assert contents(alice, repo, tmp_path) == {"a.txt": b"1\n"}
    assert contents(alice, repo, tmp_path, "refs/pr/1") == {"a.txt": b"2\n", "b.safetensors": b"weights"}
    assert [entry.path for entry in alice.list_repo_tree(repo, revision="refs/pr/1")][1:] == ["a.txt", "b.safetensors"]
    history = alice.list_repo_commits(repo, revision="refs/pr/1")
    assert [entry.commit_id for entry in history[:2]] == [made.oid, head.oid]
    refs = alice.list_repo_refs(repo, include_pull_requests=True)
    assert refs.pull_requests
    assert [(found.ref, found.target_commit) for found in refs.pull_requests] == [("refs/pr/1", made.oid)]
    assert [branch.name for branch in refs.branches] == ["main"]
    assert alice.list_repo_refs(repo).pull_requests is None

    details = alice.get_discussion_details(repo, 1)
    assert (details.title, details.status, details.author, details.num) == ("Better weights", "open", me, 1)
    assert (details.is_pull_request, details.repo_id, details.repo_type) == (True, repo, "model")
    assert (details.target_branch, details.merge_commit_oid) == ("refs/heads/main", None)
    assert not details.conflicting_files
    assert details.url == made.pr_url
    assert events(details) == [("comment", "They are **better**."), ("commit", "Better weights")]
    assert details.events[1].oid == made.oid
    assert {event.author for event in details.events} == {me}
    if IS_LOCAL:
        assert "<strong>better</strong>" in details.events[0].rendered


def test_proposal_grows_and_is_merged(alice: HfApi, repo: str, me: str, tmp_path: Path) -> None:
    alice.create_repo(repo)
    before = commit(alice, repo, {"a.txt": b"1", "old.txt": b"old"})
    first = commit(alice, repo, {"a.txt": b"2"}, message=" New weights ", commit_description="Because.", create_pr=True)
    assert first.pr_revision == "refs/pr/1"
    operations = [Delete("old.txt"), Add("sub/new.safetensors", b"new")]
    second = alice.create_commit(
        repo, operations, commit_message="second", revision="refs/pr/1", parent_commit=first.oid
    )
    late = commit(alice, repo, {"unrelated.txt": b"u"})
    assert status_of(lambda: commit(alice, repo, {"a.txt": b"3"}, revision="refs/pr/1", parent_commit=first.oid)) == 412
    comment = alice.comment_discussion(repo, 1, "Fine *by me*")
    assert (comment.content, comment.author, comment.edited) == ("Fine *by me*", me, False)
    alice.merge_pull_request(repo, 1, comment="Thank you")

    expected = {"a.txt": b"2", "sub/new.safetensors": b"new", "unrelated.txt": b"u"}
    assert contents(alice, repo, tmp_path) == expected
    history = alice.list_repo_commits(repo)
    assert [entry.commit_id for entry in history[1:3]] == [late.oid, before.oid], "the merge is one commit"
    assert history[0].title == "New weights (#1)"
    assert history[0].message.split("\n")[:2] == [f"- New weights ({first.oid})", f"- second ({second.oid})"]
    details = alice.get_discussion_details(repo, 1)
    assert (details.status, details.merge_commit_oid, bool(details.conflicting_files)) == (
        "merged",
        history[0].commit_id,
        False,
    )
    assert set(events(details)) == {
        ("comment", "Because."),
        ("commit", "New weights"),
        ("commit", "second"),
        ("comment", "Fine *by me*"),
        ("comment", "Thank you"),
        ("status-change", "merged"),
    }
    assert events(details)[0] == ("comment", "Because.")
    assert events(details)[-1] == ("status-change", "merged")
    assert contents(alice, repo, tmp_path, "refs/pr/1") == {"a.txt": b"2", "sub/new.safetensors": b"new"}
    if IS_LOCAL:
        for call in (
            lambda: alice.merge_pull_request(repo, 1),
            lambda: alice.change_discussion_status(repo, 1, "closed"),
            lambda: commit(alice, repo, {"a.txt": b"4"}, revision="refs/pr/1"),
        ):
            assert status_of(call) == 409
        assert len(alice.list_repo_commits(repo)) == len(history)


def test_close_and_reopen(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo)
    propose(alice, repo, {"a.txt": b"1"})
    assert alice.change_discussion_status(repo, 1, "closed", comment="Not now").new_status == "closed"
    assert alice.get_discussion_details(repo, 1).status == "closed"
    if IS_LOCAL:
        assert status_of(lambda: alice.change_discussion_status(repo, 1, "closed")) == 409
        assert status_of(lambda: alice.merge_pull_request(repo, 1)) == 409
        assert status_of(lambda: commit(alice, repo, {"a.txt": b"2"}, revision="refs/pr/1")) == 409
    alice.comment_discussion(repo, 1, "Now")
    alice.change_discussion_status(repo, 1, "open")
    alice.merge_pull_request(repo, 1)
    found = events(alice.get_discussion_details(repo, 1))
    assert [item for item in found if item[0] == "status-change"] == [
        ("status-change", "closed"),
        ("status-change", "open"),
        ("status-change", "merged"),
    ]
    assert {("comment", "Not now"), ("comment", "Now")} <= set(found)
    assert alice.file_exists(repo, "a.txt")


def test_list_of_pull_requests(alice: HfApi, repo: str, me: str) -> None:
    alice.create_repo(repo)
    assert list(alice.get_repo_discussions(repo)) == []
    for name in ("open", "closed", "merged"):
        number = propose(alice, repo, {f"{name}.txt": b"1"})
        if name == "closed":
            alice.change_discussion_status(repo, number, "closed")
        if name == "merged":
            alice.merge_pull_request(repo, number)

    def listed(**filters: str) -> dict[int, str]:
        return {found.num: found.status for found in alice.get_repo_discussions(repo, **filters)}

    assert listed() == {1: "open", 2: "closed", 3: "merged"}
    assert listed(discussion_type="pull_request", author=me) == listed()
    assert listed(discussion_type="discussion") == {}
    assert listed(author=f"{me}-nobody") == {}
    assert listed(discussion_status="open") == {1: "open"}
    assert listed(discussion_status="closed") == {2: "closed", 3: "merged"}


def test_pull_requests_of_a_dataset(alice: HfApi, repo: str) -> None:
    alice.create_repo(repo, repo_type="dataset")
    made = commit(alice, repo, {"a.csv": b"1"}, create_pr=True, repo_type="dataset")
    assert str(made.pr_url).endswith(f"/datasets/{repo}/discussions/1")
    details = alice.get_discussion_details(repo, 1, repo_type="dataset")
    assert (details.repo_type, details.url) == ("dataset", made.pr_url)
    alice.merge_pull_request(repo, 1, repo_type="dataset")
    assert alice.file_exists(repo, "a.csv", repo_type="dataset")


# -- merging -----------------------------------------------------------------------------------------------------------


def test_pull_request_from_an_older_commit(alice: HfApi, repo: str, tmp_path: Path) -> None:
    alice.create_repo(repo)
    old = commit(alice, repo, {"a.txt": b"1", "b.txt": b"1"})
    commit(alice, repo, {"b.txt": b"2"})
    propose(alice, repo, {"a.txt": b"3"}, parent_commit=old.oid)
    assert contents(alice, repo, tmp_path, "refs/pr/1") == {"a.txt": b"3", "b.txt": b"1"}
    assert alice.list_repo_commits(repo, revision="refs/pr/1")[1].commit_id == old.oid
    alice.merge_pull_request(repo, 1)
    assert contents(alice, repo, tmp_path) == {"a.txt": b"3", "b.txt": b"2"}


@local_only
@pytest.mark.parametrize(
    ("proposed", "on_main", "conflicts"),
    [
        ({"a.txt": b"2"}, {"a.txt": b"3"}, ["a.txt"]),
        ({"a.txt": b"2", "c.txt": b"2"}, {"a.txt": None, "c.txt": b"3"}, ["a.txt", "c.txt"]),
        ({"a.txt": None}, {"a.txt": b"3"}, ["a.txt"]),
        ({"new": b"file"}, {"new/inside.txt": b"folder"}, ["new/inside.txt"]),
        ({"new/inside.txt": b"folder"}, {"new": b"file"}, ["new/inside.txt"]),
        ({"a.txt": b"2"}, {"a.txt": b"2"}, []),
        ({"a.txt": None}, {"a.txt": None}, []),
        ({"a.txt": b"2"}, {"b.txt": b"2"}, []),
        ({"a.txt": None, "c.txt": b"1"}, {"b.txt": None}, []),
    ],
)
def test_conflicts(
    alice: HfApi,
    tmp_path: Path,
    proposed: dict[str, bytes | None],
    on_main: dict[str, bytes | None],
    conflicts: list[str],
) -> None:
    alice.create_repo(REPO)
    before: dict[str, bytes | None] = {"a.txt": b"1", "b.txt": b"1"}
    alice.create_commit(REPO, [Add("a.txt", b"1"), Add("b.txt", b"1")], commit_message="before")
    propose(alice, REPO, proposed)
    for path, content in on_main.items():
        operation = Delete(path) if content is None else Add(path, content)
        alice.create_commit(REPO, [operation], commit_message="meanwhile")
    head = alice.model_info(REPO).sha
    assert alice.get_discussion_details(REPO, 1).conflicting_files == conflicts
    if conflicts:
        with pytest.raises(HfHubHTTPError, match=f"Main has changed .*: {', '.join(conflicts)}") as raised:
            alice.merge_pull_request(REPO, 1)
        assert raised.value.response.status_code == 409
        assert (alice.model_info(REPO).sha, alice.get_discussion_details(REPO, 1).status) == (head, "open")
    else:
        alice.merge_pull_request(REPO, 1)
        expected = {path: content for path, content in (before | on_main | proposed).items() if content is not None}
        assert contents(alice, REPO, tmp_path) == expected


@local_only
def test_merge_is_a_commit_with_one_parent(alice: HfApi, bob: HfApi, root: Path) -> None:
    alice.create_repo(REPO)
    propose(bob, REPO, {"a.txt": b"1"})
    alice.merge_pull_request(REPO, 1)
    git = ["git", "-C", str(root / "models/alice/model.git")]

    def run(*arguments: str) -> str:
        return subprocess.run([*git, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    assert run("log", "-1", "--format=%an|%s|%P", "main") == f"alice|change a.txt (#1)|{run('rev-parse', 'main~1')}"
    assert run("log", "-1", "--format=%(trailers:key=Co-authored-by,valueonly)", "main") == "bob <bob@localhost>"
    assert run("fsck", "--full", "--strict") == ""


@local_only
def test_merge_of_a_killed_server_is_seen(alice: HfApi, root: Path) -> None:
    """A server that is killed between moving main and recording it leaves what the next one reads as merged."""
    alice.create_repo(REPO)
    propose(alice, REPO, {"a.txt": b"1"})
    alice.merge_pull_request(REPO, 1, comment="Good")
    merged = alice.get_discussion_details(REPO, 1)
    file = root / "models/alice/model.git/discussions/1.json"
    whole = file.read_text()
    stored = json.loads(whole)
    stored |= {"status": "open", "events": stored["events"][:1]}
    file.write_text(json.dumps(stored))
    commit(alice, REPO, {"b.txt": b"1"})
    assert alice.get_discussion_details(REPO, 1) == merged
    assert [found.status for found in alice.get_repo_discussions(REPO)] == ["merged"]
    assert status_of(lambda: alice.merge_pull_request(REPO, 1)) == 409
    alice.comment_discussion(REPO, 1, "late")
    assert json.loads(file.read_text())["events"][:-1] == json.loads(whole)["events"]

    stored["merge"]["commit"] = "0" * 40  # the same before main moved
    file.write_text(json.dumps(stored))
    assert alice.get_discussion_details(REPO, 1).status == "open"
    assert alice.change_discussion_status(REPO, 1, "closed").new_status == "closed"
    assert alice.get_discussion_details(REPO, 1).merge_commit_oid is None


@local_only
def test_numbers_are_never_used_again(alice: HfApi, root: Path) -> None:
    """A server that is killed while it makes a pull request leaves its file, or its file and its ref."""
    alice.create_repo(REPO)
    propose(alice, REPO, {"a.txt": b"1"})
    (root / "models/alice/model.git/refs/pr/1").unlink()
    assert list(alice.get_repo_discussions(REPO)) == []
    assert status_of(lambda: alice.get_discussion_details(REPO, 1)) == 404
    with pytest.raises(RevisionNotFoundError):
        alice.model_info(REPO, revision="refs/pr/1")
    assert propose(alice, REPO, {"a.txt": b"1"}) == 2
    git = ["git", "-C", str(root / "models/alice/model.git")]
    subprocess.run([*git, "update-ref", "refs/pr/7", "main"], check=True)  # as `git push` may
    subprocess.run([*git, "update-ref", "refs/pr/08", "main"], check=True)
    assert [found.num for found in alice.get_repo_discussions(REPO)] == [2]
    assert propose(alice, REPO, {"a.txt": b"1"}) == 8


# -- permissions -------------------------------------------------------------------------------------------------------


@local_only
def test_who_may_do_what(alice: HfApi, bob: HfApi, anyone: HfApi) -> None:
    alice.create_repo(REPO)
    of_alice, of_bob = propose(alice, REPO, {"a.txt": b"1"}), propose(bob, REPO, {"b.safetensors": b"weights"})
    commit(bob, REPO, {"c.safetensors": b"more"}, revision=f"refs/pr/{of_bob}")
    commit(alice, REPO, {"d.txt": b"hers"}, revision=f"refs/pr/{of_bob}")
    bob.comment_discussion(REPO, of_alice, "Good")
    writes: list[Callable[[HfApi], object]] = [
        lambda api: commit(api, REPO, {"a.txt": b"2"}, revision=f"refs/pr/{of_alice}"),
        lambda api: commit(api, REPO, {"a.safetensors": b"2"}, revision=f"refs/pr/{of_alice}"),
        lambda api: api.preupload_lfs_files(REPO, [Add("a.txt", b"2")], revision=f"refs/pr/{of_alice}"),
        lambda api: commit(api, REPO, {"a.txt": b"2"}),
        lambda api: api.merge_pull_request(REPO, of_alice),
        lambda api: api.merge_pull_request(REPO, of_bob),
        lambda api: api.change_discussion_status(REPO, of_alice, "closed"),
    ]
    for write in writes:
        assert status_of(lambda: write(bob)) == 403  # noqa: B023 (called at once)
        assert status_of(lambda: write(anyone)) == 401  # noqa: B023
    for write in (
        lambda api: api.comment_discussion(REPO, of_bob, "hi"),
        lambda api: propose(api, REPO, {"a.txt": b"1"}),
    ):
        assert status_of(lambda: write(anyone)) == 401  # noqa: B023
    assert [found.status for found in anyone.get_repo_discussions(REPO)] == ["open", "open"]
    assert anyone.get_discussion_details(REPO, of_bob).title == "change b.safetensors"
    assert anyone.file_exists(REPO, "c.safetensors", revision=f"refs/pr/{of_bob}")

    bob.change_discussion_status(REPO, of_bob, "closed")
    bob.change_discussion_status(REPO, of_bob, "open")
    alice.change_discussion_status(REPO, of_bob, "closed")
    assert status_of(lambda: bob.change_discussion_status(REPO, of_bob, "open")) == 403
    alice.change_discussion_status(REPO, of_bob, "open")
    alice.merge_pull_request(REPO, of_bob)
    assert alice.file_exists(REPO, "c.safetensors")
    assert [entry.title for entry in alice.list_repo_commits(REPO)] == ["change b.safetensors (#2)", "initial commit"]


@local_only
def test_private_repositories_stay_hidden(alice: HfApi, bob: HfApi, anyone: HfApi) -> None:
    alice.create_repo(REPO, private=True)
    propose(alice, REPO, {"a.txt": b"1"})
    reads: list[Callable[[HfApi], object]] = [
        lambda api: list(api.get_repo_discussions(REPO)),
        lambda api: api.get_discussion_details(REPO, 1),
        lambda api: api.model_info(REPO, revision="refs/pr/1"),
        lambda api: api.list_repo_refs(REPO, include_pull_requests=True),
    ]
    writes: list[Callable[[HfApi], object]] = [
        lambda api: api.comment_discussion(REPO, 1, "c"),
        lambda api: api.change_discussion_status(REPO, 1, "closed"),
        lambda api: api.merge_pull_request(REPO, 1),
        lambda api: propose(api, REPO, {"a.txt": b"1"}),
        lambda api: commit(api, REPO, {"a.txt": b"2"}, revision="refs/pr/1"),
        lambda api: commit(api, REPO, {"a.safetensors": b"2"}, revision="refs/pr/1"),
    ]
    for call in [*reads, *writes]:
        with pytest.raises(RepositoryNotFoundError):
            call(bob)
    for call in reads:
        with pytest.raises(RepositoryNotFoundError):
            call(anyone)
    assert {status_of(lambda: call(anyone)) for call in writes} == {401}  # noqa: B023
    assert events(alice.get_discussion_details(REPO, 1)) == [("comment", ""), ("commit", "change a.txt")]


# -- refused -----------------------------------------------------------------------------------------------------------


@local_only
def test_what_the_local_hub_does_not_have(alice: HfApi, endpoint: str) -> None:
    alice.create_repo(REPO)
    propose(alice, REPO, {"a.txt": b"1"})
    comment = alice.comment_discussion(REPO, 1, "c")
    for call in (
        lambda: alice.create_discussion(REPO, "A question"),
        lambda: alice.create_pull_request(REPO, "without a commit"),
        lambda: alice.rename_discussion(REPO, 1, "title"),
        lambda: alice.edit_discussion_comment(REPO, 1, comment.id, "d"),
    ):
        assert status_of(call) == 501
    answer = httpx2.get(f"{endpoint}/api/models/{REPO}/discussions/2")
    assert (answer.status_code, answer.json()) == (404, {"error": "There is no pull request #2"})


@local_only
def test_pull_request_starts_from_main(alice: HfApi) -> None:
    alice.create_repo(REPO)
    alice.create_branch(REPO, branch="other")
    elsewhere = commit(alice, REPO, {"a.txt": b"1"}, revision="other")
    for parent in (elsewhere.oid, "0" * 40):
        with pytest.raises(BadRequestError, match="starts from a commit of main"):
            propose(alice, REPO, {"a.txt": b"2"}, parent_commit=parent)
    head = alice.list_repo_commits(REPO)[0].commit_id
    assert propose(alice, REPO, {"a.txt": b"2"}, parent_commit=head[:7]) == 1


@local_only
def test_texts_are_limited(alice: HfApi, hub: LocalHub) -> None:
    alice.create_repo(REPO)

    def propose_as(title: str, description: str) -> None:
        alice.create_commit(
            REPO, [Add("a.txt", b"1")], commit_message=title, commit_description=description, create_pr=True
        )

    propose_as("x" * 200, "x" * (64 << 10))
    for title, description in (("x" * 201, ""), (" ", ""), ("t", "x" * ((64 << 10) + 1)), ("a\0b", ""), ("a", "\0")):
        with pytest.raises((BadRequestError, ValueError)):  # the client itself refuses an empty title
            propose_as(title, description)
    for comment in ("x" * ((64 << 10) + 1), " ", "\0"):
        with pytest.raises(BadRequestError):
            alice.comment_discussion(REPO, 1, comment)
    with pytest.raises(BadRequestError):
        alice.change_discussion_status(REPO, 1, "closed", comment="x" * ((64 << 10) + 1))
    assert len(alice.get_discussion_details(REPO, 1).events) == 2
    assert [found.num for found in alice.get_repo_discussions(REPO)] == [1]
    propose_as("two\n\nlines", "")
    assert alice.get_discussion_details(REPO, 2).title == "two lines"
