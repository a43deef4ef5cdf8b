"""Routes that upload a commit: preupload, large files (git-lfs batch), then the commit itself.

    POST .../preupload/<revision>       which files are part of the commit request, and which are large files
    POST .../info/lfs/objects/batch     upload URLs for the large files that are not stored yet
    PUT  /uploads/...                   the content of a large file (a signed URL, no token)
    POST .../commit/<revision>          lines of JSON: a header, then one line for each change

Nothing is visible before the commit. The commit goes to a branch, to a pull request (refs/pr/<number>) or, with
`create_pr`, to a new one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from dulwich.attrs import GitAttributes
from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import RedirectResponse

from tasks.hub_server import limits
from tasks.hub_server.card_metadata import read_card
from tasks.hub_server.errors import HubError, not_implemented
from tasks.hub_server.git_objects import Change, DeleteFile, DeleteFolder, PutFile, PutLargeFile, commit_message
from tasks.hub_server.git_rules import read_attributes, read_ignore
from tasks.hub_server.large_files import LargeFiles
from tasks.hub_server.limits import transfer_timeout
from tasks.hub_server.names import pull_number
from tasks.hub_server.repositories import LARGE_SUFFIXES, MAIN
from tasks.hub_server.requests import (
    API,
    Json,
    JsonBody,
    Participant,
    Quoted,
    Target,
    get_endpoint,
    get_hub,
    readable_target_with_token,
    writable_target,
)

REGULAR_BYTES = 10 << 20
"""Files larger than this are large files, whatever their suffix."""
_MAX_LARGE_BYTES = 1 << 40
_MAX_BATCH = 1000
_RULES: Mapping[str, Callable[[bytes], object]] = {".gitignore": read_ignore, ".gitattributes": read_attributes}

router = APIRouter()


def committable_target(request: Request, revision: Quoted, *, create_pr: bool = False) -> Target:
    """Return the repository of this request, if the user can commit to the revision.

    Everyone who can read can propose a commit as a new pull request, and its author can add commits to it.

    Raises:
        HubError: 401 without a token, 404 as for reading, 403 without permission.
    """
    number = pull_number(revision)
    if not create_pr and number is None:
        return writable_target(request)
    target = readable_target_with_token(request)
    if number is not None:
        target.repository.resolve(revision)
        target.pull_requests.require_author(target.pull_requests.get(number))
    return target


Committable = Annotated[Target, Depends(committable_target)]


async def get_commit_body(request: Request, _: Committable) -> bytes:
    """Return the body of a commit."""
    return await limits.read_body(request, limits.COMMIT_BYTES)


@router.get(API + "/xet-write-token/{revision}")
def refuse_xet_upload() -> RedirectResponse:
    """Lead to a 501. hf-xet shows nothing of an answer but its status and this last address."""
    return RedirectResponse("/-/this-hub-has-no-xet-storage:set-HF_HUB_DISABLE_XET=1")


class AnnouncedFile(JsonBody):
    """A file of the next commit."""

    path: str
    size: int
    sample: str = ""
    """The first 512 bytes, in base64."""


class Preupload(JsonBody):
    """The body of preupload."""

    files: list[AnnouncedFile]
    ignore: str | None = Field(default=None, alias="gitIgnore")
    """A `.gitignore` that is uploaded, too; it replaces that of the repository."""


@router.post(API + "/preupload/{revision}")
def preupload(target: Committable, revision: Quoted, announced: Annotated[Preupload, Depends(Preupload.read)]) -> Json:
    """How to upload each file, whether `.gitignore` leaves it out, and the id of its present content."""
    sha = target.repository.resolve(revision)
    present = {entry.path: entry for entry in target.repository.entries(sha, recursive=True)}

    def rules(name: str) -> bytes:
        found = present.get(name)
        return b"" if found is None or found.is_folder or found.sha256 else target.repository.read(found)

    ignored = read_ignore(rules(".gitignore") if announced.ignore is None else announced.ignore.encode())
    attributes = read_attributes(rules(".gitattributes"))
    return {
        "files": [
            {
                "path": file.path,
                "uploadMode": "lfs" if _is_large(file, attributes) else "regular",
                "shouldIgnore": bool(ignored.is_ignored(file.path)),
                "oid": present[file.path].sha256 or present[file.path].oid if file.path in present else None,
            }
            for file in announced.files
        ]
    }


def _is_large(file: AnnouncedFile, attributes: GitAttributes) -> bool:
    """Return whether a file is a large file: by `.gitattributes`, by its suffix unless they say no, or by its content."""
    rule = attributes.match_path(file.path.encode()).get(b"filter")
    has_suffix = "." + file.path.rpartition(".")[2].lower() in LARGE_SUFFIXES
    is_named = rule == b"lfs" or (rule is None and has_suffix)
    return is_named or file.size > REGULAR_BYTES or b"\0" in _base64(file.sample)


class LargeObject(JsonBody):
    """A large file: SHA-256 and size."""

    oid: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0, le=_MAX_LARGE_BYTES)


class Batch(JsonBody):
    """The body of the git-lfs batch request."""

    operation: str = "upload"
    objects: list[LargeObject] = Field(max_length=_MAX_BATCH)


@router.post("/{namespace}/{name}.git/info/lfs/objects/batch")
@router.post("/datasets/{namespace}/{name}.git/info/lfs/objects/batch")
def request_uploads(request: Request, target: Participant, batch: Annotated[Batch, Depends(Batch.read)]) -> Json:
    """Upload URLs of the objects; an object that is stored already gets none. They may be for a pull request."""
    if batch.operation != "upload":
        raise HubError(501, "The batch API serves uploads only: download from /resolve/")
    objects = []
    for item in batch.objects:
        answer: Json = {"oid": item.oid, "size": item.size}
        if not target.repository.large_files.renew(item.oid, item.size):
            parts = (target.kind, target.namespace, target.name, item.oid, str(item.size))
            signature = get_hub(request).access.sign(*parts)
            url = f"{get_endpoint(request)}/uploads/{'/'.join(map(quote, parts))}?signature={signature}"
            answer["actions"] = {"upload": {"href": url, "header": {}}}
        objects.append(answer)
    return {"transfer": "basic", "objects": objects}


async def _signed_upload(request: Request, signature: Annotated[str, Query()] = "") -> LargeFiles:
    """Return the large files of the repository in a signed URL."""
    hub, parts = get_hub(request), request.path_params
    hub.access.check_signature(signature, *(parts[name] for name in ("kind", "namespace", "name", "sha256", "size")))
    return hub.store.open(parts["kind"], parts["namespace"], parts["name"]).large_files


@router.put("/uploads/{kind}/{namespace}/{name}/{sha256}/{size}")
async def upload(
    request: Request, files: Annotated[LargeFiles, Depends(_signed_upload)], sha256: str, size: int
) -> Json:
    """Upload a large file, in one piece: the limit for which huggingface.co asks for parts is that of its storage."""
    async with transfer_timeout(size):
        await files.receive(sha256, size, request.stream())
    return {}


@router.post(API + "/commit/{revision}")
def commit(
    *,
    request: Request,
    target: Committable,
    revision: Quoted,
    body: Annotated[bytes, Depends(get_commit_body)],
    create_pr: bool = False,
) -> Json:
    """Add a commit to a branch or a pull request, or make a new pull request of it."""
    header, changes = _parse_commit(body)
    title, description, parent = header.get("summary"), str(header.get("description") or ""), header.get("parentCommit")
    if not isinstance(title, str) or not title.strip():
        raise HubError(400, "The commit has no summary")
    if "\0" in title + description:  # git refuses it
        raise HubError(400, "The commit message contains a NUL character")
    if not isinstance(parent, str | None):
        raise HubError(400, "parentCommit is not a string")
    _validate_files(target, changes)
    pull_requests, number = target.pull_requests, pull_number(revision)
    page = f"{get_endpoint(request)}/{target.page}"
    answer: Json = {"success": True, "hookOutput": ""}
    if create_pr:
        if revision.removeprefix("refs/heads/") != MAIN:
            raise not_implemented(f"pull requests for other branches than {MAIN}, such as {revision}")
        found, sha = pull_requests.create(changes, title=title, description=description, parent=parent)
        answer["pullRequestUrl"] = f"{page}/discussions/{found.number}"
    elif number is not None:
        sha = pull_requests.commit(number, changes, message=commit_message(title, description), parent=parent)
    else:
        branch, user = revision.removeprefix("refs/heads/"), pull_requests.user
        sha = target.repository.commit(branch, changes, title=title, description=description, parent=parent, user=user)
    return answer | {"commitOid": sha, "commitUrl": f"{page}/commit/{sha}"}


def _validate_files(target: Target, changes: list[Change]) -> None:
    """Validate a commit's card, which not every client does before, and the rules for later uploads."""
    for change in changes:
        if isinstance(change, PutFile) and change.path in _RULES:
            _RULES[change.path](change.content)
        if isinstance(change, PutFile) and change.path == "README.md":
            card = read_card(change.content.decode(errors="replace"), is_model=target.kind == "models")
            if card.errors:
                raise HubError(400, f"Invalid metadata in README.md: {'; '.join(card.errors)}")


def _parse_commit(body: bytes) -> tuple[dict[str, Any], list[Change]]:
    """Return the header and the changes of a commit."""
    header: dict[str, Any] = {}
    changes: list[Change] = []
    try:
        for line in filter(None, map(bytes.strip, body.splitlines())):
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "header":
                    header = dict(value)
                case "file" if value.get("encoding") == "base64":
                    changes.append(PutFile(_text(value["path"]), _base64(value["content"])))
                case "file":
                    changes.append(PutFile(_text(value["path"]), value["content"].encode()))
                case "lfsFile":
                    changes.append(PutLargeFile(_text(value["path"]), _text(value["oid"]), value.get("size")))
                case "deletedFile":
                    changes.append(DeleteFile(_text(value["path"])))
                case "deletedFolder":
                    changes.append(DeleteFolder(_text(value["path"])))
                case unknown:
                    raise HubError(400, f"Unknown operation in the commit: {unknown!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(400, f"A line of the commit is malformed: {error!r}") from None
    return header, changes


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is not a string")
    return value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise HubError(400, f"Not base64: {error}") from None
