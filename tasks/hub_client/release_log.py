"""The releases of a repository: what was published when, what was rolled back by whom and why, and what main holds.

As a table:

    for line in lines(releases(HfApi(), "me/model")):
        print(line)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final, Literal

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from params.errors import HubRefusedError
from tasks.hub_client.repository import PACE, PUBLISH_ID, Pace, history, refs, tree, tree_weights, until_clear

ROLLBACK_ID: Final = "Rollback-Id"
ROLLED_BACK_TO: Final = "Rolled-Back-To"
ROLLED_BACK_FROM: Final = "Rolled-Back-From"
GATE: Final = "Gate"
BY: Final = "By"
REASON: Final = "Reason"
"""Trailers of a rollback's commit."""
_HEADINGS = ("", "commit", "date (UTC)", "kind", "tags", "what")


@dataclass(frozen=True)
class ReleaseEntry:
    """One commit of main."""

    commit: str
    tags: tuple[str, ...]
    """Those that point at it, in order of name."""
    title: str
    date: str
    """When it was made, ISO 8601 in UTC to the second, as the Hub says."""
    kind: Literal["release", "rollback", "other"]
    """`other`: somebody committed by other means."""
    publish_id: str | None
    """Of a release."""
    to: str | None
    """Of a rollback: the tag whose files main got back."""
    came_from: str | None
    """Of a rollback: the commit that main was at."""
    by: str | None
    """Of a rollback: who asked for it."""
    why: str | None
    """Of a rollback: what for."""
    is_head: bool
    """Whether main is at it."""


def releases(
    api: HfApi,
    repo_id: str,
    *,
    deadline_s: float = 60.0,
    pace: Pace = PACE,
    log: Callable[[str], None] = lambda _: None,
) -> list[ReleaseEntry]:
    """The commits of main, newest first.

    Raises:
        HubRefusedError: there is no such repository, or the Hub would refuse again.
        TransientError: no clear answer in time.
    """

    def look() -> list[ReleaseEntry]:
        try:
            tags = refs(api, repo_id)[1]
            commits = history(api, repo_id)
        except RepositoryNotFoundError:
            where = f"{api.endpoint}/{repo_id}"
            raise HubRefusedError(
                where, "there is no such repository", "publish to it first, or check the name"
            ) from None
        found = []
        for number, commit in enumerate(commits):
            trailers = _trailers(commit.message)
            is_rollback = ROLLED_BACK_TO in trailers
            publish_id = None if is_rollback else trailers.get(PUBLISH_ID)
            found.append(
                ReleaseEntry(
                    commit=commit.commit_id,
                    tags=tuple(sorted(tag for tag, target in tags.items() if target == commit.commit_id)),
                    title=commit.title,
                    date=commit.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    kind="rollback" if is_rollback else "release" if publish_id else "other",
                    publish_id=publish_id,
                    to=trailers.get(ROLLED_BACK_TO),
                    came_from=trailers.get(ROLLED_BACK_FROM),
                    by=trailers.get(BY) if is_rollback else None,
                    why=trailers.get(REASON) if is_rollback else None,
                    is_head=number == 0,
                )
            )
        return found

    return until_clear(api, repo_id, look, fix="try again later", deadline_s=deadline_s, pace=pace, log=log)


def rolled_back_reason(
    api: HfApi, repo_id: str, weights: str, *, deadline_s: float = 60.0, pace: Pace = PACE
) -> str | None:
    """Who rolled back from the model with these weights, and why; None if nobody did, or it was published again since.

    Args:
        api: the client.
        repo_id: a repository that exists.
        weights: their digest, as `tasks.digests.weights_digest` makes it.
        deadline_s: no attempt starts, and no wait and no request goes on, later than this.
        pace: of the attempts.

    Raises:
        HubRefusedError, TransientError: as for `releases`.
    """
    entries = releases(api, repo_id, deadline_s=deadline_s, pace=pace)

    def of(commit: str | None) -> str | None:
        if commit is None:
            return None
        found: str | None = until_clear(
            api,
            repo_id,
            lambda: tree_weights(tree(api, repo_id, commit)),
            fix="try again later",
            deadline_s=deadline_s,
            pace=pace,
        )
        return found

    rollbacks = [number for number, entry in enumerate(entries) if entry.kind == "rollback"]
    for entry in entries[: rollbacks[-1] + 1 if rollbacks else 0]:
        if of(entry.commit) == weights:
            return None
        if entry.kind == "rollback" and of(entry.came_from) == weights:
            return f"by {entry.by}: {entry.why}"
    return None


def lines(entries: Sequence[ReleaseEntry]) -> list[str]:
    """A table for a terminal, with a heading; `*` marks what main is at."""
    table = [_HEADINGS, *(_row(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def one_line(text: str) -> str:
    """The text without line ends and control characters, with which it could pass for another trailer or row."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _row(entry: ReleaseEntry) -> tuple[str, ...]:
    what = entry.title if entry.kind != "rollback" else f"to {entry.to}, by {entry.by}: {entry.why}"
    cells = (entry.commit[:12], entry.date[:16].replace("T", " "), entry.kind, ", ".join(entry.tags), what)
    return ("*" if entry.is_head else "", *(one_line(cell) for cell in cells))


def _trailers(message: str) -> dict[str, str]:
    """The `<name>: <value>` lines of a commit's message; of several of one name, the first."""
    found: dict[str, str] = {}
    for line in message.splitlines():
        name, colon, value = line.partition(": ")
        if colon:
            found.setdefault(name, value)
    return found
