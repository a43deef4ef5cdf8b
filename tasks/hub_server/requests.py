"""What the routes of the local Hub share: the user, repository and body of a request, and the forms of signed-in users.

Other sites can make a browser send a request to this Hub, perhaps even with its cookie. A form is accepted only if the
browser says that it comes from a page of this Hub (Origin), and if it holds the secret that these pages have (form_token).
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool

from tasks.hub_server import limits
from tasks.hub_server.access import AccessRules, BrowserSessions, is_own_host
from tasks.hub_server.errors import HubError, not_implemented_error, repository_not_found_error
from tasks.hub_server.pull_requests import PullRequests
from tasks.hub_server.repositories import BareRepository
from tasks.hub_server.store import KINDS, RepositoryStore
from tasks.hub_server.trials import AnswerFunction

API = "/api/{kind}/{namespace}/{name}"
"""Path of a repository in the API."""
PAGES = ("/datasets/{namespace}/{name}", "/{namespace}/{name}")
"""Paths of a repository in a browser. Datasets come first, because their path fits both."""
Quoted = Annotated[str, AfterValidator(unquote)]
"""A part of the path, decoded. Routes match the encoded path, in which a revision `refs%2Fheads%2Fmain` is one part."""
LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")
"""The names of this machine at which a Hub that serves only this machine listens; and every name under `.localhost`."""
Json = dict[str, Any]
"""An answer, or what a page shows."""


@dataclass(frozen=True)
class HubState:
    """State of the server, at `request.app.state.hub`."""

    store: RepositoryStore
    access: AccessRules
    sessions: BrowserSessions
    hosts: Sequence[str]
    """The names under which clients may address it; `*` for all."""
    answer: AnswerFunction | None = None
    """Lets models answer on their pages."""


def get_hub_state(request: Request) -> HubState:
    hub: HubState = request.app.state.hub
    return hub


def get_request_endpoint(request: Request) -> str:
    """Return the address at which the client reaches this Hub; it may differ from ours, for example behind a tunnel."""
    return f"{request.url.scheme}://{request.url.netloc}"


def get_token_user(request: Request) -> str | None:
    """Return the user of the request's token; None without a token. Writing needs a token, or a form of a page."""
    return get_hub_state(request).access.user(request.headers.get("authorization", ""))


def get_reading_user(request: Request) -> str | None:
    """Return the user of the request's token or, for a browser, of its session cookie. Only for GET and HEAD."""
    assert request.method in ("GET", "HEAD"), "other sites can make a browser send its cookie: it must change nothing"
    return get_token_user(request) or find_session(request)[0]


def find_session(request: Request) -> tuple[str | None, str]:
    """Return the user of the request's session, and the secret that its forms hold; None and "" without a session."""
    sessions, url = get_hub_state(request).sessions, request.url
    user, form_token = sessions.find(request.cookies, url.scheme, url.hostname or "")
    if user is not None:
        request.state.user = user
    return user, form_token


def address_under(request: Request, host: str) -> str:
    """Return the address of this Hub under another host name."""
    port = f":{request.url.port}" if request.url.port else ""
    return f"{request.url.scheme}://{host}{port}"


def require_own_page(request: Request, *, any_name: bool = False) -> None:
    """Check that the request's form was sent from a page of this Hub; HubError 403 if not, or if the browser does not say.

    Browsers say so in `Origin`, which no page can change. With `any_name`, the page may have been at another name of this
    machine: the Hub has its port at all of them.
    """
    origin = request.headers.get("origin", "")
    here = request.url.netloc
    if origin in (f"http://{here}", f"https://{here}"):
        return
    if any_name and get_hub_state(request).sessions.own_hosts:
        with contextlib.suppress(ValueError):
            sender = urlsplit(origin)
            host = sender.hostname or ""
            is_name_of_this_hub = host in LOOPBACK_NAMES or is_own_host(host)
            if sender.scheme in ("http", "https") and is_name_of_this_hub and sender.port == request.url.port:
                return
    raise HubError(403, "This form was not sent from a page of this Hub")


@dataclass(frozen=True)
class RequestedRepository:
    kind: str
    namespace: str
    name: str
    repository: BareRepository
    user: str | None
    can_write: bool
    """Whether the user can write to it."""

    @property
    def id(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def page(self) -> str:
        """Path of the repository's page; the client parses the repository's id from it."""
        return self.id if self.kind == "models" else f"{self.kind}/{self.id}"

    @property
    def pull_requests(self) -> PullRequests:
        """Its pull requests, as the user may change them."""
        return PullRequests(self.repository, self.user or "", self.can_write)


def get_repository_kind(request: Request) -> str:
    """Return the kind of repository in this request's path: `models` or `datasets`."""
    is_dataset = request.url.path.startswith("/datasets/")
    return unquote(request.path_params.get("kind") or ("datasets" if is_dataset else "models"))


def open_visible_repository(
    hub: HubState, kind: str, namespace: str, name: str, user: str | None
) -> RequestedRepository:
    """Return a repository as `user` sees it.

    HubError 404 RepoNotFound if it does not exist, or is private and the user has no access; 501 for another kind.
    """
    if kind not in KINDS:
        raise not_implemented_error(kind)
    repository = hub.store.open(kind, namespace, name)
    can_write = hub.access.can_write(user, namespace)
    if not can_write and repository.private:
        raise repository_not_found_error()
    return RequestedRepository(kind, namespace, name, repository, user, can_write)


User = Annotated[str | None, Depends(get_token_user)]
Reader = Annotated[str | None, Depends(get_reading_user)]


def find_requested_repository(request: Request, user: User) -> RequestedRepository:
    """Return the repository that this request names, as `user` sees it."""
    parts = {name: unquote(value) for name, value in request.path_params.items()}
    return open_visible_repository(
        get_hub_state(request), get_repository_kind(request), parts["namespace"], parts["name"], user
    )


def require_token_user(user: User) -> str:
    """Return the user of this request's token. HubError 401 without a token."""
    if user is None:
        raise HubError(401, "Invalid username or password.")
    return user


RequiredUser = Annotated[str, Depends(require_token_user)]


def get_browsable_repository(request: Request, user: Reader) -> RequestedRepository:
    """Return the repository of a page or a download: a browser's session cookie is accepted, too."""
    return find_requested_repository(request, user)


def get_readable_repository_with_token(request: Request, user: RequiredUser) -> RequestedRepository:
    """Return the repository of this request, if the user has a token and can read it."""
    return find_requested_repository(request, user)


Readable = Annotated[RequestedRepository, Depends(find_requested_repository)]
Browsable = Annotated[RequestedRepository, Depends(get_browsable_repository)]
Participant = Annotated[RequestedRepository, Depends(get_readable_repository_with_token)]


def get_writable_repository(request: Request, target: Participant) -> RequestedRepository:
    """Return the repository of this request, if the user can write to it; otherwise HubError 403."""
    get_hub_state(request).access.require_write(target.user, target.namespace)
    return target


Writable = Annotated[RequestedRepository, Depends(get_writable_repository)]


async def read_request_body(request: Request, user: User) -> bytes:
    """Return the body of this request. A route names it after what authorizes the request, which is then checked first."""
    return await limits.read_limited_body(request, limits.BODY_BYTES if user else limits.ANONYMOUS_BYTES)


Body = Annotated[bytes, Depends(read_request_body)]


class JsonBody(BaseModel):
    """What a request sends as JSON. FastAPI would read a body of its own before it calls any dependency.

    A field that this Hub does not know is refused, never ignored: it may say who may see or do something.
    """

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def read(cls, body: Body) -> Self:
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None


async def read_checked_form(request: Request) -> tuple[RequestedRepository, dict[str, str]]:
    """Return the repository of this request, as the user of the session sees it, and the fields of the form.

    HubError 403 if it comes from elsewhere or lacks the secret of the session, 401 without a session, 404 if the user
    cannot see the repository.
    """
    require_own_page(request)
    user, form_token = find_session(request)
    if user is None:
        raise HubError(401, "You are not signed in, or your session has ended: sign in and try again")
    body = await limits.read_limited_body(request, limits.BODY_BYTES)
    fields = dict(parse_qsl(body.decode(errors="replace")))
    if not hmac.compare_digest(fields.get("form_token", "").encode(), form_token.encode()):
        raise HubError(403, "This form is out of date: load the page again")
    return await run_in_threadpool(find_requested_repository, request, user), fields


SentForm = Annotated[tuple[RequestedRepository, dict[str, str]], Depends(read_checked_form)]


def format_hub_date(seconds: int) -> str:
    """Format seconds since 1970 as the Hub does."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
