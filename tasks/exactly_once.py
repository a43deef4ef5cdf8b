"""Publish a folder to a Hub repository as exactly one commit and one tag, whatever fails on the way.

At most one commit lands, because each attempt sends `parent_commit` = the head that it has looked at: the Hub compares
and swaps, and a late or repeated request of an older attempt meets 412. At least one lands, because after every unclear
answer the loop looks again before it acts: is the tag there, is a commit with our id in the history, does main hold our
files. A commit is ours when its files are, not because the client returned its id.

    release = plan_release(folder, repo_id="me/model", tag=None, private=True, provenance={"data": "..."})
    published = publish_release(HfApi(), release)

main is a log of releases. A release that landed once is never committed again, even when others have followed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from params.errors import HubRefusedError, ModelError, TransientError
from tasks.hub_faults import (
    CLIENT_ERRORS,
    LookAgainError,
    bounded_client,
    explain,
    refusal,
    refuse_malformed_token,
    wait_before_retry,
)
from tasks.release_plan import RECEIPT, Release, ReleaseFile, plan_release

__all__ = ["RECEIPT", "Published", "Release", "ReleaseFile", "plan_release", "publish_release", "remote_holds"]

_MAIN = "main"
_HUBS_OWN_FILES = frozenset({".gitattributes"})
_IN_MEMORY_BYTES = 10 << 20
"""Files up to this size are read once, compared with the plan and sent from memory."""


@dataclass(frozen=True)
class Published:
    """Where a release is."""

    commit: str
    """In main's history. After main was rolled back by hand, the tag stays at an earlier commit of the same files."""
    tag: str
    how: str
    """`committed`, or how it was found to have landed before."""
    publish_id: str


def publish_release(
    api: HfApi,
    release: Release,
    *,
    attempts: int = 8,
    deadline_s: float = 600.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    log: Callable[[str], None] = lambda _: None,
) -> Published:
    """Bring a release onto the Hub, unless it is there.

    Args:
        api: the client; its endpoint and token are used.
        release: from `plan_release`.
        attempts: how often to look and act before giving up.
        deadline_s: no attempt starts, and no wait ends, later than this; a wait that the Hub asks for is honoured
            within it. One request may last up to 120 s longer.
        sleep: waits between attempts.
        clock: seconds, for the deadline.
        log: takes a line for every unclear answer and for the result; no line holds the token.

    Raises:
        HubRefusedError: the Hub would refuse again: access, name, a tag that holds something else.
        TransientError: no clear answer in time. Publishing again later is safe: nothing lands twice.
        ModelError: a file was changed since the release was planned.
    """
    where = f"{api.endpoint}/{release.repo_id}"
    refuse_malformed_token(api, release.repo_id)
    started, attempt, reason = clock(), 0, "none was made"
    with bounded_client():
        for attempt in range(attempts):
            try:
                published = _look_and_act(api, release)
            except CLIENT_ERRORS as error:
                reason = explain(error, api)
                if refused := refusal(error, api, release.repo_id):
                    raise refused from None
                wait_s = wait_before_retry(error, attempt)
            else:
                log(f"{where}: {published.how}, {published.commit} is {published.tag}")
                return published
            log(f"{where}: attempt {attempt + 1} of {attempts}: {reason}")
            if clock() - started + wait_s > deadline_s:
                reason += f"; {deadline_s:.0f} s do not allow another wait of {wait_s:.0f} s"
                break
            if attempt + 1 < attempts:
                sleep(wait_s)
    raise TransientError(
        where,
        f"no clear answer after {attempt + 1} attempts in {clock() - started:.0f} s; the last: {reason}",
        "run the publication again later: what has landed is found and nothing lands twice",
    ) from None


def remote_holds(api: HfApi, repo_id: str, commit: str) -> bool:
    """Whether `commit` is still in the history of main, so that a receipt that names it is true.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: no clear answer; one attempt is made.
    """
    refuse_malformed_token(api, repo_id)
    with bounded_client():
        try:
            return any(entry.commit_id == commit for entry in api.list_repo_commits(repo_id, revision=_MAIN))
        except RepositoryNotFoundError:
            return False
        except CLIENT_ERRORS as error:
            unclear = TransientError(f"{api.endpoint}/{repo_id}", explain(error, api), "try again later")
            raise (refusal(error, api, repo_id) or unclear) from None


def _look_and_act(api: HfApi, release: Release) -> Published:
    """One pass; whatever it raises, it can be run again."""
    where = f"{api.endpoint}/{release.repo_id}"
    branches, tags = _refs(api, release)
    tagged, head = tags.get(release.tag), branches.get(_MAIN)
    if tagged and _difference(api, release, tagged):
        what = f"the tag {release.tag} holds other files, at {tagged}"
        raise HubRefusedError(where, what, "choose another tag; a tag that others may use is never moved")
    if head is None:
        raise HubRefusedError(where, f"the repository has no branch {_MAIN}", "make one, or remove the repository")
    history = list(api.list_repo_commits(release.repo_id, revision=_MAIN))
    if tagged in {commit.commit_id for commit in history}:
        return Published(str(tagged), release.tag, "found by its tag", release.publish_id)
    trailer = f"Publish-Id: {release.publish_id}"
    landed = [commit.commit_id for commit in history if trailer in commit.message.splitlines()]
    if landed:
        commit, how = landed[-1], "found by its id"
    elif changes := _difference(api, release, head):
        commit, how = _commit(api, release, changes, head, trailer), "committed"
    else:
        commit, how = head, "found on main"
    if _difference(api, release, commit):
        if landed:
            what = f"commit {commit} has the id of this release and other files"
            raise HubRefusedError(where, what, "find out who wrote it; change the provenance to publish anew")
        # The client leaves out files that are equal at the head of now; when none is left, it sends nothing and
        # returns that head, which may be another's.
        raise LookAgainError(f"commit {commit}, which the client returned, does not hold the release")
    if not tagged:  # a tag outside of main's history holds the release as well: main was rolled back, the tag stays
        api.create_tag(release.repo_id, tag=release.tag, revision=commit)
    return Published(commit, release.tag, how, release.publish_id)


def _refs(api: HfApi, release: Release) -> tuple[dict[str, str], dict[str, str]]:
    """Branches and tags with their commits; makes the repository when there is none."""
    try:
        refs = api.list_repo_refs(release.repo_id)
    except RepositoryNotFoundError:
        api.create_repo(release.repo_id, private=release.private, exist_ok=True)
        try:
            refs = api.list_repo_refs(release.repo_id)
        except RepositoryNotFoundError:
            raise LookAgainError("the repository was made and is not visible") from None
    if release.private and not api.model_info(release.repo_id).private:
        what = "the release is private and the repository is public"
        raise HubRefusedError(
            f"{api.endpoint}/{release.repo_id}", what, "make the repository private, or allow a public release"
        )
    return (
        {branch.name: branch.target_commit for branch in refs.branches},
        {tag.name: tag.target_commit for tag in refs.tags},
    )


def _difference(api: HfApi, release: Release, commit: str) -> list[ReleaseFile | str]:
    """What separates a commit from the release: files to write, and paths to remove."""
    entries = api.list_repo_tree(release.repo_id, recursive=True, revision=commit)
    remote = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    wanted = {file.path: file for file in release.files}
    write = [file for path, file in wanted.items() if path not in remote or not _is_equal(file, remote[path])]
    return [*write, *(path for path in remote if path not in wanted and path not in _HUBS_OWN_FILES)]


def _is_equal(file: ReleaseFile, remote: RepoFile) -> bool:
    if remote.lfs is not None:
        return (remote.lfs.sha256, remote.lfs.size) == (file.sha256, file.size)
    return bool(remote.blob_id == file.git_sha1)


def _commit(api: HfApi, release: Release, changes: list[ReleaseFile | str], head: str, trailer: str) -> str:
    # New objects each time: those of an earlier attempt hold what it learned of the head of then.
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationDelete(change) if isinstance(change, str) else _addition(change) for change in changes
    ]
    commit = api.create_commit(
        release.repo_id,
        operations,
        commit_message=f"Publish {release.tag}",
        commit_description=trailer,
        revision=_MAIN,
        parent_commit=head,
    )
    return str(commit.oid)


def _addition(file: ReleaseFile) -> CommitOperationAdd:
    """The file as an operation, certainly with the content that was planned."""
    if isinstance(file.source, bytes):
        return CommitOperationAdd(file.path, file.source)
    try:
        content = file.source.read_bytes() if file.size <= _IN_MEMORY_BYTES else str(file.source)
        addition = CommitOperationAdd(file.path, content)
        sha256 = addition.upload_info.sha256.hex()
    except OSError as error:
        sha256 = f"unreadable ({error.strerror})"
    if sha256 != file.sha256:
        what = f"was {file.sha256} when the release was planned and is {sha256} now"
        raise ModelError(str(file.source), what, "plan the release again, when nothing writes into its folder")
    return addition
