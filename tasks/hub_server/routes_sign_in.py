"""Signing in with a browser, to read what a user may read: /-/sign-in by a token or a link, and /-/sign-out."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.page_templates import page
from tasks.hub_server.refusals import RefusedError
from tasks.hub_server.requests import Body, Reader, hub_of

router = APIRouter(include_in_schema=False)


@router.get("/-/sign-in")
def offer_sign_in(request: Request, user: Reader, once: str = "") -> Response:
    """A form for a token; or, by a link that was made for it, signed in at once."""
    if not once:
        return page("sign_in.html", user=user)
    invited = hub_of(request).sessions.accept(once)
    if invited is None:
        return page("sign_in.html", user=user, shown={"problem": "That link was used before."}, status=403)
    return _signed_in(request, invited)


@router.post("/-/sign-in")
def sign_in(request: Request, body: Body) -> Response:
    """Begin a session for the user of a token."""
    _refuse_other_sites(request)
    token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
    try:
        user = hub_of(request).access.user(f"Bearer {token}")
    except RefusedError:
        return page("sign_in.html", user=None, shown={"problem": "This Hub does not know that token."}, status=403)
    assert user is not None
    return _signed_in(request, user)


def _signed_in(request: Request, user: str) -> Response:
    """A page in between: after a redirection from another site, a strict cookie would not yet be sent."""
    sessions = hub_of(request).sessions
    answer = page("signed_in.html", user=user)
    answer.set_cookie(sessions.cookie, sessions.open(user), httponly=True, samesite="strict", path="/")
    return answer


@router.post("/-/sign-out")
def sign_out(request: Request) -> Response:
    """End the session."""
    _refuse_other_sites(request)
    sessions = hub_of(request).sessions
    sessions.close(request.cookies)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(sessions.cookie, path="/")
    return answer


def _refuse_other_sites(request: Request) -> None:
    """Let no other site sign somebody in or out.

    Raises:
        RefusedError: 403.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise RefusedError(403, "Sign in from a page of this Hub")
