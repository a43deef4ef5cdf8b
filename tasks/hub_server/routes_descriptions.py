"""Routes that describe repositories: all that fit some conditions, and one at a revision."""

from __future__ import annotations

import contextlib
from typing import Annotated, Final

from dulwich.objects import ObjectID
from fastapi import APIRouter, Query, Request, Response

from tasks.hub_server.card_metadata import read_card
from tasks.hub_server.errors import HubError, not_implemented
from tasks.hub_server.git_objects import Entry
from tasks.hub_server.limits import BODY_BYTES
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import API, Json, Quoted, Readable, Target, User, get_hub, iso_date, open_target

_CONDITIONS = frozenset({"author", "cardData", "filter", "full", "limit", "pipeline_tag", "search"})
_PLAIN_TAGS = ("tags", "library_name", "pipeline_tag")
_MODEL_TAGS = {"language": "", "license": "license:", "datasets": "dataset:", "base_model": "base_model:"}
_DATASET_KEYS = (
    *("annotations_creators", "language", "language_creators", "license", "multilinguality"),
    *("size_categories", "source_datasets", "task_categories", "task_ids"),
)
_TAGS: Final = {"models": _MODEL_TAGS, "datasets": {key: f"{key}:" for key in _DATASET_KEYS}}
"""By kind of repository: which values of the card's metadata are tags, and what is put before them."""

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
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1_000_000,
    full: bool = False,
) -> list[Json]:
    """The repositories that the user can see and that fit all conditions, by name."""
    if unknown := request.query_params.keys() - _CONDITIONS:
        raise not_implemented(f"lists by {', '.join(sorted(unknown))}, only by {', '.join(sorted(_CONDITIONS))}")
    hub, found = get_hub(request), list[Json]()
    for namespace, name, repository in hub.store.list(kind):
        id_ = f"{namespace}/{name}"
        if author not in ("", namespace) or not all(part.lower() in id_.lower() for part in search):
            continue
        with contextlib.suppress(HubError):  # the user cannot see it, or it was deleted in the meantime
            target = open_target(hub, kind, namespace, name, user)
            each = _describe(target, repository.resolve(MAIN), files=full)
            if set(tags) <= set(each["tags"]) and pipeline_tag in (None, each.get("pipeline_tag")):
                found.append(each)
        if len(found) == limit:
            break
    return found


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
    """The repository at a revision, by default at main. An answer has all fields, whatever `expand` asks for."""
    sha = target.repository.resolve(revision)
    response.headers["X-Repo-Commit"] = sha
    found = _describe(target, sha, files=True, blobs=blobs)
    if unknown := set(expand) - found.keys() - {"library_name", "pipeline_tag"}:
        raise not_implemented(f"field {', '.join(sorted(unknown))} of a repository, only {', '.join(sorted(found))}")
    return found


def _describe(target: Target, sha: str, *, files: bool, blobs: bool = False) -> Json:
    """Describe a repository at a commit; with its `files`, and with `blobs` the content of each."""
    repository, metadata = target.repository, _metadata(target, sha)
    with repository.open() as git:
        history = git.get_walker(include=[ObjectID(repository.resolve(MAIN).encode())])
        created = min(int(entry.commit.commit_time) for entry in history)
    before = dict.fromkeys(_PLAIN_TAGS, "") | _TAGS[target.kind]
    tags = [f"{prefix}{value}" for key, prefix in before.items() for value in _texts(metadata.get(key))]
    return {
        **dict.fromkeys(("_id", "id", "modelId"), target.id),
        "author": target.namespace,
        "cardData": metadata,
        "createdAt": iso_date(created),
        "disabled": False,
        "downloads": 0,
        "gated": False,
        "lastModified": iso_date(repository.history(sha, limit=1)[0].time),
        "likes": 0,
        "private": repository.private,
        "sha": sha,
        "tags": list(dict.fromkeys(tags)),
        **{key: metadata[key] for key in ("library_name", "pipeline_tag") if isinstance(metadata.get(key), str)},
        **({"siblings": _files(target, sha, blobs=blobs)} if files else {}),
    }


def _metadata(target: Target, sha: str) -> Json:
    """Return the metadata of the card; empty if there is none or it is invalid."""
    try:
        entry = target.repository.entry(sha, "README.md")
    except HubError:
        return {}
    if entry.sha256 or entry.size > BODY_BYTES:
        return {}
    card = read_card(target.repository.read(entry).decode(errors="replace"), is_model=target.kind == "models")
    return {} if card.errors else card.metadata or {}


def _texts(value: object) -> list[str]:
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]


def _files(target: Target, sha: str, *, blobs: bool) -> list[Json]:
    entries = target.repository.entries(sha, recursive=True)
    return [{"rfilename": entry.path} | (_blob(entry) if blobs else {}) for entry in entries if not entry.is_folder]


def _blob(entry: Entry) -> Json:
    large = {"lfs": {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}}
    return {"size": entry.size, "blobId": entry.oid} | (large if entry.sha256 else {})
