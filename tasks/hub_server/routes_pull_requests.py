"""Web pages of pull requests, and the forms on them.

/<namespace>/<name>/discussions                    list: open ones, or closed and merged ones
/<namespace>/<name>/discussions/<number>           one: comments, commits, changed files
/<namespace>/<name>/discussions/<number>/<action>  forms: comment, merge, close, open
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.errors import HubError
from tasks.hub_server.file_links import comment_renderer
from tasks.hub_server.forms import SentForm
from tasks.hub_server.names import pull_ref
from tasks.hub_server.pull_requests import PullRequests, Seen
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import Browsable, get_hub
from tasks.hub_server.routes_pages import repository_page

PAGE = 30
_MAX_FILES = 300

router = APIRouter()
"""Below the path of a repository."""


@router.get("/discussions")
def pull_requests(
    target: Browsable, status: Literal["open", "closed"] = "open", p: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """The pull requests, newest first."""
    found = [each for each in PullRequests(target.repository).all() if each.is_open == (status == "open")]
    start = p * PAGE
    context = {"found": found[start : start + PAGE], "shown": status, "p": p, "has_older": len(found) > start + PAGE}
    return repository_page(target, MAIN, target.repository.resolve(MAIN), "pull_requests.html", context)


@router.get("/discussions/{number}")
def pull_request(request: Request, target: Browsable, number: int) -> Response:
    """One pull request."""
    found, changes = PullRequests(target.repository).read(number)
    user = target.user
    actions: list[tuple[str, str]] = []
    if user:
        can_write = target.can_write
        if found.status == "open" and can_write and changes.commits and not changes.conflicts:
            actions.append(("merge", "Merge into main"))
        if found.status in ("draft", "closed") and found.may_set("open", user, can_write=can_write):
            actions.append(("open", "Publish the draft" if found.status == "draft" else "Reopen"))
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


@router.post("/discussions/{number}/{action}")
def change_pull_request(form: SentForm, number: int, action: str) -> Response:
    """Comment on, merge, close or open a pull request, and show it again. The form says what its page showed."""
    found, text = PullRequests(form.target.repository), form.fields.get("comment", "").replace("\r\n", "\n")
    can_write = form.target.can_write
    seen = Seen(form.fields.get("head", ""), unquote(form.fields.get("title", "")))
    match action:
        case "comment":
            found.comment(number, text, user=form.user)
        case "merge" if not can_write:
            raise HubError(403, f"You don't have the rights to merge pull request #{number}")
        case "merge":
            found.merge(number, comment=text, user=form.user, seen=seen)
        case "close":
            found.set_status(number, "closed", comment=text, user=form.user, can_write=can_write, seen=seen)
        case "open":
            found.set_status(number, "open", comment=text, user=form.user, can_write=can_write, seen=seen)
        case _:
            raise HubError(404, f"A pull request has no action {action!r}")
    return RedirectResponse(f"/{form.target.page}/discussions/{number}", 303)
