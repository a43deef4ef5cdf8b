"""Routes that upload a commit: preupload, large files (git-lfs batch), then the commit itself.

    POST .../preupload/<revision>       which files are part of the commit request, and which are large files
    POST .../info/lfs/objects/batch     upload URLs for the large files that are not stored yet
    PUT  /uploads/...                   the content of a large file (a signed URL, no token)
    POST .../commit/<revision>          lines of JSON: a header, then one line for each change

Nothing is visible before the commit. The commit goes to a branch, to a pull request (refs/pr/<number>) or, with
`create_pr`, to a new one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import quote

from dulwich.attrs import GitAttributes, compile_gitattributes_patterns, parse_git_attributes
from dulwich.ignore import IgnoreFilter, read_ignore_patterns
from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.responses import RedirectResponse

from tasks.hub_server import limits, requests
from tasks.hub_server.card_metadata import parse_card
from tasks.hub_server.errors import HubError, not_implemented_error
from tasks.hub_server.git_objects import Change, PutFile, Sha256, commit_message
from tasks.hub_server.names import pull_request_number, to_full_ref
from tasks.hub_server.reader_shares import SHARE_BYTES
from tasks.hub_server.repositories import LARGE_SUFFIXES, MAIN

REGULAR_BYTES = 10 << 20
"""Files larger than this are large files, whatever their suffix."""
_MAX_LARGE_BYTES = 1 << 40
_MAX_BATCH = 1000
_MAX_RULES_BYTES = 64 << 10
_MAX_WILDCARDS = 4
"""Patterns become regular expressions, whose time grows with this power of a path's length."""

router = APIRouter()


def get_committable_repository(
    request: Request, target: requests.Participant, revision: requests.Quoted, *, create_pr: bool = False
) -> requests.RequestedRepository:
    """Return the repository of this request, if the user can commit to the revision; otherwise HubError 403.

    Everyone who can read can propose a commit as a new pull request, and its author can add commits to it.
    """
    number = pull_request_number(revision)
    if number is not None:
        target.repository.resolve(revision)
        target.pull_requests.require_author(target.pull_requests.get(number))
    elif not create_pr:
        requests.get_hub_state(request).access.require_write(target.user, target.namespace)
    return target


Committable = Annotated[requests.RequestedRepository, Depends(get_committable_repository)]


async def read_raw_commit_body(request: Request, target: Committable) -> bytes:
    return await limits.read_limited_body(request, limits.COMMIT_BYTES if target.can_write else SHARE_BYTES)


@router.get(requests.API + "/xet-write-token/{revision}")
def refuse_xet_upload() -> RedirectResponse:
    """Lead to a 501. hf-xet shows nothing of an answer but its status and this last address."""
    return RedirectResponse("/-/this-hub-has-no-xet-storage:set-HF_HUB_DISABLE_XET=1")


class _UploadBody(requests.JsonBody):
    """How a client wants to upload, where the server answers what it can: fields that it does not know may be ignored."""

    model_config = ConfigDict(extra="ignore")


class _AnnouncedFile(_UploadBody):
    path: str
    size: int
    sample: Base64Bytes = b""
    """The first 512 bytes."""


class _Preupload(_UploadBody):
    files: list[_AnnouncedFile]
    ignore: str | None = Field(default=None, alias="gitIgnore")
    """A `.gitignore` that is uploaded, too; it replaces that of the repository."""


@router.post(requests.API + "/preupload/{revision}")
def choose_upload_modes(
    target: Committable, revision: requests.Quoted, announced: Annotated[_Preupload, Depends(_Preupload.read)]
) -> requests.Json:
    """How to upload each file, whether `.gitignore` leaves it out, and the id of its present content."""
    sha = target.repository.resolve(revision)
    present = {entry.path: entry for entry in target.repository.entries(sha, recursive=True)}

    def rules(name: str) -> bytes:
        found = present.get(name)
        return b"" if found is None or found.is_folder or found.sha256 else target.repository.read(found)

    ignored = _read_ignore(rules(".gitignore") if announced.ignore is None else announced.ignore.encode())
    attributes = _read_attributes(rules(".gitattributes"))
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


def _is_large(file: _AnnouncedFile, attributes: GitAttributes) -> bool:
    """Return whether a file is a large file: by `.gitattributes`, by its suffix unless they say no, or by its content."""
    rule = attributes.match_path(file.path.encode()).get(b"filter")
    has_suffix = "." + file.path.rpartition(".")[2].lower() in LARGE_SUFFIXES
    is_named = rule == b"lfs" or (rule is None and has_suffix)
    return is_named or file.size > REGULAR_BYTES or b"\0" in file.sample


def _read_ignore(content: bytes) -> IgnoreFilter:
    patterns = list(read_ignore_patterns(io.BytesIO(content)))
    _check_rules(".gitignore", content, patterns)
    return IgnoreFilter(patterns)


def _read_attributes(content: bytes) -> GitAttributes:
    rules = list(parse_git_attributes(io.BytesIO(content)))
    _check_rules(".gitattributes", content, [pattern for pattern, _ in rules])
    return GitAttributes(compile_gitattributes_patterns(rules))


def _check_rules(name: str, content: bytes, patterns: list[bytes]) -> None:
    if len(content) > _MAX_RULES_BYTES:
        raise HubError(400, f"{name} has {len(content)} bytes, more than {_MAX_RULES_BYTES}")
    for pattern in patterns:
        if len(re.findall(rb"\*+", pattern)) > _MAX_WILDCARDS:
            shown = pattern.decode(errors="replace")
            raise HubError(400, f"A pattern in {name} has more than {_MAX_WILDCARDS} wildcards `*`: {shown!r:.100}")


_RULES: Mapping[str, Callable[[bytes], object]] = {".gitignore": _read_ignore, ".gitattributes": _read_attributes}


class _LargeObject(_UploadBody):
    oid: Sha256
    size: int = Field(ge=0, le=_MAX_LARGE_BYTES)


class _Batch(_UploadBody):
    operation: str = "upload"
    objects: list[_LargeObject] = Field(max_length=_MAX_BATCH)


@router.post("/{namespace}/{name}.git/info/lfs/objects/batch")
@router.post("/datasets/{namespace}/{name}.git/info/lfs/objects/batch")
def issue_upload_urls(
    request: Request, target: requests.Participant, batch: Annotated[_Batch, Depends(_Batch.read)]
) -> requests.Json:
    """Upload URLs of the objects; an object that is stored already gets none. They may be for a pull request."""
    if batch.operation != "upload":
        raise HubError(501, "The batch API serves uploads only: download from /resolve/")
    assert target.user is not None
    if not target.can_write:
        missing = [item.size for item in batch.objects if target.repository.large_files.size(item.oid) != item.size]
        target.repository.reader_shares.require_room(target.user, sum(missing))
    objects = []
    for item in batch.objects:
        answer: requests.Json = {"oid": item.oid, "size": item.size}
        if not target.repository.large_files.renew(item.oid, item.size):
            parts = (target.kind, target.namespace, target.name, item.oid, str(item.size))
            signature = requests.get_hub_state(request).access.sign(*parts, target.user)
            address = f"{requests.get_request_endpoint(request)}/uploads/{'/'.join(map(quote, parts))}"
            url = f"{address}?user={quote(target.user)}&signature={signature}"
            answer["actions"] = {"upload": {"href": url, "header": {}}}
        objects.append(answer)
    return {"transfer": "basic", "objects": objects}


@router.put("/uploads/{kind}/{namespace}/{name}/{sha256}/{size}")
async def receive_large_file(
    request: Request, sha256: str, size: int, user: str = "", signature: str = ""
) -> requests.Json:
    """Upload a large file, in one piece: the limit for which huggingface.co asks for parts is that of its storage."""
    hub, parts = requests.get_hub_state(request), request.path_params
    signed = (*(parts[name] for name in ("kind", "namespace", "name", "sha256", "size")), user)
    hub.access.check_signature(signature, *signed)
    request.state.user = user
    repository = hub.store.open(parts["kind"], parts["namespace"], parts["name"])

    def charge() -> None:
        with repository.writing():
            repository.reader_shares.charge(user, size)

    is_charged = not hub.access.can_write(user, parts["namespace"]) and repository.large_files.size(sha256) != size
    before = charge if is_charged else None
    await repository.large_files.receive(sha256, size, limits.read_blocks(request), before_storing=before)
    return {}


@router.post(requests.API + "/commit/{revision}")
def commit_changes(
    *,
    request: Request,
    target: Committable,
    revision: requests.Quoted,
    body: Annotated[bytes, Depends(read_raw_commit_body)],
    create_pr: bool = False,
) -> requests.Json:
    """Add a commit to a branch or a pull request, or make a new pull request of it."""
    header, changes = _parse_commit(body)
    title, description, parent = header.summary, header.description or "", header.parent
    for change in changes:  # rules for later uploads, and the card, which not every client validates before
        if isinstance(change, PutFile) and change.path in _RULES:
            _RULES[change.path](change.data)
        if isinstance(change, PutFile) and change.path == "README.md":
            card = parse_card(change.data.decode(errors="replace"), is_model=target.kind == "models")
            if card.errors:
                raise HubError(400, f"Invalid metadata in README.md: {'; '.join(card.errors)}")
    pull_requests, number = target.pull_requests, pull_request_number(revision)
    page = f"{requests.get_request_endpoint(request)}/{target.page}"
    answer: requests.Json = {"success": True, "hookOutput": ""}
    if create_pr:
        if revision.removeprefix("refs/heads/") != MAIN:
            raise not_implemented_error(f"pull requests for other branches than {MAIN}, such as {revision}")
        found, sha = pull_requests.create(changes, title=title, description=description, parent=parent, size=len(body))
        answer["pullRequestUrl"] = f"{page}/discussions/{found.number}"
    elif number is not None:
        message = commit_message(title, description)
        sha = pull_requests.commit(number, changes, message=message, parent=parent, size=len(body))
    else:
        ref, message = to_full_ref("heads", revision), commit_message(title, description)
        with target.repository.writing() as git:
            user = pull_requests.user
            sha = target.repository.commit(git, ref, changes, message=message, parent=parent, user=user)
    return answer | {"commitOid": sha, "commitUrl": f"{page}/commit/{sha}"}


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Literal["header"]
    summary: str = Field(pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")  # git refuses NUL characters
    description: str | None = Field(default=None, pattern=r"^[^\x00]*$")
    parent: str | None = Field(default=None, alias="parentCommit")


_LINE: TypeAdapter[_Header | Change] = TypeAdapter(Annotated[_Header | Change, Field(discriminator="key")])


def _parse_commit(body: bytes) -> tuple[_Header, list[Change]]:
    found: list[_Header | Change] = []
    try:
        for line in filter(None, map(bytes.strip, body.splitlines())):
            item = from_json(line)
            found.append(_LINE.validate_python({**item["value"], "key": item["key"]}))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    except (ValueError, KeyError, TypeError) as error:
        raise HubError(400, f"A line of the commit is malformed: {error!r}") from None
    headers = [item for item in found if isinstance(item, _Header)]
    if not headers:
        raise HubError(400, "The commit has no summary")
    return headers[-1], [item for item in found if not isinstance(item, _Header)]
