"""Routes for repositories: whoami, create, delete, settings, rename, large files, access, tags, branches; cards."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Depends, Request, Response
from pydantic import AfterValidator, AliasPath, Field, model_validator

from tasks.hub_server import requests
from tasks.hub_server.card_metadata import parse_card, split_card
from tasks.hub_server.errors import HubError, not_implemented_error
from tasks.hub_server.git_objects import Sha256, find_large_files_in_history
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.store import KINDS

_MAX_BATCH = 1000

router = APIRouter()


@router.get("/api/whoami-v2")
def whoami(request: Request, user: requests.RequiredUser) -> requests.Json:
    token = {"displayName": "local", "role": "write"}
    auth = {"type": "access_token", "accessToken": token}
    writers = sorted(requests.get_hub_state(request).access.writers.items())
    teams = [team for team, users in writers if user in users and user != team]
    orgs = [{"type": "org", "name": team, "roleInOrg": "write"} for team in teams]
    return {"type": "user", "id": user, "name": user, "fullname": user, "orgs": orgs, "auth": auth}


def _kind(repo_type: str) -> str:
    """Return the kind of repository as paths have it: `models` for `model`."""
    if f"{repo_type}s" not in KINDS:
        raise not_implemented_error(f"repositories of the type {repo_type!r}, only models and datasets")
    return f"{repo_type}s"


_Kind = Annotated[str, AfterValidator(_kind)]


class _Repository(requests.JsonBody):
    name: str
    organization: str | None = None
    kind: _Kind = Field(default="models", alias="type")


class _Visibility(requests.JsonBody):
    """Who may see a repository, as clients say it: `visibility`, or `private` before huggingface_hub 1.0."""

    visibility: Literal["public", "private"] | None = None
    private: bool | None = None

    @model_validator(mode="after")
    def _check_that_both_say_the_same(self) -> Self:
        if self.visibility and self.private is not None and self.private != (self.visibility == "private"):
            raise ValueError(f"visibility is {self.visibility!r} and private is {self.private}: send one of them")
        return self

    @property
    def is_private(self) -> bool | None:
        """None if the client does not say it."""
        return self.private if self.visibility is None else self.visibility == "private"


class _NewRepository(_Repository, _Visibility):
    pass


@router.post("/api/repos/create")
def create_repository(
    request: Request, user: requests.RequiredUser, new: Annotated[_NewRepository, Depends(_NewRepository.read)]
) -> requests.Json:
    """Create a repository in the user's own namespace or in `organization`."""
    hub, namespace, kind = requests.get_hub_state(request), new.organization or user, new.kind
    hub.access.require_write(user, namespace)
    page = f"{namespace}/{new.name}" if kind == "models" else f"{kind}/{namespace}/{new.name}"
    url = f"{requests.get_request_endpoint(request)}/{page}"
    try:
        hub.store.create(kind, namespace, new.name, private=bool(new.is_private), user=user)
    except HubError as error:
        if error.status == 409:
            error.details["url"] = url  # what create_repo(exist_ok=True) returns
        raise
    return {"url": url, "name": f"{namespace}/{new.name}", "id": page}


@router.delete("/api/repos/delete")
def delete_repository(
    request: Request, user: requests.RequiredUser, old: Annotated[_Repository, Depends(_Repository.read)]
) -> requests.Json:
    hub = requests.get_hub_state(request)
    namespace, kind = old.organization or user, old.kind
    requests.open_visible_repository(hub, kind, namespace, old.name, user)
    hub.access.require_write(user, namespace)
    hub.store.delete(kind, namespace, old.name)
    return {}


class _Settings(_Visibility):
    gated: Literal[False, "auto", "manual"] = False


@router.put(requests.API + "/settings")
def set_repository_visibility(
    target: requests.Writable, settings: Annotated[_Settings, Depends(_Settings.read)]
) -> requests.Json:
    if settings.gated:
        raise not_implemented_error("gated access")
    if settings.is_private is not None:
        target.repository.set_private(settings.is_private)
    return {"private": target.repository.private}


class _Move(requests.JsonBody):
    from_repo: str = Field(alias="fromRepo", pattern="^[^/]+/[^/]+$")
    to_repo: str = Field(alias="toRepo", pattern="^[^/]+/[^/]+$")
    kind: _Kind = Field(default="models", alias="type")


@router.post("/api/repos/move")
def move_repository(
    request: Request, user: requests.RequiredUser, move: Annotated[_Move, Depends(_Move.read)]
) -> requests.Json:
    """Rename a repository. Nothing is at its old name afterwards, not even a redirect."""
    hub, kind = requests.get_hub_state(request), move.kind
    (old_namespace, old), (namespace, name) = move.from_repo.split("/"), move.to_repo.split("/")
    requests.open_visible_repository(hub, kind, old_namespace, old, user)
    for each in (old_namespace, namespace):
        hub.access.require_write(user, each)
    hub.store.move(kind, old_namespace, old, namespace, name)
    return {"url": f"/{namespace}/{name}"}


@router.get(requests.API + "/lfs-files")
def list_large_files(target: requests.Writable) -> list[requests.Json]:
    """The large files that are stored, by path; whether or not a commit has them."""
    with target.repository.open() as git:
        places = find_large_files_in_history(git)
    found: list[requests.Json] = []
    for file in target.repository.large_files.stored():
        path, ref = places.get(file.name, ("", None))
        with contextlib.suppress(FileNotFoundError):  # it was deleted in the meantime
            pushed, size = requests.format_hub_date(int(file.stat().st_mtime)), file.stat().st_size
            ids = {"oid": file.name, "fileOid": file.name}
            found.append({**ids, "filename": path, "pushedAt": pushed, "ref": ref, "size": size})
    return sorted(found, key=lambda each: (each["filename"], each["pushedAt"]))


class _LargeFileDeletions(requests.JsonBody):
    sha: list[Sha256] = Field(validation_alias=AliasPath("deletions", "sha"), max_length=_MAX_BATCH)
    rewrite_history: bool = Field(default=True, validation_alias=AliasPath("deletions", "rewriteHistory"))


@router.post(requests.API + "/lfs-files/batch")
def delete_large_files(
    target: requests.Writable, batch: Annotated[_LargeFileDeletions, Depends(_LargeFileDeletions.read)]
) -> requests.Json:
    """Delete the content of large files for good. Commits keep their ids, by which receipts and rollbacks name them."""
    if batch.rewrite_history:
        raise not_implemented_error("rewriting of the history: pass rewrite_history=False, and commits keep their ids")
    with target.repository.writing():
        for sha256 in batch.sha:
            target.repository.large_files.path(sha256).unlink(missing_ok=True)
    return {}


@router.get(requests.API + "/auth-check")
def check_read_access(_: requests.Readable) -> requests.Json:
    return {}


@router.get(requests.API + "/auth-check/write")
def check_write_access(_: requests.Writable) -> requests.Json:
    return {}


class _NewTag(requests.JsonBody):
    tag: str
    message: str | None = None
    """Not kept: a tag here is a name and a commit."""


@router.post(requests.API + "/tag/{revision}")
def create_tag(
    target: requests.Writable, revision: requests.Quoted, new: Annotated[_NewTag, Depends(_NewTag.read)]
) -> requests.Json:
    """Create a tag; a tag never moves."""
    target.repository.create_ref("tags", new.tag, target.repository.resolve(revision))
    return {}


@router.delete(requests.API + "/tag/{tag}")
def delete_tag(target: requests.Writable, tag: requests.Quoted) -> requests.Json:
    target.repository.delete_ref("tags", tag)
    return {}


class _NewBranch(requests.JsonBody):
    starting_point: str = Field(default=MAIN, alias="startingPoint")


@router.post(requests.API + "/branch/{branch}")
def create_branch(
    target: requests.Writable, branch: requests.Quoted, new: Annotated[_NewBranch, Depends(_NewBranch.read)]
) -> requests.Json:
    target.repository.create_ref("heads", branch, target.repository.resolve(new.starting_point))
    return {}


@router.delete(requests.API + "/branch/{branch}")
def delete_branch(target: requests.Writable, branch: requests.Quoted) -> requests.Json:
    """Delete a branch; its commits stay."""
    target.repository.delete_ref("heads", branch)
    return {}


class _Squash(requests.JsonBody):
    message: str


@router.post(requests.API + "/super-squash/{branch}")
def squash_branch(
    target: requests.Writable,
    user: requests.RequiredUser,
    branch: requests.Quoted,
    sent: Annotated[_Squash, Depends(_Squash.read)],
) -> requests.Json:
    """Replace the history of a branch by one commit."""
    target.repository.squash(branch, message=sent.message, user=user)
    return {}


class _ValidateCard(requests.JsonBody):
    content: str
    repo_type: str = Field(default="model", alias="repoType")


_ANONYMOUS_CHARACTERS = 16 << 10
_anonymous_cards = threading.BoundedSemaphore(2)


@router.post("/api/validate-yaml")
def validate_card(
    user: requests.User, sent: Annotated[_ValidateCard, Depends(_ValidateCard.read)], response: Response
) -> requests.Json:
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
