"""Routes that describe repositories: all that fit some conditions, and one at a revision."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tasks.hub_server.descriptions import FIELDS, LISTED, Description, check_fields
from tasks.hub_server.errors import HubError
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import API, Json, Quoted, Readable, User, get_hub, open_target
from tasks.hub_server.routes_absent import absent

_SORTS = ("createdAt", "lastModified")
_CONDITIONS = {
    "author",
    "cardData",
    "direction",
    "expand",
    "filter",
    "full",
    "gated",
    "limit",
    "pipeline_tag",
    "search",
}
_CONDITIONS |= {"sort"}

router = APIRouter()


@router.get("/api/{kind}")
def list_repositories(
    *,
    request: Request,
    kind: Quoted,
    user: User,
    author: str = "",
    search: Annotated[list[str], Query()] = [],  # noqa: B006 (FastAPI copies it)
    tags: Annotated[list[str], Query(alias="filter")] = [],  # noqa: B006
    pipeline_tag: str | None = None,
    gated: bool | None = None,
    sort: str = "",
    direction: str = "-1",
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1_000_000,
    full: bool = False,
    card_data: Annotated[bool, Query(alias="cardData")] = False,
    expand: Annotated[list[str], Query()] = [],  # noqa: B006
) -> list[Json]:
    """The repositories that the user can see and that fit all conditions: by name, or newest first."""
    if unknown := request.query_params.keys() - _CONDITIONS:
        raise absent(f"lists by {', '.join(sorted(unknown))}, only by {', '.join(sorted(_CONDITIONS))}")
    if sort and (sort not in _SORTS or direction != "-1"):
        raise absent(f"lists in the order {sort!r}, only {' or '.join(_SORTS)}, newest first")
    names = set(expand) or LISTED | ({"cardData"} if card_data or full else set()) | ({"siblings"} if full else set())
    check_fields(names)
    hub = get_hub(request)
    found: list[Description] = []
    for namespace, name, repository in hub.store.list(kind) if not gated else ():
        id_ = f"{namespace}/{name}"
        if len(found) == limit and not sort:
            break
        if author not in ("", namespace) or not all(part.lower() in id_.lower() for part in search):
            continue
        with contextlib.suppress(HubError):  # the user cannot see it, or it was deleted in the meantime
            target = open_target(hub, kind, namespace, name, user)
            each = Description(target, repository.resolve(MAIN))
            if set(tags) <= set(each.tags if tags else ()) and pipeline_tag in (None, each.text("pipeline_tag")):
                found.append(each)
    if sort:
        found.sort(key=lambda each: each.created if sort == "createdAt" else each.last_commit.time, reverse=True)
    answer = []
    for each in found[:limit]:
        with contextlib.suppress(HubError):
            answer.append(each.fields(names))
    return answer


@router.get(API)
@router.get(API + "/revision/{revision}")
def describe(
    *,
    target: Readable,
    response: Response,
    revision: Quoted = MAIN,
    blobs: bool = False,
    expand: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Json:
    """The repository at a revision, by default at main: all that the Hub knows, or the fields in `expand`."""
    names = set(expand) or FIELDS.keys()
    check_fields(names)
    sha = target.repository.resolve(revision)
    response.headers["X-Repo-Commit"] = sha
    return Description(target, sha, blobs=blobs).fields(names)
