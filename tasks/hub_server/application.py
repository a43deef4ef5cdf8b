"""The ASGI application of the local Hub: its routes, and errors as HTTP answers.

The host name is checked against DNS rebinding: a website can let its own name resolve to 127.0.0.1 and then read, in the
browser of a user of this machine, what a local server answers. The Host header still holds the website's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import shutil
import tempfile
from functools import cache
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.hub_server import (
    routes_descriptions,
    routes_downloads,
    routes_pages,
    routes_pull_requests,
    routes_repositories,
    routes_uploads,
)
from tasks.hub_server.errors import HubError, no_permission_error, repository_not_found_error
from tasks.hub_server.page_templates import render_page
from tasks.hub_server.requests import (
    PAGES,
    HubState,
    find_session,
    get_repository_kind,
    get_token_user,
    open_visible_repository,
)
from tasks.hub_server.store import KINDS

_LOG = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_SERVER_ERROR, _NOT_IMPLEMENTED = 500, 501
_NOT_HERE = frozenset({"-", "api", "buckets", "kernels", "papers", "spaces", "uploads"})
"""How the paths begin of what a Hub can have."""


def build_application(hub: HubState) -> ASGIApp:
    """Build the application that serves `hub`."""
    app = FastAPI(openapi_url=None)
    app.state.hub = hub
    app.router.routes += _routes()
    for kind in (HubError, HTTPException, RequestValidationError, UnicodeEncodeError, ClientDisconnect, OSError):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hub.hosts, www_redirect=False)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, whose answer and errors have an id.

        The routes get the percent-encoded path, so that an encoded slash does not split a revision in two.
        """
        request_id = scope["state"]["request_id"] = secrets.token_hex(8)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        with contextlib.suppress(HubError):  # the routes answer it
            scope["state"]["user"] = hub.access.user(Headers(scope=scope).get("authorization", ""))
        path = scope["raw_path"].decode("ascii")
        try:
            await app({**scope, "path": path}, receive, send_with_id)
        except asyncio.CancelledError:
            _LOG.warning("request %s was cut off, because the Hub ends: %s %s", request_id, scope["method"], path)
        except Exception:
            _LOG.error("request %s failed: %s %s", request_id, scope["method"], path)
            raise

    return application


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of all Hubs of this process. FastAPI builds included ones when they are first asked for, in 0.07 s."""
    all_routes = APIRouter()
    for routes in (routes_repositories, routes_descriptions, routes_uploads, routes_pull_requests, routes_pages):
        all_routes.include_router(routes.router)
    for path in PAGES:
        for pages in (routes_downloads, routes_pages, routes_pull_requests):
            all_routes.include_router(pages.repository_router, prefix=path)
    return all_routes.routes


def _answer_error(request: Request, raised: Exception) -> Response:
    error = raised if isinstance(raised, HubError) else _as_hub_error(request, raised)
    if error.status >= _SERVER_ERROR and error.status != _NOT_IMPLEMENTED:
        _LOG.error("request %s: %s %s: %s", request.state.request_id, request.method, request.url.path, error.message)
    message = " ".join(error.message.encode("ascii", "replace").decode().split())  # it quotes what the client sent
    headers = {"X-Error-Message": "".join(char if char.isprintable() else "?" for char in message)} | error.headers
    if error.code:
        headers["X-Error-Code"] = error.code
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        user, _ = find_session(request)
        answer = render_page(
            "error.html",
            user=user,
            status=error.status,
            context={"message": error.message, "request_id": request.state.request_id},
        )
        answer.headers.update(headers)
        return answer
    return JSONResponse({"error": error.message, **error.details}, error.status, headers)


def _as_hub_error(request: Request, error: Exception) -> HubError:
    match error:
        case RequestValidationError():
            unknown = "is a field that this Hub does not know"
            said = [unknown if item["type"] == "extra_forbidden" else item["msg"] for item in error.errors()]
            places = [".".join(map(str, item["loc"])) for item in error.errors()]
            details = "; ".join(f"{place} {what}" for place, what in zip(places, said, strict=True))
            return HubError(400, f"The request is malformed: {details.strip()}")
        case UnicodeEncodeError():  # JSON can hold half of a surrogate pair; a file name or message cannot
            return HubError(400, "The request contains text that is not valid Unicode")
        case TimeoutError() | ClientDisconnect():
            return HubError(408, "The request's body did not arrive in time")
        case HTTPException():
            is_unknown = error.status_code in (404, 405)
            return (
                _unknown_route(request, error.status_code)
                if is_unknown
                else HubError(error.status_code, str(error.detail))
            )
        case OSError():
            return _system_error(request, error)
    raise error


def _system_error(request: Request, error: OSError) -> HubError:
    """Return the answer to what the operating system refuses; raise what is a fault of the Hub."""
    if error.errno in _NO_PERMISSION:
        return no_permission_error(request.app.state.hub.store.root, error)
    # A repository may be deleted while its large files are read or written.
    parts = {name: unquote(value) for name, value in request.path_params.items()}
    store = request.app.state.hub.store
    if "namespace" in parts and not store.exists(get_repository_kind(request), parts["namespace"], parts["name"]):
        return repository_not_found_error()
    if error.errno not in _FULL:
        raise error
    free = min(shutil.disk_usage(folder).free for folder in (store.root, tempfile.gettempdir())) // 2**20
    return HubError(507, f"A file of the Hub cannot be written: {error.strerror} ({free} MiB free there)")


def _unknown_route(request: Request, status: int) -> HubError:
    """What a Hub can have and this one has not gets 501. A name without a namespace, such as `gpt2`, is no repository."""
    path = request.url.path
    _, first, kind, namespace, name, *_ = map(unquote, f"{path}////".split("/"))
    if first == "api" and kind in KINDS:
        try:
            open_visible_repository(request.app.state.hub, kind, namespace, name, get_token_user(request))
        except HubError as missing:
            return missing
    elif "/resolve/" in path and first not in _NOT_HERE:
        return repository_not_found_error()
    return HubError(501 if first in _NOT_HERE else status, f"The local Hub has no {request.method} {path}")
