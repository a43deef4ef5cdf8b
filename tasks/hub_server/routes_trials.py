"""The box on a model's page: /<namespace>/<name>/try/<revision> takes a text and shows the card with the model's answer."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from tasks.hub_server.errors import HubError
from tasks.hub_server.forms import SentForm
from tasks.hub_server.requests import Quoted, get_hub, open_target
from tasks.hub_server.routes_pages import CARD, show_file

router = APIRouter()
"""Below the path of a repository."""


@router.post("/try/{revision}")
def answer(request: Request, form: SentForm, revision: Quoted) -> Response:
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
