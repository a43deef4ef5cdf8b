"""Which commits may be run because a release names them: those that the project has taken over.

A repository can hold more: a pull request that somebody fetched in order to read it, a fork, a commit of no branch. A local branch says
nothing where there is a remote: `git fetch origin pull/7/head:pr-7` makes one. The record of a release comes from a Hub, so whoever
publishes there chooses the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from params import ModelError

_LOCAL = "refs/heads/"


def refuse_unreviewed_commit(git: Callable[..., str], commit: str, where: str) -> None:
    """Raise ModelError if neither HEAD nor a branch of the project's remote contains `commit`; without a remote, a local branch may.

    `git` runs git with the arguments, and returns its output.
    """
    holders = git("for-each-ref", "--format=%(refname)", "--contains", commit, _LOCAL, "refs/remotes/").splitlines()
    remotes = git("remote").splitlines()
    is_own_branch = _is_branch_of_remote(git, remotes, holders) if remotes else _is_local_branch(holders)
    if is_own_branch:
        return
    if git("rev-list", "--max-count=1", commit, "^HEAD") == "":
        return
    what = f"its code, commit {commit}, is neither in HEAD nor in a branch of this project's remote: nobody here may have read it, and it would run as you"
    fix = (
        f"read it (`git log -p HEAD..{commit}`), and merge it into a branch, or repeat the command with "
        f"`--trust-commit {commit}`; `git fetch` brings new commits of the project's branches"
    )
    raise ModelError(where, what, fix)


def _is_local_branch(names: list[str]) -> bool:
    return any(name.startswith(_LOCAL) for name in names)


def _is_branch_of_remote(git: Callable[..., str], remotes: list[str], names: list[str]) -> bool:
    """Whether one of these references is a branch of the remote that the project comes from: `origin`, or the only one.

    A remote-tracking reference can also be a pull request, if `remote.<name>.fetch` says so.
    """
    project = "origin" if "origin" in remotes or len(remotes) != 1 else remotes[0]
    own = [name for name in names if name.startswith(f"refs/remotes/{project}/")]
    if not own:
        return False
    fetched = list(_fetched(git, project))
    branches = [target for source, target in fetched if source.startswith(_LOCAL)]
    others = [target for source, target in fetched if not source.startswith(_LOCAL)]
    return any(_matches(name, branches) and not _matches(name, others) for name in own)


def _fetched(git: Callable[..., str], remote: str) -> Iterator[tuple[str, str]]:
    """Yield what `git fetch` takes from a remote: references there, and where they are here."""
    for setting in git("config", "--list", "--null").split("\0"):
        key, _, value = setting.partition("\n")
        if key == f"remote.{remote}.fetch":
            source, _, target = value.removeprefix("+").partition(":")
            yield source, target


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
