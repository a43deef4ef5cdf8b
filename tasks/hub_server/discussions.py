"""A pull request as it is stored: title, status and events, in one JSON file.

What git knows is not stored again: `refs/pr/<number>` leads to its commits.
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

from pydantic import BaseModel, Field

from tasks.hub_server.errors import HubError
from tasks.hub_server.git_objects import CommitRecord

Status = Literal["draft", "open", "closed", "merged"]
EventType = Literal["comment", "status-change", "title-change", "commit"]
"""Earlier versions made drafts, which can be merged like open ones, and changes of titles."""

MAX_TITLE = 200
MAX_COMMENT = 64 << 10
"""In characters, as on the Hub."""


class Event(BaseModel):
    """Something that happened to a pull request."""

    type: EventType
    author: str
    text: str
    """The comment, the new status, the new title, or the title of the commit."""
    before: str = ""
    """The old title."""
    id: str = Field(default_factory=lambda: secrets.token_hex(12))
    """A commit's id in git, where the event is a commit."""
    time: int = Field(default_factory=lambda: int(time.time()))
    """Seconds since 1970, UTC."""


class Merge(BaseModel):
    """A merge, stored before main moves. It has happened if main has the commit, even if the process is killed then."""

    commit: str
    parent: str
    """Main's head before."""
    events: list[Event]


class PullRequest(BaseModel):
    """A pull request, without its commits."""

    number: int
    title: str
    author: str
    base: str
    """The commit on main from which it starts."""
    status: Status
    events: list[Event]
    """Without commits. The first one is the description."""
    merge: Merge | None = None

    @property
    def time(self) -> int:
        """When it was opened, in seconds since 1970."""
        return self.events[0].time

    @property
    def is_open(self) -> bool:
        """Whether it can still change: it is open or a draft."""
        return self.status in ("open", "draft")

    def may_set(self, status: str, user: str, *, can_write: bool) -> bool:
        """Whether `user` may set this status. The author may close it, but not open what somebody else has closed."""
        changes = [event for event in self.events if event.type == "status-change"]
        closed_by = changes[-1].author if changes and self.status == "closed" else user
        return can_write or (user == self.author and (status == "closed" or closed_by == user))

    def finish_merge(self) -> None:
        """Record that main has the commit of the merge."""
        assert self.merge is not None
        self.status = "merged"
        self.events += self.merge.events

    def history(self, commits: list[CommitRecord]) -> list[Event]:
        """Return the events together with `commits`, by time. The description stays first."""
        found = [
            Event(type="commit", author=each.author, text=each.title, id=each.sha, time=each.time) for each in commits
        ]
        return [self.events[0], *sorted(found + self.events[1:], key=lambda event: event.time)]


def check_title(title: str) -> str:
    """Return a title as one line.

    Raises:
        HubError: 400 if it is empty, too long or not valid text.
    """
    line = " ".join(check_text(title).split())
    if not 0 < len(line) <= MAX_TITLE:
        raise HubError(400, f"The title of a pull request has 1 to {MAX_TITLE} characters, this one has {len(line)}")
    return line


def check_text(text: str) -> str:
    """Return `text`.

    Raises:
        HubError: 400 if it is too long or not valid text.
    """
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise HubError(400, "The text contains characters that are not valid")
    if len(text) > MAX_COMMENT:
        raise HubError(400, f"The text has {len(text)} characters, more than {MAX_COMMENT}")
    return text
