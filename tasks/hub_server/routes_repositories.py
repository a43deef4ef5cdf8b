"""Routes for repositories: whoami, create, delete, list and describe."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from tasks.hub_server.card_metadata import read_card, split_card
from tasks.hub_server.errors import HubError, repository_not_found
from tasks.hub_server.limits import BODY_BYTES
from tasks.hub_server.records import Entry
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import (
    API,
    Body,
    Quoted,
    Readable,
    RequiredUser,
    Target,
    User,
    entry_json,
    get_endpoint,
    get_hub,
    iso_date,
    json_body,
    link_next,
    readable_target,
    writable_target,
)

TREE_PAGE = 1000

router = APIRouter()


@router.get("/api/whoami-v2")
def whoami(request: Request, user: RequiredUser) -> dict[str, object]:
    """The user of the token."""
    token = {"displayName": "local", "role": "write"}
    auth = {"type": "access_token", "accessToken": token}
    teams = [{"type": "org", "name": team, "roleInOrg": "write"} for team in get_hub(request).access.teams(user)]
    return {"type": "user", "id": user, "name": user, "fullname": user, "orgs": teams, "auth": auth}


class RepositoryBody(BaseModel):
    """The body of repos/delete."""

    name: str
    organization: str | None = None
    type: str = "model"


class CreateBody(RepositoryBody):
    """The body of repos/create."""

    visibility: str = "public"


@router.post("/api/repos/create")
def create_repository(
    request: Request, user: RequiredUser, new: Annotated[CreateBody, Depends(json_body(CreateBody))]
) -> dict[str, object]:
    """Create a repository in the user's own namespace or in `organization`."""
    hub = get_hub(request)
    namespace = new.organization or user
    writer = hub.access.require_write(user, namespace)
    kind = f"{new.type}s"
    page = f"{namespace}/{new.name}" if kind == "models" else f"{kind}/{namespace}/{new.name}"
    url = f"{get_endpoint(request)}/{page}"
    try:
        hub.store.create(kind, namespace, new.name, private=new.visibility == "private", user=writer)
    except HubError as error:
        if error.status == 409:
            error.details["url"] = url  # what create_repo(exist_ok=True) returns
        raise
    return {"url": url, "name": f"{namespace}/{new.name}", "id": page}


@router.delete("/api/repos/delete")
def delete_repository(
    request: Request, user: RequiredUser, old: Annotated[RepositoryBody, Depends(json_body(RepositoryBody))]
) -> dict[str, object]:
    """Delete a repository."""
    hub = get_hub(request)
    namespace, kind = old.organization or user, f"{old.type}s"
    if not hub.access.can_write(user, namespace) and hub.store.open(kind, namespace, old.name).private:
        raise repository_not_found()
    hub.access.require_write(user, namespace)
    hub.store.delete(kind, namespace, old.name)
    return {}


@router.get("/api/{kind}")
def list_repositories(
    *,
    request: Request,
    kind: Quoted,
    user: User,
    author: str = "",
    search: str = "",
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1000,
) -> list[dict[str, object]]:
    """The repositories that the user can see, by name."""
    hub = get_hub(request)
    found: list[dict[str, object]] = []
    for namespace, name, repository in hub.store.list(kind):
        id_ = f"{namespace}/{name}"
        if len(found) == limit:
            break
        if author not in ("", namespace) or search.lower() not in id_.lower():
            continue
        with contextlib.suppress(HubError):  # it was deleted in the meantime
            private = repository.private
            if not private or hub.access.can_write(user, namespace):
                found.append({"id": id_, "modelId": id_, "author": namespace, "private": private})
    return found


@router.get(API)
@router.get(API + "/revision/{revision}")
def describe(
    *, target: Readable, response: Response, revision: Quoted = MAIN, blobs: bool = False
) -> dict[str, object]:
    """The repository at a revision, by default at main."""
    repository = target.repository
    sha = repository.resolve(revision)
    response.headers["X-Repo-Commit"] = sha
    files = [entry for entry in repository.entries(sha, recursive=True) if not entry.is_folder]
    modified = iso_date(repository.history(sha, skip=0, limit=1)[0].time)
    metadata = _metadata(target, sha)
    return {
        "_id": target.page,
        "id": target.id,
        "modelId": target.id,
        "author": target.namespace,
        "sha": sha,
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [tag for tag in _as_list(metadata.get("tags")) if isinstance(tag, str)],
        "cardData": metadata,
        **{key: value for key, value in metadata.items() if key in _TOP_LEVEL_KEYS and isinstance(value, str)},
        "lastModified": modified,
        "siblings": [_sibling(entry, blobs=blobs) for entry in files],
    }


_TOP_LEVEL_KEYS = ("pipeline_tag", "library_name")


def _metadata(target: Target, sha: str) -> dict[str, object]:
    """Return the metadata of the card at a commit; empty if there is none or it is invalid."""
    try:
        entry = target.repository.entry(sha, "README.md")
    except HubError:
        return {}
    if entry.sha256 or entry.size > BODY_BYTES:
        return {}
    card = read_card(target.repository.read(entry).decode(errors="replace"), is_model=target.kind == "models")
    return {} if card.errors else card.metadata or {}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _sibling(entry: Entry, *, blobs: bool) -> dict[str, object]:
    fields: dict[str, object] = {"rfilename": entry.path}
    if blobs:
        fields |= {"size": entry.size, "blobId": entry.oid}
        if entry.sha256:
            fields["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return fields


@router.get(API + "/auth-check", dependencies=[Depends(readable_target)])
def check_read() -> dict[str, object]:
    """Check that the user can read the repository."""
    return {}


@router.get(API + "/auth-check/write", dependencies=[Depends(writable_target)])
def check_write() -> dict[str, object]:
    """Check that the user can write to the repository."""
    return {}


@router.get(API + "/tree/{revision}")
@router.get(API + "/tree/{revision}/{folder:path}")
def list_tree(
    *,
    request: Request,
    target: Readable,
    revision: Quoted,
    folder: Quoted = "",
    response: Response,
    recursive: bool = False,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> list[dict[str, object]]:
    """One page of the files and folders of a commit; the `Link` header holds the next page."""
    sha = target.repository.resolve(revision)
    found = target.repository.entries(sha, folder, recursive=recursive)
    response.headers["X-Repo-Commit"] = sha
    if len(found) > cursor + TREE_PAGE:
        link_next(request, response, {"recursive": str(recursive), "cursor": str(cursor + TREE_PAGE)})
    return [entry_json(entry) for entry in found[cursor : cursor + TREE_PAGE]]


@router.post(API + "/paths-info/{revision}")
def describe_paths(target: Readable, revision: Quoted, body: Body) -> list[dict[str, object]]:
    """The files and folders that exist among `paths` of the form in the body."""
    sha = target.repository.resolve(revision)
    requested = set(parse_qs(body.decode(errors="replace")).get("paths", []))
    return [entry_json(entry) for entry in target.repository.entries(sha, recursive=True) if entry.path in requested]


class ValidateCard(BaseModel):
    """The body of validate-yaml: a README.md."""

    content: str
    repo_type: str = Field(default="model", alias="repoType")


_ANONYMOUS_CHARACTERS = 16 << 10
_anonymous_cards = threading.BoundedSemaphore(2)


@router.post("/api/validate-yaml")
def validate_card(
    user: User, sent: Annotated[ValidateCard, Depends(json_body(ValidateCard))], response: Response
) -> dict[str, object]:
    """The errors and warnings in the metadata of a card. YAML takes long to parse, so who has no token gets a small share."""
    with contextlib.ExitStack() as stack:
        if user is None:
            if len(split_card(sent.content)[0] or "") > _ANONYMOUS_CHARACTERS:
                what = f"Metadata of more than {_ANONYMOUS_CHARACTERS} characters are checked only with a token"
                raise HubError(413, what)
            if not _anonymous_cards.acquire(blocking=False):
                raise HubError(503, "Other cards are being checked: try again in a moment")
            stack.callback(_anonymous_cards.release)
        card = read_card(sent.content, is_model=sent.repo_type == "model")
    response.status_code = 400 if card.errors else 200
    return {
        "errors": [{"message": message} for message in card.errors],
        "warnings": [{"message": message} for message in card.warnings],
    }
