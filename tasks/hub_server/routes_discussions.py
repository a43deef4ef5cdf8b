"""Routes for pull requests. The Hub calls them discussions, too; plain discussions do not exist here.

POST .../discussions                      make a draft without commits
GET  .../discussions, .../<number>        list, describe
POST .../discussions/<number>/<action>    comment, title, status, merge

A commit makes or extends a pull request in routes_uploads.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from tasks.hub_server.changes import git_diff
from tasks.hub_server.discussions import Event, PullRequest
from tasks.hub_server.errors import HubError
from tasks.hub_server.file_links import comment_renderer
from tasks.hub_server.pull_requests import PullRequests, Seen
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import (
    API,
    Body,
    Participant,
    Readable,
    Target,
    Writable,
    iso_date,
    json_body,
    require_user,
)

DISCUSSIONS_PAGE = 50
_ONE = API + "/discussions/{number}"

router = APIRouter()


@router.get(API + "/discussions")
def list_pull_requests(
    *,
    target: Readable,
    type_: Annotated[Literal["all", "discussion", "pull_request"], Query(alias="type")] = "all",
    status: Literal["all", "open", "closed"] = "all",
    author: str = "",
    p: Annotated[int, Query(ge=0)] = 0,
) -> dict[str, object]:
    """One page of the pull requests, newest first. Drafts count as open, merged ones as closed."""
    found = [
        each
        for each in (PullRequests(target.repository).all() if type_ != "discussion" else [])
        if status in ("all", "open" if each.is_open else "closed") and author in ("", each.author)
    ]
    start = p * DISCUSSIONS_PAGE
    page = [_summary(target, each) for each in found[start : start + DISCUSSIONS_PAGE]]
    return {"count": len(found), "start": start, "discussions": page}


@router.get(_ONE)
def describe_pull_request(target: Readable, number: int, diff: str = "") -> dict[str, object]:
    """A pull request with its events and, if asked for, its diff."""
    found, changes = PullRequests(target.repository).read(number)
    events = _events_json(target, number, found.history(changes.commits))
    merged = {"mergeCommitId": found.merge.commit} if found.merge and found.status == "merged" else {}
    return {
        **_summary(target, found),
        "events": events,
        "filesWithConflicts": changes.conflicts,
        "changes": {"base": f"refs/heads/{MAIN}", **merged},
        "diff": "".join(map(git_diff, changes.files)) if diff else None,
    }


class NewDiscussion(BaseModel):
    """The body of a request that makes a pull request."""

    title: str
    description: str = ""
    pullRequest: bool = False  # noqa: N815 (as the client calls it)


@router.post(API + "/discussions")
def create_pull_request(
    target: Participant, new: Annotated[NewDiscussion, Depends(json_body(NewDiscussion))]
) -> dict[str, object]:
    """Make a pull request without commits: a draft, to which the client commits."""
    if not new.pullRequest:
        raise HubError(501, "The local Hub has no discussions without a pull request: pass pull_request=True")
    user = require_user(target.user)
    return _summary(target, PullRequests(target.repository).create_draft(new.title, new.description, user=user))


class NewComment(BaseModel):
    """The body of comment."""

    comment: str = ""


class NewMerge(NewComment):
    """The body of merge."""

    parentCommit: str | None = None  # noqa: N815 (as a commit's request calls it)
    """The commit that the pull request must be at."""


@router.post(_ONE + "/comment")
def comment(
    target: Participant, number: int, new: Annotated[NewComment, Depends(json_body(NewComment))]
) -> dict[str, object]:
    """Add a comment."""
    event = PullRequests(target.repository).comment(number, new.comment, user=require_user(target.user))
    return {"newMessage": _events_json(target, number, [event])[0]}


class NewTitle(BaseModel):
    """The body of title."""

    title: str


@router.post(_ONE + "/title")
def rename(
    target: Participant, number: int, new: Annotated[NewTitle, Depends(json_body(NewTitle))]
) -> dict[str, object]:
    """Change the title; for the author and those who can write."""
    user, pull_requests = require_user(target.user), PullRequests(target.repository)
    event = pull_requests.rename(number, new.title, user=user, can_write=target.can_write)
    return {"newTitle": _events_json(target, number, [event])[0]}


class NewStatus(NewComment):
    """The body of status."""

    status: Literal["open", "closed"]


@router.post(_ONE + "/status")
def set_status(
    target: Participant, number: int, new: Annotated[NewStatus, Depends(json_body(NewStatus))]
) -> dict[str, object]:
    """Open a draft, close, or reopen; for the author and those who can write."""
    event = PullRequests(target.repository).set_status(
        number, new.status, comment=new.comment, user=require_user(target.user), can_write=target.can_write
    )
    return {"newStatus": _events_json(target, number, [event])[0]}


@router.post(_ONE + "/merge")
def merge(target: Writable, number: int, body: Body) -> dict[str, object]:
    """Put the changes on main as one commit; for those who can write. The body may be empty."""
    new = json_body(NewMerge)(body) if body.strip() else NewMerge()
    seen = None if new.parentCommit is None else Seen(new.parentCommit)
    sha = PullRequests(target.repository).merge(number, comment=new.comment, user=require_user(target.user), seen=seen)
    return {"mergeCommitId": sha}


def _summary(target: Target, found: PullRequest) -> dict[str, object]:
    return {
        "num": found.number,
        "title": found.title,
        "status": found.status,
        "author": {"name": found.author},
        "createdAt": iso_date(found.time),
        "isPullRequest": True,
        "repo": {"name": target.id, "type": target.kind.removesuffix("s")},
    }


def _events_json(target: Target, number: int, events: list[Event]) -> list[dict[str, object]]:
    """Return events in the format of the Hub."""
    render = comment_renderer(target, number)

    def data(event: Event, date: str) -> dict[str, object]:
        match event.type:
            case "comment":
                author = {"name": event.author}
                latest = {"raw": event.text, "html": render(event.text), "updatedAt": date, "author": author}
                return {"edited": False, "hidden": False, "latest": latest, "history": [latest], "numEdits": 0}
            case "status-change":
                return {"status": event.text}
            case "title-change":
                return {"from": event.before, "to": event.text}
            case "commit":
                return {"subject": event.text, "oid": event.id}

    return [
        {
            "id": event.id,
            "type": event.type,
            "createdAt": date,
            "author": {"name": event.author},
            "data": data(event, date),
        }
        for event in events
        for date in [iso_date(event.time)]
    ]
