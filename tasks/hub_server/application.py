"""The ASGI application of the local Hub: its routes, and how a refusal becomes an answer."""

from __future__ import annotations

from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.hub_server import (
    routes_downloads,
    routes_pages,
    routes_repositories,
    routes_revisions,
    routes_sign_in,
    routes_uploads,
)
from tasks.hub_server.bounds import BoundedRequests
from tasks.hub_server.page_templates import page
from tasks.hub_server.refusals import RefusedError, repository_not_found
from tasks.hub_server.requests import Hub, kind_of


def build_application(hub: Hub) -> ASGIApp:
    """The application that serves `hub`."""
    app = FastAPI(openapi_url=None)
    app.state.hub = hub
    app.include_router(routes_repositories.router)
    app.include_router(routes_revisions.router)
    app.include_router(routes_uploads.router)
    app.include_router(routes_downloads.router)
    app.include_router(routes_sign_in.router)  # before the pages, to which `-` could be a namespace
    app.include_router(routes_pages.router)

    @app.exception_handler(RefusedError)
    def refuse(request: Request, refusal: RefusedError) -> Response:
        headers = {"X-Error-Message": _header_text(refusal.message)} | refusal.headers
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
            user = hub.sessions.user(request.cookies)
            answer = page("missing.html", user=user, status=refusal.status, shown={"message": refusal.message})
            answer.headers.update(headers)
            return answer
        return JSONResponse({"error": refusal.message, **refusal.details}, refusal.status, headers)

    @app.exception_handler(HTTPException)
    def refuse_route(request: Request, error: HTTPException) -> Response:
        """A name without a namespace, such as `gpt2`, matches no route; it is a repository that is not here."""
        path = request.url.path
        names_repository = path.startswith(("/api/models/", "/api/datasets/")) or "/resolve/" in path
        if error.status_code == 404 and names_repository:
            return refuse(request, repository_not_found())
        unknown = error.status_code in (404, 405)
        message = f"The local Hub has no {request.method} {path}" if unknown else str(error.detail)
        return refuse(request, RefusedError(error.status_code, message))

    @app.exception_handler(RequestValidationError)
    def refuse_request(request: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors())
        return refuse(request, RefusedError(400, f"The request is malformed: {problems}"))

    @app.exception_handler(FileNotFoundError)
    @app.exception_handler(KeyError)
    def refuse_deleted(request: Request, error: Exception) -> Response:
        """A repository may be deleted at any moment, whatever is being read or written in it."""
        parts = {name: unquote(value) for name, value in request.path_params.items()}
        if "namespace" in parts and not hub.store.holds(kind_of(request), parts["namespace"], parts["name"]):
            return refuse(request, repository_not_found())
        raise error

    @app.exception_handler(UnicodeEncodeError)
    def refuse_text(request: Request, _: UnicodeEncodeError) -> Response:
        """JSON can spell half of a surrogate pair, which no file name or message can hold."""
        return refuse(request, RefusedError(400, "The request holds text that is not Unicode"))

    return _QuotedPath(BoundedRequests(app, is_local=hub.is_local))


class _QuotedPath:
    """Let the routes see the path as it was sent, so that a quoted slash does not split a revision in two."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


def _header_text(text: str) -> str:
    """`text` as a header can carry it: messages quote what was asked for, whatever it was."""
    plain = " ".join(text.encode("ascii", "replace").decode().split())
    return "".join(char if char.isprintable() else "?" for char in plain)
