"""Routes for what a repository's owner changes: visibility, name, and large files that are deleted for good.

PUT  .../settings           make it public or private
POST /api/repos/move        rename it, also into another namespace
GET  .../lfs-files          its large files, with a path where each one is or was
POST .../lfs-files/batch    delete large files, with or without the pointers to them in the history
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from tasks.hub_server.deletion import delete_large_files, list_large_files
from tasks.hub_server.errors import repository_not_found
from tasks.hub_server.requests import API, RequiredUser, Writable, get_hub, iso_date, json_body
from tasks.hub_server.routes_absent import absent, kind_of

_MAX_BATCH = 1000

router = APIRouter()


class Settings(BaseModel):
    """The body of settings."""

    visibility: str | None = None
    gated: Literal[False, "auto", "manual"] = False


@router.put(API + "/settings")
def change_settings(target: Writable, settings: Annotated[Settings, Depends(json_body(Settings))]) -> dict[str, object]:
    """Make the repository public or private."""
    if settings.gated:
        raise absent("gated access")
    if settings.visibility not in (None, "public", "private"):
        raise absent(f"visibility {settings.visibility!r}: it is public or private")
    if settings.visibility:
        target.repository.set_private(settings.visibility == "private")
    return {"private": target.repository.private}


class Move(BaseModel):
    """The body of repos/move."""

    from_repo: str = Field(alias="fromRepo", pattern="^[^/]+/[^/]+$")
    to_repo: str = Field(alias="toRepo", pattern="^[^/]+/[^/]+$")
    type: str = "model"


@router.post("/api/repos/move")
def move_repository(
    request: Request, user: RequiredUser, move: Annotated[Move, Depends(json_body(Move))]
) -> dict[str, object]:
    """Rename a repository. Nothing is at its old name afterwards, not even a redirect."""
    hub, kind = get_hub(request), kind_of(move.type)
    (old_namespace, old), (namespace, name) = move.from_repo.split("/"), move.to_repo.split("/")
    if not hub.access.can_write(user, old_namespace) and hub.store.open(kind, old_namespace, old).private:
        raise repository_not_found()
    for each in (old_namespace, namespace):
        hub.access.require_write(user, each)
    hub.store.move(kind, old_namespace, old, namespace, name)
    return {"url": f"/{namespace}/{name}"}


@router.get(API + "/lfs-files")
def list_files(target: Writable) -> list[dict[str, object]]:
    """The large files that are stored, whether or not a commit has them."""
    return [
        {
            "oid": file.sha256,
            "fileOid": file.sha256,
            "filename": file.path,
            "pushedAt": iso_date(int(file.time)),
            "ref": file.ref,
            "size": file.size,
        }
        for file in list_large_files(target.repository)
    ]


class Deletions(BaseModel):
    """Which large files to delete."""

    sha: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(max_length=_MAX_BATCH)
    rewrite_history: bool = Field(default=True, alias="rewriteHistory")


class Batch(BaseModel):
    """The body of lfs-files/batch."""

    deletions: Deletions


@router.post(API + "/lfs-files/batch")
def delete_files(target: Writable, batch: Annotated[Batch, Depends(json_body(Batch))]) -> dict[str, object]:
    """Delete large files for good."""
    deletions = batch.deletions
    delete_large_files(target.repository, set(deletions.sha), rewrite_history=deletions.rewrite_history)
    return {}
