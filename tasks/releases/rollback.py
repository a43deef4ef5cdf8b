"""Roll main back to an earlier release: one new commit with exactly the files of a tag, and who asked for it and why.

History only grows: what was published stays in it, under its tag, so that a rollback can itself be undone by another.
The gate is not asked. Files that the Hub has are not sent again.

    roll_back(HfApi(), "me/model", "release-0123456789ab", by="me", why="answers in the wrong language", deadline_s=600)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from huggingface_hub import CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from params.errors import HubRefusedError
from tasks.hub_client.faults import LookAgainError
from tasks.hub_client.release_log import BY, GATE, REASON, ROLLBACK_ID, ROLLED_BACK_FROM, ROLLED_BACK_TO, one_line
from tasks.hub_client.repository import MAIN, PACE, Pace, Tree, commit_on, history, refs, tree, until_clear


@dataclass(frozen=True)
class RolledBack:
    """What main holds after a rollback."""

    commit: str
    """Holds the files of the tag."""
    tag: str
    changed: bool
    """Whether a commit was made; otherwise main held the files of the tag already."""


def roll_back(
    api: HfApi,
    repo_id: str,
    tag: str,
    *,
    by: str,
    why: str,
    deadline_s: float = 600.0,
    pace: Pace = PACE,
    log: Callable[[str], None] = lambda _: None,
) -> RolledBack:
    """Bring main back to the files of a tag, by one commit, unless it holds them.

    Args:
        api: the client; its endpoint and token are used.
        repo_id: the repository.
        tag: of the release to go back to.
        by: who asks for it; goes into the commit's message.
        why: the reason; goes there too.
        deadline_s: no attempt starts, and no wait and no request goes on, later than this.
        pace: of the attempts.
        log: takes a line for every unclear answer and for the result.

    Raises:
        HubRefusedError: there is no such tag or repository, nobody asks or no reason is given, or the Hub would refuse
            again.
        TransientError: no clear answer in time. Rolling back again later is safe.
    """
    where, by, why = f"{api.endpoint}/{repo_id}", one_line(by), one_line(why)
    if not by or not why:
        what = f"a rollback needs {'a reason' if by else 'somebody who asks for it'}"
        raise HubRefusedError(where, what, "say who and why: those who come after you will ask")
    rollback_id = uuid.uuid4().hex  # one for each call: what was rolled back before may have to be rolled back again
    rolled_back = until_clear(
        api,
        repo_id,
        lambda: _look_and_act(api, repo_id, tag, {BY: by, REASON: why, ROLLBACK_ID: rollback_id}),
        fix="roll back again later: what has landed is found",
        deadline_s=deadline_s,
        pace=pace,
        log=log,
    )
    log(
        f"{where}: {MAIN} is rolled back to {tag} by {rolled_back.commit}"
        if rolled_back.changed
        else f"{where}: {MAIN} holds the files of {tag} already, at {rolled_back.commit}"
    )
    return rolled_back


def _look_and_act(api: HfApi, repo_id: str, tag: str, trailers: dict[str, str]) -> RolledBack:
    """One pass; whatever it raises, it can be run again."""
    where = f"{api.endpoint}/{repo_id}"
    try:
        branches, tags = refs(api, repo_id)
    except RepositoryNotFoundError:
        raise HubRefusedError(where, "there is no such repository", "check its name, and the token") from None
    if tag not in tags:
        known = f"choose one of {', '.join(sorted(tags))}" if tags else "nothing has been published with a tag"
        raise HubRefusedError(where, f"there is no tag {tag!r}", known)
    if (at := branches.get(MAIN)) is None:
        raise HubRefusedError(where, f"the repository has no branch {MAIN}", "make one, or remove the repository")
    wanted = tree(api, repo_id, tags[tag])
    for commit in history(api, repo_id):
        if f"{ROLLBACK_ID}: {trailers[ROLLBACK_ID]}" in commit.message.splitlines():
            if _changes(wanted, tree(api, repo_id, commit.commit_id), tags[tag]):
                what = f"commit {commit.commit_id} has the id of this rollback and other files than {tag}"
                raise HubRefusedError(where, what, "find out who wrote it, and roll back again")
            return RolledBack(commit.commit_id, tag, changed=True)  # landed, whatever has followed since
    there = tree(api, repo_id, at)
    changes = _changes(wanted, there, tags[tag])
    if not changes:
        return RolledBack(at, tag, changed=False)
    commit_id = commit_on(
        api,
        repo_id,
        changes,
        parent=at,
        title=f"Roll back to {tag}",
        trailers={ROLLED_BACK_TO: tag, ROLLED_BACK_FROM: at, GATE: "overridden", **trailers},
    )
    if _changes(wanted, tree(api, repo_id, commit_id), tags[tag]):
        raise LookAgainError(f"commit {commit_id}, which the client returned, does not hold the files of {tag}")
    return RolledBack(commit_id, tag, changed=True)


def _changes(wanted: Tree, there: Tree, source: str) -> list[CommitOperationCopy | CommitOperationDelete]:
    """What makes the one tree the other, byte for byte; large files are copied on the Hub."""
    copies = [
        CommitOperationCopy(path, path, src_revision=source)
        for path, file in wanted.items()
        if path not in there or there[path].blob_id != file.blob_id
    ]
    return [*copies, *(CommitOperationDelete(path) for path in there if path not in wanted)]
