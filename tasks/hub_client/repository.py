"""A repository of a Hub, seen as a log of releases: what main holds, asked until the answer is clear.

Looking, and putting one commit where one has looked, is all that publishing and rolling back are made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import GitCommitInfo, RepoFile

from params.errors import TransientError
from tasks.digests import weights_digest
from tasks.hub_client.faults import (
    CLIENT_ERRORS,
    bounded_client,
    explain,
    refusal,
    refuse_malformed_token,
    wait_before_retry,
)

MAIN: Final = "main"
PUBLISH_ID: Final = "Publish-Id"
"""The trailer of a release's commit."""
_LOOK_DEADLINE_S = 60.0

T = TypeVar("T")
Tree = Mapping[str, RepoFile]
"""Path -> file, of a whole commit."""


@dataclass(frozen=True)
class Pace:
    """How often to ask an unclear Hub, and by which clock."""

    attempts: int = 8
    """How often to look and act before giving up."""
    sleep: Callable[[float], None] = time.sleep
    """Waits between attempts."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, for the deadline."""


PACE = Pace()


@dataclass(frozen=True)
class Head:
    """The model that main holds."""

    commit: str
    tag: str | None
    """One that points at this very commit; a release's own where there are several."""
    weights: str
    """Their digest, as `tasks.digests.weights_digest` makes it."""


def head(
    api: HfApi,
    repo_id: str,
    *,
    deadline_s: float = _LOOK_DEADLINE_S,
    pace: Pace = PACE,
    log: Callable[[str], None] = lambda _: None,
) -> Head | None:
    """The model that main holds now; None without a repository, without main, or without weights on it.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: no clear answer in time.
    """

    def look() -> Head | None:
        try:
            branches, tags = refs(api, repo_id)
        except RepositoryNotFoundError:
            return None
        if (commit := branches.get(MAIN)) is None or (weights := tree_weights(tree(api, repo_id, commit))) is None:
            return None
        here = sorted((not name.startswith("release-"), name) for name, target in tags.items() if target == commit)
        return Head(commit, here[0][1] if here else None, weights)

    return until_clear(api, repo_id, look, fix="try again later", deadline_s=deadline_s, pace=pace, log=log)


def remote_holds(
    api: HfApi, repo_id: str, commit: str, *, deadline_s: float = _LOOK_DEADLINE_S, pace: Pace = PACE
) -> bool:
    """Whether `commit` is still in the history of main, so that a receipt that names it is true.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: no clear answer in time.
    """

    def look() -> bool:
        try:
            return any(entry.commit_id == commit for entry in history(api, repo_id))
        except RepositoryNotFoundError:
            return False

    return until_clear(api, repo_id, look, fix="try again later", deadline_s=deadline_s, pace=pace)


def until_clear(
    api: HfApi,
    repo_id: str,
    look_and_act: Callable[[], T],
    *,
    fix: str,
    deadline_s: float,
    pace: Pace,
    log: Callable[[str], None] = lambda _: None,
) -> T:
    """What `look_and_act` returns, which is called again after every unclear answer of the Hub.

    Args:
        api: the client that `look_and_act` uses.
        repo_id: for messages.
        look_and_act: can be called again, whatever it has raised.
        fix: what to do when no answer came in time.
        deadline_s: as for `publish_release`.
        pace: of the attempts.
        log: takes a line for every unclear answer.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: no clear answer in time.
        EvergreenError: what `look_and_act` raises of these.
    """
    where = f"{api.endpoint}/{repo_id}"
    refuse_malformed_token(api, repo_id)
    started, attempt, reason = pace.clock(), 0, "none was made"
    with bounded_client(deadline_s):
        for attempt in range(pace.attempts):
            try:
                return look_and_act()
            except CLIENT_ERRORS as error:
                reason = explain(error, api)
                if refused := refusal(error, api, repo_id):
                    raise refused from None
                wait_s = wait_before_retry(error, attempt)
            log(f"{where}: attempt {attempt + 1} of {pace.attempts}: {reason}")
            if pace.clock() - started + wait_s > deadline_s:
                reason += f"; {deadline_s:.0f} s do not allow another wait of {wait_s:.0f} s"
                break
            if attempt + 1 < pace.attempts:
                pace.sleep(wait_s)
    what = f"no clear answer after {attempt + 1} attempts in {pace.clock() - started:.0f} s; the last: {reason}"
    raise TransientError(where, what, fix) from None


def refs(api: HfApi, repo_id: str) -> tuple[dict[str, str], dict[str, str]]:
    """The branches and the tags with their commits; raises what the client raises."""
    found = api.list_repo_refs(repo_id)
    return (
        {branch.name: branch.target_commit for branch in found.branches},
        {tag.name: tag.target_commit for tag in found.tags},
    )


def history(api: HfApi, repo_id: str) -> Sequence[GitCommitInfo]:
    """The commits of main, newest first; raises what the client raises."""
    return list(api.list_repo_commits(repo_id, revision=MAIN))


def tree(api: HfApi, repo_id: str, commit: str) -> Tree:
    """The files of a commit; raises what the client raises."""
    entries = api.list_repo_tree(repo_id, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def tree_weights(files: Tree) -> str | None:
    """The digest of a commit's weights; None without any.

    Weights that are no large file, which is not how anything of ours lands, count by git's name of their content.
    """
    return weights_digest({path: file.lfs.sha256 if file.lfs else file.blob_id for path, file in files.items()})


def commit_on(
    api: HfApi,
    repo_id: str,
    operations: Sequence[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete],
    *,
    parent: str,
    title: str,
    trailers: Mapping[str, str],
) -> str:
    """Put one commit on main if main is still at `parent`; raises what the client raises.

    Args:
        api: the client.
        repo_id: the repository.
        operations: new ones each time; those of an earlier attempt hold what it learned of the head of then.
        parent: the commit that was looked at.
        title: first line of the message.
        trailers: the last lines of the message, `<name>: <value>`.

    Returns:
        What the client says the commit is. It leaves out files that are equal at the head of now; when none is left, it
        sends nothing and returns that head, which may be another's: look at its files.
    """
    description = "\n".join(f"{name}: {value}" for name, value in trailers.items())
    made = api.create_commit(
        repo_id,
        operations,
        commit_message=title,
        commit_description=description,
        revision=MAIN,
        parent_commit=parent,
    )
    return str(made.oid)
