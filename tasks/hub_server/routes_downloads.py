"""Routes that download files, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from fastapi import APIRouter, Request
from starlette.background import BackgroundTask
from starlette.responses import Response, StreamingResponse

from tasks.hub_server.content_types import file_headers
from tasks.hub_server.errors import HubError
from tasks.hub_server.large_files import BLOCK_BYTES
from tasks.hub_server.requests import Browsable, Quoted

router = APIRouter()
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@router.api_route("/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
def download(request: Request, target: Browsable, revision: Quoted, path: Quoted) -> Response:
    """A file at a revision."""
    repository = target.repository
    sha = repository.resolve(revision)
    try:
        entry = repository.entry(sha, path)
    except HubError as error:
        error.headers["X-Repo-Commit"] = sha  # the client caches under it that the file does not exist
        raise
    large = repository.large_files.path(entry.sha256) if entry.sha256 else None
    if large and repository.large_files.size(str(entry.sha256)) != entry.size:
        raise HubError(404, f"{path} at {sha} points to a large file that is not stored", "EntryNotFound")
    size, etag = entry.size, entry.sha256 or entry.oid
    headers = file_headers(path, as_attachment=request.query_params.get("download") == "true")
    headers |= {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
    if large:
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(size)}

    byte_range = _requested_range(request.headers.get("range", ""), size)
    if byte_range is None:
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{size}"})
    start, stop = byte_range
    partial = stop - start < size
    if partial:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    status = 206 if partial else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    if large:
        file = large.open("rb")  # before the answer starts, because the repository may be deleted
        content, close = _blocks(file, start, stop), BackgroundTask(file.close)
        return StreamingResponse(content, status_code=status, headers=headers, background=close)
    return Response(repository.read(entry)[start:stop], status_code=status, headers=headers)


def _requested_range(header: str, size: int) -> tuple[int, int] | None:
    """Return start and stop of the bytes to send; None if the range lies outside the file.

    Any other header, such as several ranges or numbers of more than 18 digits, is ignored and the whole file is sent
    (RFC 9110, section 14.2).
    """
    match = _RANGE.fullmatch(header)
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match.groups()
    if not first:  # bytes=-N: the last N bytes
        return (max(0, size - int(last)), size) if int(last) and size else None
    start, stop = int(first), min(int(last) + 1 if last else size, size)
    return (start, stop) if start < stop else None


def _blocks(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (block := file.read(min(BLOCK_BYTES, stop - start))):
        start += len(block)
        yield block
