"""What the routes of the local Hub have in common: how a request names a repository, a revision and a user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote, urlencode

from fastapi import Depends, Request, Response
from pydantic import AfterValidator

from tasks.hub_server.access import Access
from tasks.hub_server.records import Entry
from tasks.hub_server.refusals import repository_not_found
from tasks.hub_server.repositories import Repository
from tasks.hub_server.sessions import Sessions
from tasks.hub_server.store import Store

Quoted = Annotated[str, AfterValidator(unquote)]
"""A part of the path, which routes see still quoted: a revision such as `refs%2Fheads%2Fmain` is one part."""


@dataclass(frozen=True)
class Hub:
    """What every request needs; `request.app.state.hub`."""

    store: Store
    access: Access
    sessions: Sessions
    part_bytes: int
    """Large files above this size are uploaded in parts of it."""
    is_local: bool = True
    """Whether only this machine is served."""


def hub_of(request: Request) -> Hub:
    """The Hub that this request is addressed to."""
    hub = request.app.state.hub
    assert isinstance(hub, Hub)
    return hub


def endpoint_of(request: Request) -> str:
    """The address by which the asker reaches this Hub, which a tunnel or a second network may make another than ours."""
    return f"{request.url.scheme}://{request.url.netloc}"


def user_of(request: Request) -> str | None:
    """The user whose token came with the request; None without one. Only this lets anybody write."""
    return hub_of(request).access.user(request.headers.get("authorization", ""))


def reader_of(request: Request) -> str | None:
    """The user who reads: by token, or by having signed in with a browser. For GET and HEAD alone."""
    assert request.method in ("GET", "HEAD"), "a browser sends its cookie whoever made it ask: it must change nothing"
    return user_of(request) or hub_of(request).sessions.user(request.cookies)


@dataclass(frozen=True)
class Target:
    """The repository that a request names."""

    kind: str
    namespace: str
    name: str
    repository: Repository
    user: str | None

    @property
    def id(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def page(self) -> str:
        """The path of the repository's page, from which the client reads its id."""
        return self.id if self.kind == "models" else f"{self.kind}/{self.id}"


def readable_target(request: Request) -> Target:
    """The repository of this request, if the user may know of it.

    Raises:
        RefusedError: 404 RepoNotFound, for a missing repository as for a private one of others.
    """
    return _target(request, user_of(request))


def browsable_target(request: Request) -> Target:
    """The same for a page or a download, which a browser may ask for by its cookie."""
    return _target(request, reader_of(request))


def kind_of(request: Request) -> str:
    """Whether the path of this request is one of `models` or of `datasets`."""
    is_dataset = request.url.path.startswith("/datasets/")
    return unquote(request.path_params.get("kind") or ("datasets" if is_dataset else "models"))


def _target(request: Request, user: str | None) -> Target:
    parts = {name: unquote(value) for name, value in request.path_params.items()}
    kind, namespace, name = kind_of(request), parts["namespace"], parts["name"]
    hub = hub_of(request)
    repository = hub.store.open(kind, namespace, name)
    if not hub.access.may_write(user, namespace) and repository.private:
        raise repository_not_found()
    return Target(kind, namespace, name, repository, user)


def writable_target(request: Request) -> Target:
    """The repository of this request, if the user may write it.

    Raises:
        RefusedError: 401 without a token, 404 as for reading, 403 for a user who may only read.
    """
    if user_of(request) is None:
        hub_of(request).access.require_write(None, "")
    target = readable_target(request)
    hub_of(request).access.require_write(target.user, target.namespace)
    return target


async def body_of(request: Request) -> bytes:
    """The whole body of this request."""
    return await request.body()


Readable = Annotated[Target, Depends(readable_target)]
Browsable = Annotated[Target, Depends(browsable_target)]
Writable = Annotated[Target, Depends(writable_target)]
Reader = Annotated[str | None, Depends(reader_of)]
User = Annotated[str | None, Depends(user_of)]
Body = Annotated[bytes, Depends(body_of)]


def entry_json(entry: Entry) -> dict[str, object]:
    """A file or folder as the Hub's tree and paths-info answers show it."""
    kind = "directory" if entry.is_folder else "file"
    shown: dict[str, object] = {"type": kind, "oid": entry.oid, "size": entry.size, "path": entry.path}
    if entry.sha256:
        shown["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return shown


def iso_date(seconds: int) -> str:
    """Seconds since 1970 as the Hub writes a time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def link_next(request: Request, response: Response, query: dict[str, str]) -> None:
    """Name the next page of an answer in its header `Link`."""
    url = f"{endpoint_of(request)}{request.url.path}?{urlencode(query)}"
    response.headers["Link"] = f'<{url}>; rel="next"'
