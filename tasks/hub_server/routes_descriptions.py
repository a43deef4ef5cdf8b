"""Routes that describe repositories: all that fit some conditions, and one at a revision, with its files and history."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import parse_qs

from dulwich.objects import ObjectID
from fastapi import APIRouter, Query, Request, Response
from markupsafe import escape

from tasks.hub_server import requests
from tasks.hub_server.card_metadata import parse_card
from tasks.hub_server.errors import HubError, not_implemented_error
from tasks.hub_server.git_objects import CommitRecord, TreeEntry, find_last_commit
from tasks.hub_server.limits import BODY_BYTES
from tasks.hub_server.repositories import MAIN, BareRepository

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
    kind: requests.Quoted,
    user: requests.User,
    author: str = "",
    search: Annotated[list[str], Query()] = [],  # noqa: B006 (FastAPI copies it)
    tags: Annotated[list[str], Query(alias="filter")] = [],  # noqa: B006
    pipeline_tag: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1_000_000,
    full: bool = False,
) -> list[requests.Json]:
    """The repositories that the user can see and that fit all conditions, by name."""
    if unknown := request.query_params.keys() - _CONDITIONS:
        raise not_implemented_error(f"lists by {', '.join(sorted(unknown))}, only by {', '.join(sorted(_CONDITIONS))}")
    hub, found = requests.get_hub_state(request), list[requests.Json]()
    for namespace, name, repository in hub.store.list(kind):
        id_ = f"{namespace}/{name}"
        if author not in ("", namespace) or not all(part.lower() in id_.lower() for part in search):
            continue
        with contextlib.suppress(HubError):  # the user cannot see it, or it was deleted in the meantime
            target = requests.open_visible_repository(hub, kind, namespace, name, user)
            each = _describe(target, repository.resolve(MAIN), files=full)
            if set(tags) <= set(each["tags"]) and pipeline_tag in (None, each.get("pipeline_tag")):
                found.append(each)
        if len(found) == limit:
            break
    return found


@router.get(requests.API)
@router.get(requests.API + "/revision/{revision}")
def describe_repository(
    *,
    target: requests.Readable,
    response: Response,
    revision: requests.Quoted = MAIN,
    expand: Annotated[list[str], Query()] = [],  # noqa: B006
) -> requests.Json:
    """The repository at a revision, by default at main. An answer has all fields, whatever `expand` and `blobs` ask for."""
    sha = target.repository.resolve(revision)
    response.headers["X-Repo-Commit"] = sha
    found = _describe(target, sha, files=True)
    if unknown := set(expand) - found.keys() - {"library_name", "pipeline_tag"}:
        raise not_implemented_error(
            f"field {', '.join(sorted(unknown))} of a repository, only {', '.join(sorted(found))}"
        )
    return found


def _describe(target: requests.RequestedRepository, sha: str, *, files: bool) -> requests.Json:
    repository, metadata = target.repository, _metadata(target, sha)
    with repository.open() as git:
        history = git.get_walker(include=[ObjectID(repository.resolve(MAIN).encode())])
        created = min(int(entry.commit.commit_time) for entry in history)
    return {
        **dict.fromkeys(("_id", "id", "modelId"), target.id),
        "author": target.namespace,
        "cardData": metadata,
        "createdAt": requests.format_hub_date(created),
        "disabled": False,
        "downloads": 0,
        "gated": False,
        "lastModified": requests.format_hub_date(repository.history(sha, limit=1)[0].time),
        "likes": 0,
        "private": repository.private,
        "sha": sha,
        "tags": list(dict.fromkeys(_tags(metadata, target.kind))),
        **{key: metadata[key] for key in ("library_name", "pipeline_tag") if isinstance(metadata.get(key), str)},
        **({"siblings": list(_siblings(repository, sha))} if files else {}),
    }


def _tags(metadata: requests.Json, kind: str) -> Iterator[str]:
    prefixes = dict.fromkeys(_PLAIN_TAGS, "") | _TAGS[kind]
    for key, prefix in prefixes.items():
        value = metadata.get(key)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield f"{prefix}{text}"


def _siblings(repository: BareRepository, sha: str) -> Iterator[requests.Json]:
    for entry in repository.entries(sha, recursive=True):
        if entry.is_folder:
            continue
        sibling: requests.Json = {"rfilename": entry.path, "size": entry.size, "blobId": entry.oid}
        if entry.sha256:
            sibling["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
        yield sibling


def _metadata(target: requests.RequestedRepository, sha: str) -> requests.Json:
    """Return the metadata of the card; empty if there is none or it is invalid."""
    try:
        entry = target.repository.entry(sha, "README.md")
    except HubError:
        return {}
    if entry.sha256 or entry.size > BODY_BYTES:
        return {}
    card = parse_card(target.repository.read(entry).decode(errors="replace"), is_model=target.kind == "models")
    return {} if card.errors else card.metadata or {}


@router.get(requests.API + "/tree/{revision}")
@router.get(requests.API + "/tree/{revision}/{folder:path}")
def list_tree(
    *,
    target: requests.Readable,
    revision: requests.Quoted,
    folder: requests.Quoted = "",
    response: Response,
    recursive: bool = False,
    expand: bool = False,
) -> list[requests.Json]:
    """The files and folders of a commit; with `expand`, the last commits that changed them."""
    sha = target.repository.resolve(revision)
    found = target.repository.entries(sha, folder, recursive=recursive)
    response.headers["X-Repo-Commit"] = sha
    return _entries_json(target, sha, found, expand=expand)


@router.post(requests.API + "/paths-info/{revision}")
def describe_paths(target: requests.Readable, revision: requests.Quoted, body: requests.Body) -> list[requests.Json]:
    """The files and folders that exist among `paths` of the form in the body; with `expand`, their last commits."""
    sha = target.repository.resolve(revision)
    form = parse_qs(body.decode(errors="replace"))
    requested = set(form.get("paths", []))
    found = [entry for entry in target.repository.entries(sha, recursive=True) if entry.path in requested]
    return _entries_json(target, sha, found, expand="true" in map(str.lower, form.get("expand", [])))


def _entries_json(
    target: requests.RequestedRepository, sha: str, entries: Sequence[TreeEntry], *, expand: bool
) -> list[requests.Json]:
    found = []
    with target.repository.open() as git:
        for entry in entries:
            kind = "directory" if entry.is_folder else "file"
            fields: requests.Json = {"type": kind, "oid": entry.oid, "size": entry.size, "path": entry.path}
            if entry.sha256:
                fields["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
            if expand and (commit := find_last_commit(git, sha, entry.path)):
                fields["lastCommit"] = {
                    "id": commit.sha,
                    "title": commit.title,
                    "date": requests.format_hub_date(commit.time),
                }
            found.append(fields)
    return found


@router.get(requests.API + "/refs")
def list_refs(target: requests.Readable, *, include_prs: bool = False) -> requests.Json:
    """All branches and tags; the branches of pull requests if they are asked for."""

    def refs(kind: str, found: Mapping[str, str]) -> list[requests.Json]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha} for name, sha in found.items()]

    found = target.repository.refs
    pull_requests = refs("pr", target.pull_requests.heads() if include_prs else {})
    branches, tags = refs("heads", found("heads")), refs("tags", found("tags"))
    return {"branches": branches, "tags": tags, "converts": [], "pullRequests": pull_requests}


@router.get(requests.API + "/commits/{revision}")
def list_commits(
    target: requests.Readable,
    revision: requests.Quoted,
    expand: Annotated[list[str], Query(alias="expand[]")] = [],  # noqa: B006 (FastAPI copies it)
) -> list[requests.Json]:
    """The history, newest first; with `expand[]=formatted`, texts as HTML, too."""
    if unknown := set(expand) - {"formatted"}:
        raise not_implemented_error(f"field {', '.join(sorted(unknown))} of a commit, only formatted")

    def formatted(commit: CommitRecord) -> requests.Json:
        if "formatted" not in expand:
            return {}
        html = {"title": str(escape(commit.title)), "message": str(escape(commit.message)).replace("\n", "<br>")}
        return {"formatted": html}

    return [
        {
            "id": commit.sha,
            "title": commit.title,
            "message": commit.message,
            "date": requests.format_hub_date(commit.time),
            "authors": [{"user": commit.author}],
            **formatted(commit),
        }
        for commit in target.repository.history(target.repository.resolve(revision))
    ]
