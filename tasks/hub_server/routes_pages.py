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

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.card_metadata import read_card
from tasks.hub_server.cards import file_url_functions, metadata_table_rows, quote_revision, render_markdown
from tasks.hub_server.content_types import is_image, opens_in_browser
from tasks.hub_server.errors import HubError
from tasks.hub_server.git_objects import Entry
from tasks.hub_server.names import COMMIT_ID
from tasks.hub_server.page_templates import render_page
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import Browsable, Json, Quoted, Reader, SentForm, Target, get_hub, open_target
from tasks.hub_server.store import KINDS
from tasks.hub_server.trials import MAX_CHARACTERS

_MAX_COMMITS = 1000
_MAX_FILES = 1000
_SHOWN_BYTES = 512 << 10
CARD = "README.md"
_MODEL_FILE = "config.json"
"""A revision that has it may be a model that can answer texts."""

router = APIRouter()
repository_router = APIRouter()
"""Below the path of a repository."""


@router.get("/")
def repositories(request: Request, user: Reader, q: str = "") -> Response:
    """All repositories that the user can see."""
    hub = get_hub(request)
    rows = []
    for kind in KINDS:
        for namespace, name, repository in hub.store.list(kind):
            if q.lower() not in f"{namespace}/{name}".lower():
                continue
            with contextlib.suppress(HubError):  # the user cannot see it, or it was deleted in the meantime
                target = open_target(hub, kind, namespace, name, user)
                last = repository.history(repository.resolve(MAIN), limit=1)[0]
                rows.append((last, target, repository.private, len(repository.refs("tags"))))
    rows.sort(key=lambda row: -row[0].time)
    return render_page("repositories.html", user=user, context={"rows": rows, "query": q})


@repository_router.get("")
@repository_router.get("/blob/{revision}/{path:path}")
def file(request: Request, target: Browsable, revision: Quoted = MAIN, path: Quoted = CARD) -> Response:
    """One file, by default the card on main."""
    return show_file(request, target, revision, path)


def show_file(
    request: Request, target: Target, revision: str, path: str, *, trial: Mapping[str, object] | None = None
) -> Response:
    """Show a file. `trial`: what the model of this revision was asked and answered, which the card's page shows."""
    sha = target.repository.resolve(revision)
    is_card = path == CARD
    box = _trial_box(request, target, sha, trial or {}) if is_card else None
    try:
        entry = target.repository.entry(sha, path)
    except HubError:
        if is_card:
            return repository_page(target, revision, sha, "card.html", {"entry": None, "trial": box})
        raise
    text = _text(target, entry)
    if text is None or not path.lower().endswith(".md"):
        context: Json = {"entry": entry, "text": text, "limit": _SHOWN_BYTES}
        context |= {"is_image": is_image(path), "opens": opens_in_browser(path)}
        return repository_page(target, revision, sha, "file.html", context)
    card = read_card(text, is_model=target.kind == "models")
    page_of, content_of = file_url_functions(target, revision, sha)
    body = render_markdown(card.body, folder=path.rpartition("/")[0], page_of=page_of, content_of=content_of)
    metadata = metadata_table_rows(card.metadata or {})
    context = {"entry": entry, "body": body, "metadata": metadata, "errors": card.errors, "is_card": is_card}
    return repository_page(target, revision, sha, "card.html", context | {"trial": box})


@repository_router.post("/try/{revision}")
def show_model_answer(request: Request, form: SentForm, revision: Quoted) -> Response:
    """Show what the model of a revision answers to the text of the form, above its card."""
    trials = get_hub(request).trials
    if trials is None or form.target.kind != "models":
        raise HubError(404, "This Hub does not let models answer: start it with `evergreen hub --try`")
    text = form.fields.get("text", "").replace("\r\n", "\n")
    commit = form.target.repository.resolve(revision)

    def may_read(repo_id: str) -> bool:
        namespace, _, name = repo_id.partition("/")
        try:
            open_target(get_hub(request), "models", namespace, name, form.user)
        except HubError:
            return False
        return True

    try:
        found = trials.answer(form.target.id, commit, text, may_read)
    except HubError as error:
        page = show_file(request, form.target, revision, CARD, trial={"text": text, "error": error.message})
        page.status_code = error.status
        return page
    return show_file(request, form.target, revision, CARD, trial={"text": text, "answer": found})


def _trial_box(request: Request, target: Target, sha: str, trial: Mapping[str, object]) -> dict[str, object] | None:
    """Return what the box for texts shows; None where there is none."""
    hub = get_hub(request)
    if hub.trials is None or target.kind != "models":
        return None
    try:
        target.repository.entry(sha, _MODEL_FILE)
    except HubError:
        return None
    form_token = hub.sessions.form_token(request.cookies)
    empty: Json = {"text": "", "answer": None, "error": "", "max_characters": MAX_CHARACTERS}
    return {**empty, **trial, "form_token": form_token}


def _text(target: Target, entry: Entry) -> str | None:
    """Return the text of a file; None if it is large or not text."""
    if entry.sha256 or entry.size > _SHOWN_BYTES:
        return None
    content = target.repository.read(entry)
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


@repository_router.get("/tree/{revision}")
@repository_router.get("/tree/{revision}/{folder:path}")
def files(target: Browsable, revision: Quoted, folder: Quoted = "") -> Response:
    """The files of a folder."""
    sha = target.repository.resolve(revision)
    entries = target.repository.entries(sha, folder, recursive=False)
    entries.sort(key=lambda entry: (not entry.is_folder, entry.path))
    context = {"folder": folder.strip("/"), "entries": entries[:_MAX_FILES], "left_out": len(entries[_MAX_FILES:])}
    return repository_page(target, revision, sha, "files.html", context)


@repository_router.get("/commits/{revision}")
def revisions(target: Browsable, revision: Quoted) -> Response:
    """The commits of a revision, newest first."""
    sha = target.repository.resolve(revision)
    names: dict[str, list[str]] = {}
    for tag, commit in target.repository.refs("tags").items():
        names.setdefault(commit, []).append(tag)
    context = {"commits": target.repository.history(sha, limit=_MAX_COMMITS), "names": names, "limit": _MAX_COMMITS}
    return repository_page(target, revision, sha, "revisions.html", context)


@repository_router.get("/commit/{sha}")
def commit(target: Browsable, sha: Quoted) -> Response:
    """The files of a commit; the client's `commit_url` leads here."""
    return RedirectResponse(f"/{target.page}/tree/{quote_revision(target.repository.resolve(sha))}", 303)


def repository_page(target: Target, revision: str, sha: str, template: str, context: Mapping[str, object]) -> Response:
    """Render a page of one repository at one revision."""
    tags, branches = target.repository.refs("tags"), target.repository.refs("heads")
    common: Json = {
        "target": target,
        "base": f"/{target.page}",
        "private": target.repository.private,
        "revision": revision,
        "revision_url": quote_revision(revision),
        "is_commit": bool(COMMIT_ID.fullmatch(revision)) and revision not in {*tags, *branches},
        "sha": sha,
        "tags": [tag for tag, commit in tags.items() if commit == sha],
        "all_tags": list(tags)[::-1],
        "branches": list(branches),
        "open_pull_requests": sum(found.is_open for found in target.pull_requests.all()),
    }
    return render_page(template, user=target.user, context=common | dict(context))
