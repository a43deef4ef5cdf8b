"""Routes for pull requests: the API, then the pages. The Hub calls them discussions, too; plain discussions do not exist here.

GET  .../discussions, .../<number>        list, describe
POST .../discussions/<number>/<action>    comment, status, merge

A commit makes or extends a pull request in routes_uploads.py. The pages are at the same addresses, without /api: the list,
one pull request (comments, commits, changed files), and its forms: comment, merge, close, open.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.cards import comment_renderer
from tasks.hub_server.discussions import Event, PullRequest
from tasks.hub_server.errors import HubError
from tasks.hub_server.names import pull_ref
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import (
    API,
    Body,
    Browsable,
    Json,
    JsonBody,
    Participant,
    Readable,
    SentForm,
    Target,
    Writable,
    get_hub,
    iso_date,
)
from tasks.hub_server.routes_pages import repository_page

_MAX_FILES = 300
_ONE = API + "/discussions/{number}"

router = APIRouter()
page_router = APIRouter()
"""Below the path of a repository."""


@router.get(API + "/discussions")
def list_pull_requests(
    *,
    target: Readable,
    type_: Annotated[Literal["all", "discussion", "pull_request"], Query(alias="type")] = "all",
    status: Literal["all", "open", "closed"] = "all",
    author: str = "",
) -> Json:
    """The pull requests, newest first. Merged ones count as closed."""
    found = [
        each
        for each in (target.pull_requests.all() if type_ != "discussion" else [])
        if status in ("all", "open" if each.is_open else "closed") and author in ("", each.author)
    ]
    return {"count": len(found), "start": 0, "discussions": [_summary(target, each) for each in found]}


@router.get(_ONE)
def describe_pull_request(target: Readable, number: int) -> Json:
    """A pull request with its events."""
    found, changes = target.pull_requests.read(number)
    events = _events_json(target, number, found.history(changes.commits))
    merged = {"mergeCommitId": found.merge.commit} if found.merge and found.status == "merged" else {}
    return {
        **_summary(target, found),
        "events": events,
        "filesWithConflicts": changes.conflicts,
        "changes": {"base": f"refs/heads/{MAIN}", **merged},
        "diff": None,
    }


class NewComment(JsonBody):
    """The body of comment."""

    comment: str = ""


@router.post(_ONE + "/comment")
def comment(target: Participant, number: int, new: Annotated[NewComment, Depends(NewComment.read)]) -> Json:
    """Add a comment."""
    event = target.pull_requests.comment(number, new.comment)
    return {"newMessage": _events_json(target, number, [event])[0]}


class NewStatus(NewComment):
    """The body of status."""

    status: Literal["open", "closed"]


@router.post(_ONE + "/status")
def set_status(target: Participant, number: int, new: Annotated[NewStatus, Depends(NewStatus.read)]) -> Json:
    """Close or reopen; for the author and those who can write."""
    event = target.pull_requests.set_status(number, new.status, comment=new.comment)
    return {"newStatus": _events_json(target, number, [event])[0]}


@router.post(_ONE + "/merge")
def merge(target: Writable, number: int, body: Body) -> Json:
    """Put the changes on main as one commit; for those who can write. The body may be empty."""
    new = NewComment.read(body) if body.strip() else NewComment()
    return {"mergeCommitId": target.pull_requests.merge(number, comment=new.comment)}


def _summary(target: Target, found: PullRequest) -> Json:
    return {
        "num": found.number,
        "title": found.title,
        "status": found.status,
        "author": {"name": found.author},
        "createdAt": iso_date(found.time),
        "isPullRequest": True,
        "repo": {"name": target.id, "type": target.kind.removesuffix("s")},
    }


def _events_json(target: Target, number: int, events: list[Event]) -> list[Json]:
    """Return events in the format of the Hub."""
    render = comment_renderer(target, number)

    def data(event: Event, date: str) -> Json:
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


@page_router.get("/discussions")
def pull_requests(target: Browsable, status: Literal["open", "closed"] = "open") -> Response:
    """The pull requests, newest first."""
    found = [each for each in target.pull_requests.all() if each.is_open == (status == "open")]
    context = {"found": found, "shown": status}
    return repository_page(target, MAIN, target.repository.resolve(MAIN), "pull_requests.html", context)


@page_router.get("/discussions/{number}")
def pull_request(request: Request, target: Browsable, number: int) -> Response:
    """One pull request."""
    found, changes = target.pull_requests.read(number)
    user = target.user
    actions: list[tuple[str, str]] = []
    if user:
        can_write = target.can_write
        if found.is_open and can_write and not changes.conflicts:
            actions.append(("merge", "Merge into main"))
        if found.status == "closed" and found.may_set("open", user, can_write=can_write):
            actions.append(("open", "Reopen"))
        if found.is_open and found.may_set("closed", user, can_write=can_write):
            actions.append(("close", "Close"))
    context = {
        "found": found,
        "events": found.history(changes.commits),
        "render": comment_renderer(target, number),
        "changes": changes,
        "files": changes.files[:_MAX_FILES],
        "at": pull_ref(number).decode().replace("/", "%2F"),
        "actions": actions,
        "form_token": get_hub(request).sessions.form_token(request.cookies),
    }
    return repository_page(target, MAIN, target.repository.resolve(MAIN), "pull_request.html", context)


@page_router.post("/discussions/{number}/{action}")
def change_pull_request(form: SentForm, number: int, action: str) -> Response:
    """Comment on, merge, close or open a pull request, and show it again. The form says what its page showed."""
    found, text = form.target.pull_requests, form.fields.get("comment", "").replace("\r\n", "\n")
    seen = form.fields.get("head", "")
    match action:
        case "comment":
            found.comment(number, text)
        case "merge":
            found.merge(number, comment=text, seen=seen)
        case "close":
            found.set_status(number, "closed", comment=text, seen=seen)
        case "open":
            found.set_status(number, "open", comment=text, seen=seen)
        case _:
            raise HubError(404, f"A pull request has no action {action!r}")
    return RedirectResponse(f"/{form.target.page}/discussions/{number}", 303)
