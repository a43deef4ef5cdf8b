"""Signing in with a browser: /-/sign-in with a token or a link, and /-/sign-out."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from tasks.hub_server.errors import HubError
from tasks.hub_server.page_templates import render_page
from tasks.hub_server.requests import Body, Reader, get_hub

router = APIRouter(include_in_schema=False)


@router.get("/-/sign-in")
def show_sign_in(request: Request, user: Reader, once: str = "") -> Response:
    """A form for a token; with the secret of a link, sign in at once."""
    if not once:
        return render_page("sign_in.html", user=user)
    linked_user = get_hub(request).sessions.use_link_secret(once)
    if linked_user is None:
        error = "This link was used before. Sign in with a token."
        return render_page("sign_in.html", user=user, context={"error": error}, status=403)
    return _signed_in(request, linked_user)


@router.post("/-/sign-in")
def sign_in(request: Request, body: Body) -> Response:
    """Begin a session for the user of a token."""
    _require_same_site(request)
    token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
    try:
        user = get_hub(request).access.user(f"Bearer {token}")
    except HubError:
        error = "This Hub does not know this token."
        return render_page("sign_in.html", user=None, context={"error": error}, status=403)
    assert user is not None
    return _signed_in(request, user)


def _signed_in(request: Request, user: str) -> Response:
    """Set the cookie and show a page in between: after a redirect from another site, a strict cookie is not sent yet."""
    sessions = get_hub(request).sessions
    answer = render_page("signed_in.html", user=user)
    answer.set_cookie(sessions.cookie, sessions.open(user), httponly=True, samesite="strict", path="/")
    return answer


@router.post("/-/sign-out")
def sign_out(request: Request) -> Response:
    """End the session."""
    _require_same_site(request)
    sessions = get_hub(request).sessions
    sessions.close(request.cookies)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(sessions.cookie, path="/")
    return answer


def _require_same_site(request: Request) -> None:
    """Check that no other site signs a user in or out."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HubError(403, "Sign in from a page of this Hub")
