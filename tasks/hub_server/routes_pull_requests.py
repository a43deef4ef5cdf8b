"""Routes for pull requests: the API, then the pages. The Hub calls them discussions, too; plain discussions do not exist here.

GET  .../discussions, .../<number>        list, describe
POST .../discussions/<number>/<action>    comment, status, merge

A commit makes or extends a pull request in routes_uploads.py. The pages are at the same addresses, without /api: the list,
one pull request (comments, commits, changed files), and its forms: comment, merge, close, open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.errors import HubError
from tasks.hub_server.page_templates import render_comments
from tasks.hub_server.pull_requests import PullRequest, PullRequestEvent
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import (
    API,
    Body,
    Browsable,
    Json,
    JsonBody,
    Participant,
    Readable,
    RequestedRepository,
    SentForm,
    Writable,
    format_hub_date,
)
from tasks.hub_server.routes_pages import render_repository_page

_ONE = API + "/discussions/{number}"

router = APIRouter()
repository_router = APIRouter()
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


class _NewComment(JsonBody):
    comment: str = ""


@router.post(_ONE + "/comment")
def add_comment(target: Participant, number: int, new: Annotated[_NewComment, Depends(_NewComment.read)]) -> Json:
    event = target.pull_requests.comment(number, new.comment)
    return {"newMessage": _events_json(target, number, [event])[0]}


class _NewStatus(_NewComment):
    status: Literal["open", "closed"]


@router.post(_ONE + "/status")
def set_pull_request_status(
    target: Participant, number: int, new: Annotated[_NewStatus, Depends(_NewStatus.read)]
) -> Json:
    """Close or reopen; for the author and those who can write."""
    event = target.pull_requests.set_status(number, new.status, comment=new.comment)
    return {"newStatus": _events_json(target, number, [event])[0]}


@router.post(_ONE + "/merge")
def merge_pull_request(target: Writable, number: int, body: Body) -> Json:
    """Put the changes on main as one commit; for those who can write. The body may be empty."""
    new = _NewComment.read(body) if body.strip() else _NewComment()
    return {"mergeCommitId": target.pull_requests.merge(number, comment=new.comment)}


def _summary(target: RequestedRepository, found: PullRequest) -> Json:
    return {
        "num": found.number,
        "title": found.title,
        "status": found.status,
        "author": {"name": found.author},
        "createdAt": format_hub_date(found.events[0].time),
        "isPullRequest": True,
        "repo": {"name": target.id, "type": target.kind.removesuffix("s")},
    }


def _renderer(target: RequestedRepository, number: int) -> Callable[[str], Markup]:
    return render_comments(f"/{target.page}", f"refs/pr/{number}")


def _events_json(target: RequestedRepository, number: int, events: list[PullRequestEvent]) -> list[Json]:
    render, found = _renderer(target, number), list[Json]()
    for event in events:
        date, author = format_hub_date(event.time), {"name": event.author}
        match event.type:
            case "comment":
                latest = {"raw": event.text, "html": render(event.text), "updatedAt": date, "author": author}
                data: Json = {"edited": False, "hidden": False, "latest": latest, "history": [latest], "numEdits": 0}
            case "status-change":
                data = {"status": event.text}
            case "title-change":
                data = {"from": event.before, "to": event.text}
            case "commit":
                data = {"subject": event.text, "oid": event.id}
        found.append({"id": event.id, "type": event.type, "createdAt": date, "author": author, "data": data})
    return found


@repository_router.get("/discussions")
def show_pull_requests(request: Request, target: Browsable, status: Literal["open", "closed"] = "open") -> Response:
    found = [each for each in target.pull_requests.all() if each.is_open == (status == "open")]
    return render_repository_page(request, target, MAIN, "pull_requests.html", {"found": found, "shown": status})


@repository_router.get("/discussions/{number}")
def show_pull_request(request: Request, target: Browsable, number: int) -> Response:
    found, changes = target.pull_requests.read(number)
    context = {
        "found": found,
        "events": found.history(changes.commits),
        "render": _renderer(target, number),
        "changes": changes,
        "at": f"refs%2Fpr%2F{number}",
    }
    return render_repository_page(request, target, MAIN, "pull_request.html", context)


@repository_router.post("/discussions/{number}/{action}")
def submit_pull_request_form(form: SentForm, number: int, action: str) -> Response:
    """Comment on, merge, close or open a pull request, and show it again. The form says what its page showed."""
    target, fields = form
    found, text = target.pull_requests, fields.get("comment", "").replace("\r\n", "\n")
    seen = fields.get("head", "")
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
    return RedirectResponse(f"/{target.page}/discussions/{number}", 303)
