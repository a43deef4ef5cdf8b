"""The ASGI application of the local Hub: its routes, and errors as HTTP answers."""

from __future__ import annotations

from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.hub_server import (
    routes_descriptions,
    routes_downloads,
    routes_pages,
    routes_pull_requests,
    routes_repositories,
    routes_revisions,
    routes_sign_in,
    routes_uploads,
)
from tasks.hub_server.errors import HubError, repository_not_found
from tasks.hub_server.limits import HostCheck
from tasks.hub_server.page_templates import render_page
from tasks.hub_server.requests import PAGES, Hub, get_kind, get_user, open_target
from tasks.hub_server.store import KINDS

_NOT_HERE = frozenset({"-", "api", "buckets", "kernels", "papers", "spaces", "uploads"})
"""How the paths begin of what a Hub can have."""


def build_application(hub: Hub) -> ASGIApp:
    """Build the application that serves `hub`."""
    app = FastAPI(openapi_url=None)
    app.state.hub = hub
    app.include_router(routes_repositories.router)
    app.include_router(routes_descriptions.router)
    app.include_router(routes_revisions.router)
    app.include_router(routes_uploads.router)
    app.include_router(routes_pull_requests.router)
    app.include_router(routes_sign_in.router)  # before the pages, which would take `-` for a namespace
    app.include_router(routes_pages.router)
    for path in PAGES:
        app.include_router(routes_downloads.router, prefix=path)
        app.include_router(routes_pages.repository_router, prefix=path)
        app.include_router(routes_pull_requests.page_router, prefix=path)

    @app.exception_handler(HubError)
    def answer_error(request: Request, error: HubError) -> Response:
        headers = {"X-Error-Message": _header_text(error.message)} | error.headers
        if error.code:
            headers["X-Error-Code"] = error.code
        if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
            user = hub.sessions.user(request.cookies)
            answer = render_page("error.html", user=user, status=error.status, context={"message": error.message})
            answer.headers.update(headers)
            return answer
        return JSONResponse({"error": error.message, **error.details}, error.status, headers)

    @app.exception_handler(HTTPException)
    def answer_unknown_route(request: Request, error: HTTPException) -> Response:
        """What a Hub can have and this one has not gets 501. A name without a namespace, such as `gpt2`, is no repository."""
        path = request.url.path
        if error.status_code not in (404, 405):
            return answer_error(request, HubError(error.status_code, str(error.detail)))
        _, first, kind, namespace, name, *_ = map(unquote, f"{path}////".split("/"))
        if first == "api" and kind in KINDS:
            try:
                open_target(hub, kind, namespace, name, get_user(request))
            except HubError as missing:
                return answer_error(request, missing)
        elif "/resolve/" in path and first not in _NOT_HERE:
            return answer_error(request, repository_not_found())
        status = 501 if first in _NOT_HERE else error.status_code
        return answer_error(request, HubError(status, f"The local Hub has no {request.method} {path}"))

    @app.exception_handler(RequestValidationError)
    def answer_malformed_request(request: Request, error: RequestValidationError) -> Response:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        return answer_error(request, HubError(400, f"The request is malformed: {details}"))

    @app.exception_handler(TimeoutError)
    @app.exception_handler(ClientDisconnect)
    def answer_slow_client(request: Request, _: Exception) -> Response:
        return answer_error(request, HubError(408, "The request's body did not arrive in time"))

    @app.exception_handler(FileNotFoundError)
    def answer_deleted_repository(request: Request, error: FileNotFoundError) -> Response:
        """A repository may be deleted while its large files are read or written."""
        parts = {name: unquote(value) for name, value in request.path_params.items()}
        if "namespace" in parts and not hub.store.exists(get_kind(request), parts["namespace"], parts["name"]):
            return answer_error(request, repository_not_found())
        raise error

    @app.exception_handler(UnicodeEncodeError)
    def answer_invalid_unicode(request: Request, _: UnicodeEncodeError) -> Response:
        """JSON can hold half of a surrogate pair; a file name or message cannot."""
        return answer_error(request, HubError(400, "The request contains text that is not valid Unicode"))

    return _QuotedPath(HostCheck(app, is_local=hub.is_local))


class _QuotedPath:
    """Give the routes the percent-encoded path, so that an encoded slash does not split a revision in two."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


def _header_text(text: str) -> str:
    """Return `text` in printable ASCII, because messages quote what the client sent."""
    plain = " ".join(text.encode("ascii", "replace").decode().split())
    return "".join(char if char.isprintable() else "?" for char in plain)
