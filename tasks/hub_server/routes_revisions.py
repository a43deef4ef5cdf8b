"""Routes for revisions: history, tags and branches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from markupsafe import escape
from pydantic import Field

from tasks.hub_server.git_objects import CommitRecord
from tasks.hub_server.names import RefKind
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import API, Json, JsonBody, Quoted, Readable, Writable, iso_date

router = APIRouter()


@router.get(API + "/refs")
def list_refs(target: Readable, *, include_prs: bool = False) -> Json:
    """All branches and tags; the branches of pull requests if they are asked for."""

    def refs(kind: RefKind) -> list[dict[str, str]]:
        found = target.repository.refs(kind).items()
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha} for name, sha in found]

    heads = target.pull_requests.heads() if include_prs else {}
    pull_requests = [{"name": str(n), "ref": f"refs/pr/{n}", "targetCommit": sha} for n, sha in heads.items()]
    return {"branches": refs("heads"), "tags": refs("tags"), "converts": [], "pullRequests": pull_requests}


@router.get(API + "/commits/{revision}")
def list_commits(
    target: Readable,
    revision: Quoted,
    expand: Annotated[list[str], Query(alias="expand[]")] = [],  # noqa: B006 (FastAPI copies it)
) -> list[Json]:
    """The history, newest first. `formatted` adds texts as HTML."""
    return [
        {
            "id": commit.sha,
            "title": commit.title,
            "message": commit.message,
            "date": iso_date(commit.time),
            "authors": [{"user": commit.author}],
            **({"formatted": _formatted(commit)} if "formatted" in expand else {}),
        }
        for commit in target.repository.history(target.repository.resolve(revision))
    ]


def _formatted(commit: CommitRecord) -> dict[str, str]:
    """Return the title and the message of a commit as HTML."""
    return {"title": str(escape(commit.title)), "message": str(escape(commit.message)).replace("\n", "<br>")}


class NewTag(JsonBody):
    """The body of a request that creates a tag. An annotation message is ignored."""

    tag: str


@router.post(API + "/tag/{revision}")
def create_tag(target: Writable, revision: Quoted, new: Annotated[NewTag, Depends(NewTag.read)]) -> Json:
    """Create a tag; a tag never moves."""
    target.repository.create_ref("tags", new.tag, target.repository.resolve(revision))
    return {}


@router.delete(API + "/tag/{tag}")
def delete_tag(target: Writable, tag: Quoted) -> Json:
    """Delete a tag."""
    target.repository.delete_ref("tags", tag)
    return {}


class NewBranch(JsonBody):
    """The body of a request that creates a branch."""

    starting_point: str = Field(default=MAIN, alias="startingPoint")


@router.post(API + "/branch/{branch}")
def create_branch(target: Writable, branch: Quoted, new: Annotated[NewBranch, Depends(NewBranch.read)]) -> Json:
    """Create a branch."""
    target.repository.create_ref("heads", branch, target.repository.resolve(new.starting_point))
    return {}


@router.delete(API + "/branch/{branch}")
def delete_branch(target: Writable, branch: Quoted) -> Json:
    """Delete a branch; its commits stay."""
    target.repository.delete_ref("heads", branch)
    return {}
