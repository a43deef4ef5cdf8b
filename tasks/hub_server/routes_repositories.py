"""Routes for repositories: whoami, create, delete, settings, rename, large files, access, tags, branches; cards."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import AliasPath, Field

from tasks.hub_server.card_metadata import parse_card, split_card
from tasks.hub_server.errors import HubError, not_implemented_error
from tasks.hub_server.git_objects import Sha256, find_large_files_in_history
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import (
    API,
    Json,
    JsonBody,
    Quoted,
    Readable,
    RequiredUser,
    User,
    Writable,
    format_hub_date,
    get_hub_state,
    get_request_endpoint,
    open_visible_repository,
)
from tasks.hub_server.store import KINDS

_MAX_BATCH = 1000

router = APIRouter()


@router.get("/api/whoami-v2")
def whoami(request: Request, user: RequiredUser) -> Json:
    """The user of the token."""
    token = {"displayName": "local", "role": "write"}
    auth = {"type": "access_token", "accessToken": token}
    writers = sorted(get_hub_state(request).access.writers.items())
    teams = [team for team, users in writers if user in users and user != team]
    orgs = [{"type": "org", "name": team, "roleInOrg": "write"} for team in teams]
    return {"type": "user", "id": user, "name": user, "fullname": user, "orgs": orgs, "auth": auth}


def _kind(repo_type: str) -> str:
    """Return the kind of repository as paths have it: `models` for `model`."""
    if f"{repo_type}s" not in KINDS:
        raise not_implemented_error(f"repositories of the type {repo_type!r}, only models and datasets")
    return f"{repo_type}s"


class _Repository(JsonBody):
    name: str
    organization: str | None = None
    type: str = "model"
    visibility: str = "public"


@router.post("/api/repos/create")
def create_repository(
    request: Request, user: RequiredUser, new: Annotated[_Repository, Depends(_Repository.read)]
) -> Json:
    """Create a repository in the user's own namespace or in `organization`."""
    hub, namespace, kind = get_hub_state(request), new.organization or user, _kind(new.type)
    hub.access.require_write(user, namespace)
    page = f"{namespace}/{new.name}" if kind == "models" else f"{kind}/{namespace}/{new.name}"
    url = f"{get_request_endpoint(request)}/{page}"
    try:
        hub.store.create(kind, namespace, new.name, private=new.visibility == "private", user=user)
    except HubError as error:
        if error.status == 409:
            error.details["url"] = url  # what create_repo(exist_ok=True) returns
        raise
    return {"url": url, "name": f"{namespace}/{new.name}", "id": page}


@router.delete("/api/repos/delete")
def delete_repository(
    request: Request, user: RequiredUser, old: Annotated[_Repository, Depends(_Repository.read)]
) -> Json:
    """Delete a repository."""
    hub = get_hub_state(request)
    namespace, kind = old.organization or user, _kind(old.type)
    open_visible_repository(hub, kind, namespace, old.name, user)
    hub.access.require_write(user, namespace)
    hub.store.delete(kind, namespace, old.name)
    return {}


class _Settings(JsonBody):
    visibility: str | None = None
    gated: Literal[False, "auto", "manual"] = False


@router.put(API + "/settings")
def set_repository_visibility(target: Writable, settings: Annotated[_Settings, Depends(_Settings.read)]) -> Json:
    """Make the repository public or private."""
    if settings.gated:
        raise not_implemented_error("gated access")
    if settings.visibility not in (None, "public", "private"):
        raise not_implemented_error(f"visibility {settings.visibility!r}: it is public or private")
    if settings.visibility:
        target.repository.set_private(settings.visibility == "private")
    return {"private": target.repository.private}


class _Move(JsonBody):
    from_repo: str = Field(alias="fromRepo", pattern="^[^/]+/[^/]+$")
    to_repo: str = Field(alias="toRepo", pattern="^[^/]+/[^/]+$")
    type: str = "model"


@router.post("/api/repos/move")
def move_repository(request: Request, user: RequiredUser, move: Annotated[_Move, Depends(_Move.read)]) -> Json:
    """Rename a repository. Nothing is at its old name afterwards, not even a redirect."""
    hub, kind = get_hub_state(request), _kind(move.type)
    (old_namespace, old), (namespace, name) = move.from_repo.split("/"), move.to_repo.split("/")
    open_visible_repository(hub, kind, old_namespace, old, user)
    for each in (old_namespace, namespace):
        hub.access.require_write(user, each)
    hub.store.move(kind, old_namespace, old, namespace, name)
    return {"url": f"/{namespace}/{name}"}


@router.get(API + "/lfs-files")
def list_large_files(target: Writable) -> list[Json]:
    """The large files that are stored, by path; whether or not a commit has them."""
    with target.repository.open() as git:
        places = find_large_files_in_history(git)
    found: list[Json] = []
    for file in target.repository.large_files.stored():
        path, ref = places.get(file.name, ("", None))
        with contextlib.suppress(FileNotFoundError):  # it was deleted in the meantime
            pushed, size = format_hub_date(int(file.stat().st_mtime)), file.stat().st_size
            ids = {"oid": file.name, "fileOid": file.name}
            found.append({**ids, "filename": path, "pushedAt": pushed, "ref": ref, "size": size})
    return sorted(found, key=lambda each: (each["filename"], each["pushedAt"]))


class _LargeFileDeletions(JsonBody):
    sha: list[Sha256] = Field(validation_alias=AliasPath("deletions", "sha"), max_length=_MAX_BATCH)
    rewrite_history: bool = Field(default=True, validation_alias=AliasPath("deletions", "rewriteHistory"))


@router.post(API + "/lfs-files/batch")
def delete_large_files(
    target: Writable, batch: Annotated[_LargeFileDeletions, Depends(_LargeFileDeletions.read)]
) -> Json:
    """Delete the content of large files for good. Commits keep their ids, by which receipts and rollbacks name them."""
    if batch.rewrite_history:
        raise not_implemented_error("rewriting of the history: pass rewrite_history=False, and commits keep their ids")
    with target.repository.writing():
        for sha256 in batch.sha:
            target.repository.large_files.path(sha256).unlink(missing_ok=True)
    return {}


@router.get(API + "/auth-check")
def check_read_access(_: Readable) -> Json:
    """Check that the user can read the repository."""
    return {}


@router.get(API + "/auth-check/write")
def check_write_access(_: Writable) -> Json:
    """Check that the user can write to the repository."""
    return {}


class _NewTag(JsonBody):
    tag: str


@router.post(API + "/tag/{revision}")
def create_tag(target: Writable, revision: Quoted, new: Annotated[_NewTag, Depends(_NewTag.read)]) -> Json:
    """Create a tag; a tag never moves."""
    target.repository.create_ref("tags", new.tag, target.repository.resolve(revision))
    return {}


@router.delete(API + "/tag/{tag}")
def delete_tag(target: Writable, tag: Quoted) -> Json:
    """Delete a tag."""
    target.repository.delete_ref("tags", tag)
    return {}


class _NewBranch(JsonBody):
    starting_point: str = Field(default=MAIN, alias="startingPoint")


@router.post(API + "/branch/{branch}")
def create_branch(target: Writable, branch: Quoted, new: Annotated[_NewBranch, Depends(_NewBranch.read)]) -> Json:
    """Create a branch."""
    target.repository.create_ref("heads", branch, target.repository.resolve(new.starting_point))
    return {}


@router.delete(API + "/branch/{branch}")
def delete_branch(target: Writable, branch: Quoted) -> Json:
    """Delete a branch; its commits stay."""
    target.repository.delete_ref("heads", branch)
    return {}


class _Squash(JsonBody):
    message: str


@router.post(API + "/super-squash/{branch}")
def squash_branch(
    target: Writable, user: RequiredUser, branch: Quoted, sent: Annotated[_Squash, Depends(_Squash.read)]
) -> Json:
    """Replace the history of a branch by one commit."""
    target.repository.squash(branch, message=sent.message, user=user)
    return {}


class _ValidateCard(JsonBody):
    content: str
    repo_type: str = Field(default="model", alias="repoType")


_ANONYMOUS_CHARACTERS = 16 << 10
_anonymous_cards = threading.BoundedSemaphore(2)


@router.post("/api/validate-yaml")
def validate_card(user: User, sent: Annotated[_ValidateCard, Depends(_ValidateCard.read)], response: Response) -> Json:
    """The errors and warnings in the metadata of a card. YAML takes long to parse, so who has no token gets a small share."""
    with contextlib.ExitStack() as stack:
        if user is None:
            if len(split_card(sent.content)[0] or "") > _ANONYMOUS_CHARACTERS:
                what = f"Metadata of more than {_ANONYMOUS_CHARACTERS} characters are checked only with a token"
                raise HubError(413, what)
            if not _anonymous_cards.acquire(blocking=False):
                raise HubError(503, "Other cards are being checked: try again in a moment")
            stack.callback(_anonymous_cards.release)
        card = parse_card(sent.content, is_model=sent.repo_type == "model")
    response.status_code = 400 if card.errors else 200
    return {
        "errors": [{"message": message} for message in card.errors],
        "warnings": [{"message": message} for message in card.warnings],
    }
