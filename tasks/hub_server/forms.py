"""Forms on the pages of a signed-in user.

Other sites can make a browser send a request to this Hub, perhaps even with its cookie. A form is accepted only if the
browser says that it comes from a page of this Hub (Origin), and if it holds the secret that these pages have (form_token).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from tasks.hub_server import limits
from tasks.hub_server.errors import HubError
from tasks.hub_server.requests import Target, find_target, get_hub


@dataclass(frozen=True)
class Form:
    """A form that the user of a session has sent."""

    target: Target
    user: str
    fields: Mapping[str, str]


def require_same_origin(request: Request) -> None:
    """Check that a form comes from a page of this Hub.

    Raises:
        HubError: 403.
    """
    here = request.url.netloc
    if request.headers.get("origin") not in (f"http://{here}", f"https://{here}"):
        raise HubError(403, "This form was not sent from a page of this Hub")


def get_form_user(request: Request) -> str:
    """Return the user of the session that sends a form.

    Raises:
        HubError: 403 if it comes from elsewhere, 401 without a session.
    """
    require_same_origin(request)
    user = get_hub(request).sessions.user(request.cookies)
    if user is None:
        raise HubError(401, "You are not signed in, or your session has ended: sign in and try again")
    return user


FormUser = Annotated[str, Depends(get_form_user)]


async def get_form_body(request: Request, _: FormUser) -> bytes:
    """Return the body of a form."""
    return await limits.read_body(request, limits.BODY_BYTES)


def read_form(request: Request, user: FormUser, body: Annotated[bytes, Depends(get_form_body)]) -> Form:
    """Return the form of this request.

    Raises:
        HubError: 403 without the secret of the session, 404 if the user cannot see the repository.
    """
    fields = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
    expected = get_hub(request).sessions.form_token(request.cookies) or ""
    if not expected or not hmac.compare_digest(fields.get("form_token", "").encode(), expected.encode()):
        raise HubError(403, "This form is out of date: load the page again")
    return Form(find_target(request, user), user, fields)


SentForm = Annotated[Form, Depends(read_form)]
