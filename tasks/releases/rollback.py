"""Roll main back to an earlier release: one new commit with exactly the files of a tag, and who asked for it and why.

What was published stays in the history under its tag, so a rollback can be undone by another one. The gate is not asked.
Files that the Hub has are not sent again.

    commit_rollback(HubRepository(HfApi(), "me/model"), "release-0123456789ab", by="me", why="answers in the wrong language")
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from huggingface_hub import CommitOperationCopy, CommitOperationDelete

from params.foundation.errors import HubRefusedError
from tasks.hub_client import main_history
from tasks.hub_client.faults import InconsistentStateError
from tasks.hub_client.repository import MAIN, HubRepository, Tree


class RollbackResult(NamedTuple):
    """What main holds after a rollback."""

    commit: str
    changed: bool
    """Whether a commit was made; false if main held the files of the tag already."""


def commit_rollback(repository: HubRepository, tag: str, *, by: str, why: str) -> RollbackResult:
    """Give main the files of a tag again, by one commit, unless it holds them.

    After an unclear answer, running it again is safe.

    Raises:
        HubRefusedError: there is no such tag or repository, `by` or `why` is empty, or the Hub would refuse again.
        TransientError: no clear answer in time. Running it again is safe.
    """
    by, why, where = main_history.to_one_printable_line(by), main_history.to_one_printable_line(why), repository.where
    if not by or not why:
        what = f"a rollback needs {'a reason' if by else 'the name of who asks for it'}"
        raise HubRefusedError(where, what, "say who asks and why: others will want to know later")
    rollback_id = uuid.uuid4().hex  # one per call: the same rollback may be needed again later

    def look_and_act() -> RollbackResult:
        branches, tags = repository.refs()
        if tag not in tags:
            fix = f"choose one of {', '.join(sorted(tags))}" if tags else "nothing has been published with a tag"
            raise HubRefusedError(where, f"there is no tag {tag!r}", fix)
        if (parent := branches.get(MAIN)) is None:
            raise HubRefusedError(where, f"the repository has no branch {MAIN}", "create one, or remove the repository")
        target = repository.tree(tags[tag])
        for commit in repository.history():
            if f"{main_history.ROLLBACK_ID}: {rollback_id}" in commit.message.splitlines():
                if _changes(target, repository.tree(commit.commit_id), tags[tag]):
                    what = f"commit {commit.commit_id} has the id of this rollback and other files than {tag}"
                    raise HubRefusedError(where, what, "find out who wrote it, and roll back again")
                return RollbackResult(commit.commit_id, changed=True)  # an earlier attempt landed
        changes = _changes(target, repository.tree(parent), tags[tag])
        if not changes:
            return RollbackResult(parent, changed=False)
        trailers = {
            main_history.ROLLED_BACK_TO: tag,
            main_history.ROLLED_BACK_FROM: parent,
            main_history.GATE: "overridden",
            main_history.BY: by,
            main_history.REASON: why,
        }
        trailers[main_history.ROLLBACK_ID] = rollback_id
        made = repository.commit(changes, parent=parent, title=f"Roll back to {tag}", trailers=trailers)
        if _changes(target, repository.tree(made), tags[tag]):
            raise InconsistentStateError(f"commit {made}, which the client returned, does not hold the files of {tag}")
        return RollbackResult(made, changed=True)

    return repository.retry_until_clear(look_and_act, fix="roll back again later: what has landed is found")


def _changes(target: Tree, current: Tree, source: str) -> list[CommitOperationCopy | CommitOperationDelete]:
    """Return what turns one tree into the other, byte for byte; large files are copied on the Hub."""
    copies = [
        CommitOperationCopy(path, path, src_revision=source)
        for path, file in target.items()
        if path not in current or current[path].blob_id != file.blob_id
    ]
    return [*copies, *(CommitOperationDelete(path) for path in current if path not in target)]
