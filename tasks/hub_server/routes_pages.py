"""Web pages, at the same addresses as on the Hub, without scripts.

/                                             all repositories
/<namespace>/<name>                           the model card on main; datasets: /datasets/<namespace>/<name>
/<namespace>/<name>/tree/<revision>/<folder>  files
/<namespace>/<name>/blob/<revision>/<path>    one file; a card when it is Markdown
/<namespace>/<name>/commits/<revision>        revisions: commits, with the tags on them
/-/sign-in, /-/sign-out

The pages of pull requests are in routes_pull_requests.py. The box on a model's page sends a form with a text:

/<namespace>/<name>/try/<revision>            the card with the model's answer
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server import requests
from tasks.hub_server.card_metadata import parse_card
from tasks.hub_server.errors import HubError
from tasks.hub_server.git_objects import TreeEntry
from tasks.hub_server.page_templates import render_markdown, render_page
from tasks.hub_server.repositories import MAIN, BareRepository
from tasks.hub_server.routes_downloads import content_type, opens_in_browser
from tasks.hub_server.store import KINDS
from tasks.hub_server.trials import MAX_CHARACTERS, ask_model

_MAX_COMMITS = 1000
_SHOWN_BYTES = 512 << 10
CARD = "README.md"

router = APIRouter()
repository_router = APIRouter()
"""Below the path of a repository."""


@router.get("/")
def show_repositories(request: Request, user: requests.Reader, q: str = "") -> Response:
    """All repositories that the user can see."""
    hub = requests.get_hub_state(request)
    rows = []
    for kind in KINDS:
        for namespace, name, repository in hub.store.list(kind):
            if q.lower() not in f"{namespace}/{name}".lower():
                continue
            with contextlib.suppress(HubError):  # the user cannot see it, or it was deleted in the meantime
                target = requests.open_visible_repository(hub, kind, namespace, name, user)
                last = repository.history(repository.resolve(MAIN), limit=1)[0]
                rows.append((last, target, repository.private, len(repository.refs("tags"))))
    rows.sort(key=lambda row: -row[0].time)
    return render_page("repositories.html", user=user, context={"rows": rows, "query": q})


@repository_router.get("")
@repository_router.get("/blob/{revision}/{path:path}")
def show_file(
    request: Request, target: requests.Browsable, revision: requests.Quoted = MAIN, path: requests.Quoted = CARD
) -> Response:
    """One file, by default the card on main, below what its model was asked and answered (`request.state.trial`)."""
    repository, is_card = target.repository, path == CARD
    sha = repository.resolve(revision)
    trial = _trial(request, target, sha) if is_card else None
    context: requests.Json = {"entry": None, "is_card": is_card, "trial": trial, "max_characters": MAX_CHARACTERS}
    try:
        entry = context["entry"] = repository.entry(sha, path)
    except HubError:
        if is_card:
            return render_repository_page(request, target, revision, "card.html", context)
        repository.entries(sha, path, recursive=False)
        return RedirectResponse(f"/{target.page}/tree/{quote(revision, safe='')}/{quote(path)}", 303)
    text = _text_to_show(repository, entry)
    if text is None or not path.lower().endswith(".md"):
        context |= {"text": text, "limit": _SHOWN_BYTES, "opens": opens_in_browser(path)}
        context["is_image"] = content_type(path).startswith("image/")
        return render_repository_page(request, target, revision, "file.html", context)
    card = parse_card(text, is_model=target.kind == "models")
    body = render_markdown(card.body, base=f"/{target.page}", revision=revision, folder=path.rpartition("/")[0])
    metadata = {
        key: value for key, value in (card.metadata or {}).items() if key != "model-index" and value is not None
    }
    context |= {"body": body, "metadata": metadata, "errors": card.errors}
    return render_repository_page(request, target, revision, "card.html", context)


def _trial(request: Request, target: requests.RequestedRepository, sha: str) -> requests.Json | None:
    """Return what the box shows that lets a model answer; None where there is no box."""
    if target.kind != "models" or not requests.get_hub_state(request).answer:
        return None
    try:  # what has it may be a model that can answer texts
        target.repository.entry(sha, "config.json")
    except HubError:
        return None
    return {"text": "", "answer": None, "error": ""} | getattr(request.state, "trial", {})


def _text_to_show(repository: BareRepository, entry: TreeEntry) -> str | None:
    """Return the content of a file that is a text and not too long; None of others."""
    if entry.sha256 or entry.size > _SHOWN_BYTES:
        return None
    content = repository.read(entry)
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


@repository_router.post("/try/{revision}")
def show_model_answer(request: Request, form: requests.SentForm, revision: requests.Quoted) -> Response:
    """Show what the model of a revision answers to the text of the form, above its card."""
    (target, fields), ask = form, requests.get_hub_state(request).answer
    if ask is None or target.kind != "models":
        raise HubError(404, "This Hub does not let models answer: start it with `evergreen hub --try`")
    text = fields.get("text", "").replace("\r\n", "\n")
    commit = target.repository.resolve(revision)

    def may_read(repo_id: str) -> bool:
        namespace, _, name = repo_id.partition("/")
        try:
            requests.open_visible_repository(requests.get_hub_state(request), "models", namespace, name, target.user)
        except HubError:
            return False
        return True

    request.state.trial, status = {"text": text}, 200
    try:
        request.state.trial["answer"] = ask_model(ask, target.id, commit, text, may_read)
    except HubError as error:
        request.state.trial["error"], status = error.message, error.status
    page = show_file(request, target, revision)
    page.status_code = status
    return page


@repository_router.get("/commit/{revision}")
@repository_router.get("/tree/{revision}")
@repository_router.get("/tree/{revision}/{folder:path}")
def show_folder(
    request: Request, target: requests.Browsable, revision: requests.Quoted, folder: requests.Quoted = ""
) -> Response:
    """The files of a folder. The client's `commit_url` leads here, too."""
    sha = target.repository.resolve(revision)
    entries = target.repository.entries(sha, folder, recursive=False)
    entries.sort(key=lambda entry: (not entry.is_folder, entry.path))
    return render_repository_page(
        request, target, revision, "files.html", {"folder": folder.strip("/"), "entries": entries}
    )


@repository_router.get("/commits/{revision}")
def show_commits(request: Request, target: requests.Browsable, revision: requests.Quoted) -> Response:
    commits = target.repository.history(target.repository.resolve(revision), limit=_MAX_COMMITS)
    context = {"commits": commits, "limit": _MAX_COMMITS}
    return render_repository_page(request, target, revision, "revisions.html", context)


def render_repository_page(
    request: Request, target: requests.RequestedRepository, revision: str, template: str, context: Mapping[str, object]
) -> Response:
    sha = target.repository.resolve(revision)
    common: requests.Json = {
        "target": target,
        "base": f"/{target.page}",
        "revision": revision,
        "revision_url": quote(revision, safe=""),
        "sha": sha,
        "form_token": requests.find_session(request)[1],
        "tags": target.repository.refs("tags"),
        "branches": target.repository.refs("heads"),
        "open_pull_requests": sum(found.is_open for found in target.pull_requests.all()),
    }
    return render_page(template, user=target.user, context=common | dict(context))


@router.get("/-/sign-in")
def show_sign_in_or_follow_link(request: Request, user: requests.Reader, once: str = "") -> Response:
    """A form for a token; with the secret of a link, sign in at once."""
    sessions = requests.get_hub_state(request).sessions
    if not once:
        return _sign_in_form(request, user)
    linked_user = sessions.use_link_secret(once)
    if linked_user is None:
        return _sign_in_form(request, user, error="This link was used before. Sign in with a token.")
    if not sessions.may_begin(request.url.hostname or ""):  # other users may see a link, as an argument of the browser
        there = requests.address_under(request, sessions.new_host())
        return RedirectResponse(f"{there}/-/sign-in?once={sessions.create_link_secret(linked_user)}", 303)
    return _signed_in(request, linked_user)


def _sign_in_form(request: Request, user: str | None, *, error: str = "") -> Response:
    """Show the form for a token. It is sent to where the session begins: if that needs a host name of its own, to a new one."""
    sessions = requests.get_hub_state(request).sessions
    there = requests.address_under(request, sessions.new_host()) if sessions.own_hosts else ""
    context = {"error": error, "there": there}
    return render_page("sign_in.html", user=user, context=context, status=403 if error else 200, forms_to=there)


def _require_page_of_any_name(request: Request) -> None:
    """Check that no other site signs a user in."""
    requests.require_own_page(request, any_name=True)


@router.post("/-/sign-in")
def sign_in(request: Request, _: Annotated[None, Depends(_require_page_of_any_name)], body: requests.Body) -> Response:
    """Begin a session for the user of a token."""
    token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
    try:
        user = requests.get_hub_state(request).access.user(f"Bearer {token}")
    except HubError:
        return _sign_in_form(request, None, error="This Hub does not know this token.")
    assert user is not None
    if not requests.get_hub_state(request).sessions.may_begin(request.url.hostname or ""):
        return _sign_in_form(request, None, error="Send this form again: a session needs a host name of its own.")
    return _signed_in(request, user)


def _signed_in(request: Request, user: str) -> Response:
    """Set the cookie and show a page in between: after a redirect from another site, a strict cookie is not sent yet."""
    sessions, url = requests.get_hub_state(request).sessions, request.url
    answer = render_page("signed_in.html", user=user)
    answer.set_cookie(
        sessions.cookie_name(url.scheme),
        sessions.open(user, url.hostname or ""),
        httponly=True,
        samesite="strict",
        secure=url.scheme == "https",
        path="/",
    )
    return answer


@router.post("/-/sign-out")
def sign_out(request: Request) -> Response:
    requests.require_own_page(request)
    sessions, url = requests.get_hub_state(request).sessions, request.url
    sessions.close(request.cookies, url.scheme, url.hostname or "")
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(sessions.cookie_name(url.scheme), secure=url.scheme == "https", path="/")
    return answer
