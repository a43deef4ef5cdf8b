"""What the routes of the local Hub share: the user, repository and body of a request, and the forms of signed-in users.

Other sites can make a browser send a request to this Hub, perhaps even with its cookie. A form is accepted only if the
browser says that it comes from a page of this Hub (Origin), and if it holds the secret that these pages have (form_token).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, unquote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ValidationError

from tasks.hub_server import limits
from tasks.hub_server.access import Access, Sessions
from tasks.hub_server.errors import HubError, not_implemented, repository_not_found
from tasks.hub_server.git_objects import CommitRecord, Entry
from tasks.hub_server.pull_requests import PullRequests
from tasks.hub_server.repositories import Repository
from tasks.hub_server.store import KINDS, Store
from tasks.hub_server.trials import Trials

API = "/api/{kind}/{namespace}/{name}"
"""Path of a repository in the API."""
PAGES = ("/datasets/{namespace}/{name}", "/{namespace}/{name}")
"""Paths of a repository in a browser. Datasets come first, because their path fits both."""
Quoted = Annotated[str, AfterValidator(unquote)]
"""A part of the path, decoded. Routes match the encoded path, in which a revision `refs%2Fheads%2Fmain` is one part."""
Json = dict[str, Any]
"""An answer, or what a page shows."""


@dataclass(frozen=True)
class Hub:
    """State of the server, at `request.app.state.hub`."""

    store: Store
    access: Access
    sessions: Sessions
    is_local: bool = True
    """Whether only this machine is served."""
    trials: Trials | None = None
    """Lets models answer on their pages."""


def get_hub(request: Request) -> Hub:
    """Return the Hub that serves this request."""
    hub = request.app.state.hub
    assert isinstance(hub, Hub)
    return hub


def get_endpoint(request: Request) -> str:
    """Return the address at which the client reaches this Hub; it may differ from ours, for example behind a tunnel."""
    return f"{request.url.scheme}://{request.url.netloc}"


def get_user(request: Request) -> str | None:
    """Return the user of the request's token; None without a token. Writing needs a token, or a form of a page."""
    return get_hub(request).access.user(request.headers.get("authorization", ""))


def get_reader(request: Request) -> str | None:
    """Return the user of the request's token or, for a browser, of its session cookie. Only for GET and HEAD."""
    assert request.method in ("GET", "HEAD"), "other sites can make a browser send its cookie: it must change nothing"
    return get_user(request) or get_hub(request).sessions.user(request.cookies)


@dataclass(frozen=True)
class Target:
    """The repository that a request names."""

    kind: str
    namespace: str
    name: str
    repository: Repository
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


def readable_target(request: Request) -> Target:
    """Return the repository of this request, if the user can read it.

    A private repository that the user cannot read answers like a missing one.

    Raises:
        HubError: 404 RepoNotFound if it does not exist, or is private and the user has no access.
    """
    return find_target(request, get_user(request))


def browsable_target(request: Request) -> Target:
    """Like `readable_target`, for pages and downloads: a browser's session cookie is accepted, too."""
    return find_target(request, get_reader(request))


def get_kind(request: Request) -> str:
    """Return the kind of repository in this request's path: `models` or `datasets`."""
    is_dataset = request.url.path.startswith("/datasets/")
    return unquote(request.path_params.get("kind") or ("datasets" if is_dataset else "models"))


def find_target(request: Request, user: str | None) -> Target:
    """Return the repository that this request names, as `user` sees it."""
    parts = {name: unquote(value) for name, value in request.path_params.items()}
    kind, namespace, name = get_kind(request), parts["namespace"], parts["name"]
    return open_target(get_hub(request), kind, namespace, name, user)


def open_target(hub: Hub, kind: str, namespace: str, name: str, user: str | None) -> Target:
    """Return a repository as `user` sees it.

    Raises:
        HubError: 404 RepoNotFound if it does not exist, or is private and the user has no access; 501 for another kind.
    """
    if kind not in KINDS:
        raise not_implemented(kind)
    repository = hub.store.open(kind, namespace, name)
    can_write = hub.access.can_write(user, namespace)
    if not can_write and repository.private:
        raise repository_not_found()
    return Target(kind, namespace, name, repository, user, can_write)


def readable_target_with_token(request: Request) -> Target:
    """Return the repository of this request, if the user has a token and can read it.

    Raises:
        HubError: 401 without a token, 404 as for reading.
    """
    require_user(get_user(request))
    return readable_target(request)


def writable_target(request: Request) -> Target:
    """Return the repository of this request, if the user can write to it.

    Raises:
        HubError: 401 without a token, 404 as for reading, 403 for a user who can only read.
    """
    target = readable_target_with_token(request)
    get_hub(request).access.require_write(target.user, target.namespace)
    return target


def require_user(user: User) -> str:
    """Return the user of this request's token.

    Raises:
        HubError: 401 without a token.
    """
    if user is None:
        raise HubError(401, "Invalid username or password.")
    return user


async def get_body(request: Request, user: User) -> bytes:
    """Return the body of this request. A route names it after what authorizes the request, which is then checked first."""
    return await limits.read_body(request, limits.BODY_BYTES if user else limits.ANONYMOUS_BYTES)


User = Annotated[str | None, Depends(get_user)]
Readable = Annotated[Target, Depends(readable_target)]
Browsable = Annotated[Target, Depends(browsable_target)]
Participant = Annotated[Target, Depends(readable_target_with_token)]
Writable = Annotated[Target, Depends(writable_target)]
RequiredUser = Annotated[str, Depends(require_user)]
Reader = Annotated[str | None, Depends(get_reader)]
Body = Annotated[bytes, Depends(get_body)]


class JsonBody(BaseModel):
    """What a request sends as JSON. FastAPI would read a body of its own before it calls any dependency."""

    @classmethod
    def read(cls, body: Body) -> Self:
        """Return the body of this request."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                raise HubError(400, f"The request is not valid JSON: {error.errors()[0]['msg']}") from None
            raise RequestValidationError(error.errors()) from None


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


def entry_json(entry: Entry, commit: CommitRecord | None = None) -> Json:
    """Return a file or folder in the JSON format of tree and paths-info, with the last commit that changed it if given."""
    kind = "directory" if entry.is_folder else "file"
    fields: Json = {"type": kind, "oid": entry.oid, "size": entry.size, "path": entry.path}
    if entry.sha256:
        fields["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    if commit:
        fields["lastCommit"] = {"id": commit.sha, "title": commit.title, "date": iso_date(commit.time)}
    return fields


def iso_date(seconds: int) -> str:
    """Format seconds since 1970 as the Hub does."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
