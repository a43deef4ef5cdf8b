"""Publish a folder to a Hub repository as exactly one commit and one tag, whatever fails on the way.

At most one commit lands, because each attempt sends `parent_commit` = the head that it has looked at: the Hub compares
and swaps, and a late or repeated request of an older attempt meets 412. At least one lands, because after every unclear
answer the loop looks again before it acts: is the tag there, is a commit with our id in the history, does main hold our
files. A commit is ours when its files are, not because the client returned its id.

    release = plan_release(folder, repo_id="me/model", tag=None, private=True, provenance={"data": "..."})
    champion = head(HfApi(), "me/model")
    published = publish_release(HfApi(), release, replaces=champion.weights if champion else None)

main is a log of releases. A release that landed once is never committed again, even when others have followed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from params.errors import HubRefusedError, ModelError, StaleBlessingError
from tasks.hub_client.faults import LookAgainError
from tasks.hub_client.repository import (
    MAIN,
    PACE,
    PUBLISH_ID,
    Head,
    Pace,
    Tree,
    commit_on,
    head,
    history,
    refs,
    remote_holds,
    tree,
    tree_weights,
    until_clear,
)
from tasks.publishing.release import RECEIPT, Release, ReleaseFile, plan_release

__all__ = [
    "ANY_WEIGHTS",
    "RECEIPT",
    "Head",
    "Pace",
    "Published",
    "Release",
    "ReleaseFile",
    "head",
    "plan_release",
    "publish_release",
    "remote_holds",
]

ANY_WEIGHTS: Final = "any"
"""For `replaces`: whatever main holds."""
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
    superseded: bool = False
    """It landed before, and main holds other weights now: another release followed it, or it was rolled back."""


def publish_release(
    api: HfApi,
    release: Release,
    *,
    replaces: str | None = ANY_WEIGHTS,
    deadline_s: float = 600.0,
    pace: Pace = PACE,
    log: Callable[[str], None] = lambda _: None,
) -> Published:
    """Bring a release onto the Hub, unless it is there.

    Args:
        api: the client; its endpoint and token are used.
        release: from `plan_release`.
        replaces: digest of the weights that main must hold for the commit to be made; None: it must hold none. Does not
            matter for a release that has landed.
        deadline_s: no attempt starts, and no wait and no request goes on, later than this; a wait that the Hub asks for
            is honoured within it.
        pace: of the attempts.
        log: takes a line for every unclear answer and for the result; no line holds the token.

    Raises:
        HubRefusedError: the Hub would refuse again: access, name, a tag that holds something else.
        StaleBlessingError: main holds other weights than `replaces`.
        TransientError: no clear answer in time. Publishing again later is safe: nothing lands twice.
        ModelError: a file was changed since the release was planned.
    """
    published = until_clear(
        api,
        release.repo_id,
        lambda: _look_and_act(api, release, replaces),
        fix="run the publication again later: what has landed is found and nothing lands twice",
        deadline_s=deadline_s,
        pace=pace,
        log=log,
    )
    log(f"{api.endpoint}/{release.repo_id}: {published.how}, {published.commit} is {published.tag}")
    return published


def _look_and_act(api: HfApi, release: Release, replaces: str | None) -> Published:
    """One pass; whatever it raises, it can be run again."""
    where = f"{api.endpoint}/{release.repo_id}"
    branches, tags = _refs_of_release(api, release)
    tagged, at = tags.get(release.tag), branches.get(MAIN)
    if tagged and _difference(release, tree(api, release.repo_id, tagged)):
        what = f"the tag {release.tag} holds other files, at {tagged}"
        raise HubRefusedError(where, what, "choose another tag; a tag that others may use is never moved")
    if at is None:
        raise HubRefusedError(where, f"the repository has no branch {MAIN}", "make one, or remove the repository")
    commits = history(api, release.repo_id)
    there = tree(api, release.repo_id, at)
    superseded = tree_weights(there) != release.weights
    if tagged in {commit.commit_id for commit in commits}:
        return Published(str(tagged), release.tag, "found by its tag", release.publish_id, superseded)
    trailer = f"{PUBLISH_ID}: {release.publish_id}"
    landed = [commit.commit_id for commit in commits if trailer in commit.message.splitlines()]
    if landed:
        commit, how = landed[-1], "found by its id"
    elif changes := _difference(release, there):
        if replaces not in (ANY_WEIGHTS, tree_weights(there)):
            what = f"another model is there since this one was compared with the published one: commit {at}"
            fix = "evaluate again: `python -m tasks evaluate ...`, or start the flow, which does both"
            raise StaleBlessingError(where, what, fix)
        commit, how, superseded = _commit(api, release, changes, at), "committed", False
    else:
        commit, how = at, "found on main"
    if (landed or how == "committed") and _difference(release, tree(api, release.repo_id, commit)):
        if landed:
            what = f"commit {commit} has the id of this release and other files"
            raise HubRefusedError(where, what, "find out who wrote it; change the provenance to publish anew")
        raise LookAgainError(f"commit {commit}, which the client returned, does not hold the release")
    if not tagged:  # a tag outside of main's history holds the release as well: main was rolled back, the tag stays
        api.create_tag(release.repo_id, tag=release.tag, revision=commit)
    return Published(commit, release.tag, how, release.publish_id, superseded)


def _refs_of_release(api: HfApi, release: Release) -> tuple[dict[str, str], dict[str, str]]:
    """Branches and tags with their commits; makes the repository when there is none."""
    try:
        found = refs(api, release.repo_id)
    except RepositoryNotFoundError:
        api.create_repo(release.repo_id, private=release.private, exist_ok=True)
        try:
            found = refs(api, release.repo_id)
        except RepositoryNotFoundError:
            raise LookAgainError("the repository was made and is not visible") from None
    if release.private and not api.model_info(release.repo_id).private:
        what = "the release is private and the repository is public"
        raise HubRefusedError(
            f"{api.endpoint}/{release.repo_id}", what, "make the repository private, or allow a public release"
        )
    return found


def _difference(release: Release, there: Tree) -> list[ReleaseFile | str]:
    """What separates a commit from the release: files to write, and paths to remove."""
    wanted = {file.path: file for file in release.files}
    write = [file for path, file in wanted.items() if path not in there or not _is_equal(file, there[path])]
    return [*write, *(path for path in there if path not in wanted and path not in _HUBS_OWN_FILES)]


def _is_equal(file: ReleaseFile, remote: RepoFile) -> bool:
    if remote.lfs is not None:
        return (remote.lfs.sha256, remote.lfs.size) == (file.sha256, file.size)
    return bool(remote.blob_id == file.git_sha1)


def _commit(api: HfApi, release: Release, changes: list[ReleaseFile | str], parent: str) -> str:
    return commit_on(
        api,
        release.repo_id,
        [CommitOperationDelete(change) if isinstance(change, str) else _addition(change) for change in changes],
        parent=parent,
        title=f"Publish {release.tag}",
        trailers={PUBLISH_ID: release.publish_id},
    )


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
