"""Routes that download files, whole or in part. A file may hold anything that a user has uploaded.

HTML is shown, because reports are HTML, but in a sandbox: it runs no script, sends no form, makes no request to any host,
this Hub included, and has no access to the Hub's own pages.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import FileResponse, Response

from tasks.hub_server.errors import HubError
from tasks.hub_server.requests import Browsable, Quoted

_TEXT = "text/plain; charset=utf-8"
_TEXTS = (
    *(".cff", ".cfg", ".css", ".csv", ".gitattributes", ".ini", ".jinja", ".js", ".json", ".jsonl", ".log", ".md"),
    *(".py", ".rst", ".sh", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml"),
)
_IMAGES = {f".{name}": f"image/{name}" for name in ("png", "jpeg", "gif", "webp", "avif")}
_TYPES = {**dict.fromkeys(_TEXTS, _TEXT), **_IMAGES, ".jpg": "image/jpeg", ".svg": "image/svg+xml"}
_TYPES |= dict.fromkeys((".html", ".htm"), "text/html; charset=utf-8")
_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}

repository_router = APIRouter()


def _close_after_answer() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@repository_router.api_route("/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
def download_file(
    target: Browsable,
    revision: Quoted,
    path: Quoted,
    opened: Annotated[ExitStack, Depends(_close_after_answer)],
    download: str = "",
) -> Response:
    repository = target.repository
    sha = repository.resolve(revision)
    try:
        entry = repository.entry(sha, path)
    except HubError as error:
        error.headers["X-Repo-Commit"] = sha  # the client caches under it that the file does not exist
        raise
    etag, name = entry.sha256 or entry.oid, path.rpartition("/")[2]
    disposition = "attachment" if download == "true" else "inline"
    headers = _HEADERS | {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Content-Type": content_type(path)}
    headers["Content-Disposition"] = f"{disposition}; filename*=UTF-8''{quote(name, safe='')}"
    if entry.sha256:
        if repository.large_files.size(entry.sha256) != entry.size:
            raise HubError(404, f"{path} at {sha} points to a large file that is not stored", "EntryNotFound")
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(entry.size)}
        large_file = repository.large_files.path(entry.sha256)
        file: IO[bytes] = opened.enter_context(large_file.open("rb"))  # now, because the repository may be deleted
    else:
        file = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
        file.write(repository.read(entry))
        file.seek(0)
    return FileResponse(f"/dev/fd/{file.fileno()}", headers=headers, stat_result=os.fstat(file.fileno()))


def content_type(path: str) -> str:
    """Return the content type of a file; plain text or bytes for everything that a browser should not interpret."""
    name = path.rpartition("/")[2].lower()
    return _TYPES.get("." + name.rpartition(".")[2], "application/octet-stream") if "." in name else _TEXT


def opens_in_browser(path: str) -> bool:
    """Whether a link should lead to the file itself and not to a page about it."""
    return content_type(path).startswith(("text/html", "image/"))
