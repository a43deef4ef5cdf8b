"""The log of a repository's releases: what was published when, and what was rolled back by whom and why.

for line in table(releases(Repository(HfApi(), "me/model"))):
print(line)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final, Literal

from huggingface_hub.errors import RepositoryNotFoundError

from params.errors import HubRefusedError
from tasks.hub_client.repository import Repository

PUBLISH_ID: Final = "Publish-Id"
"""Trailer of a release's commit."""
ROLLBACK_ID: Final = "Rollback-Id"
ROLLED_BACK_TO: Final = "Rolled-Back-To"
ROLLED_BACK_FROM: Final = "Rolled-Back-From"
GATE: Final = "Gate"
BY: Final = "By"
REASON: Final = "Reason"
"""Trailers of a rollback's commit."""
_HEADINGS = ("", "commit", "date (UTC)", "kind", "tags", "what")


@dataclass(frozen=True)
class LogEntry:
    """A commit of main."""

    commit: str
    tags: tuple[str, ...]
    """The tags of this commit, sorted."""
    title: str
    date: str
    """When it was made, by the Hub's clock: ISO 8601 in UTC, to the second."""
    kind: Literal["release", "rollback", "other"]
    """`other`: a commit that neither publishing nor a rollback made."""
    publish_id: str | None
    """Of a release."""
    to: str | None
    """Of a rollback: the tag with the files that main got back."""
    came_from: str | None
    """Of a rollback: the commit that main was at before."""
    by: str | None
    """Of a rollback: who asked for it."""
    why: str | None
    """Of a rollback: the reason."""
    is_head: bool
    """Whether main is at it."""


def releases(repository: Repository) -> list[LogEntry]:
    """Return the commits of main, newest first.

    Raises:
        HubRefusedError: there is no such repository, or the Hub would refuse again.
        TransientError: no clear answer in time.
    """
    return repository.retry_until_clear(lambda: _entries(repository))


def _entries(repository: Repository) -> list[LogEntry]:
    try:
        tags, commits = repository.refs().tags, repository.history()
    except RepositoryNotFoundError:
        fix = "publish to it first, or check the name"
        raise HubRefusedError(repository.where, "there is no such repository", fix) from None
    entries = []
    for number, commit in enumerate(commits):
        trailers = _trailers(commit.message)
        is_rollback = ROLLED_BACK_TO in trailers
        publish_id = None if is_rollback else trailers.get(PUBLISH_ID)
        entries.append(
            LogEntry(
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
    return entries


def rolled_back_reason(repository: Repository, weights: Collection[str]) -> str | None:
    """Return who rolled back from the model, and why; None if it was published again since.

    `weights` are the digests of its releases, which may hold it in several forms.
    """
    entries = releases(repository)
    rollbacks = [number for number, entry in enumerate(entries) if entry.kind == "rollback"]
    for entry in entries[: rollbacks[-1] + 1 if rollbacks else 0]:
        if repository.weights(entry.commit) in weights:
            return None
        if entry.kind == "rollback" and entry.came_from and repository.weights(entry.came_from) in weights:
            return f"by {entry.by}: {entry.why}"
    return None


def table(entries: Sequence[LogEntry]) -> list[str]:
    """Format the log as a table for a terminal, with a heading; `*` marks the commit that main is at."""
    rows = [_HEADINGS, *(_row(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def one_line(text: str) -> str:
    """Remove line ends and control characters, with which a text could pass for another trailer or row."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _row(entry: LogEntry) -> tuple[str, ...]:
    what = entry.title if entry.kind != "rollback" else f"to {entry.to}, by {entry.by}: {entry.why}"
    cells = (entry.commit[:12], entry.date[:16].replace("T", " "), entry.kind, ", ".join(entry.tags), what)
    return ("*" if entry.is_head else "", *(one_line(cell) for cell in cells))


def _trailers(message: str) -> dict[str, str]:
    """Return the `<name>: <value>` lines of a commit message; of several with one name, the first."""
    found: dict[str, str] = {}
    for line in message.splitlines():
        name, colon, value = line.partition(": ")
        if colon:
            found.setdefault(name, value)
    return found
