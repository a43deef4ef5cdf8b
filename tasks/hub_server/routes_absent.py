"""What a Hub can have and this one does not: a request for it gets status 501 and a sentence that says so.

To give this Hub one of these, remove its line here and write its route. Routes match in order, so these come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import APIRouter
from starlette.responses import RedirectResponse

from tasks.hub_server.errors import HubError
from tasks.hub_server.requests import API
from tasks.hub_server.store import KINDS

_ANYTHING = "{rest:path}"
ABSENT: Final[Mapping[str, tuple[str, ...]]] = {
    "Spaces": ("/api/spaces", f"/api/spaces/{_ANYTHING}", f"/spaces/{_ANYTHING}"),
    "kernels": ("/api/kernels", f"/api/kernels/{_ANYTHING}", f"/kernels/{_ANYTHING}"),
    "buckets": (f"/api/buckets/{_ANYTHING}", "/buckets/{namespace}/{name}/resolve/{path}"),
    "jobs": (f"/api/jobs/{_ANYTHING}", f"/api/scheduled-jobs/{_ANYTHING}"),
    "likes": (f"{API}/like", f"{API}/likers", "/api/users/{user}/likes"),
    "overviews of users, organizations and their followers": (
        f"/api/users/{_ANYTHING}",
        f"/api/organizations/{_ANYTHING}",
    ),
    "settings of users, and no webhooks": (f"/api/settings/{_ANYTHING}",),
    "gated access": (f"{API}/user-access-request/{_ANYTHING}",),
    "collections": ("/api/collections", f"/api/collections/{_ANYTHING}"),
    "papers": (f"/api/papers/{_ANYTHING}", "/api/daily_papers", "/papers/{id}.md"),
    "leaderboards": (f"{API}/leaderboard",),
    "list of all tags": ("/api/models-tags-by-type", "/api/datasets-tags-by-type"),
    "squashing of a branch's history": (f"{API}/super-squash/{{branch}}",),
    "duplication of repositories": (f"{API}/duplicate", f"{API}/lfs-files/duplicate"),
    "metadata of sharded weights: read them from the shards by get_safetensors_metadata": (
        f"{API}/safetensors-metadata/{_ANYTHING}",
    ),
    "edits of comments": (f"{API}/discussions/{{number}}/comment/{{comment}}/{{action}}",),
    "attachments of comments": ("/uploads",),
    "Xet storage: set HF_HUB_DISABLE_XET=1, and the client uploads by git-lfs": (
        "/-/this-hub-has-no-xet-storage:set-HF_HUB_DISABLE_XET=1",
        f"{API}/xet-read-token/{{revision}}",
    ),
}
"""What is absent, as in "The local Hub has no ...", and the paths of its routes."""

router = APIRouter()


def absent(what: str) -> HubError:
    """Return the 501 for what this Hub does not have."""
    return HubError(501, f"The local Hub has no {what}")


def kind_of(repo_type: str) -> str:
    """Return the kind of repository as paths have it: `models` for `model`.

    Raises:
        HubError: 501 for a kind that this Hub does not have, such as `space`.
    """
    kind = f"{repo_type}s"
    if kind not in KINDS:
        raise absent(f"repositories of the type {repo_type!r}, only models and datasets")
    return kind


def _refusal(what: str) -> Callable[[], None]:
    def refuse() -> None:
        raise absent(what)

    return refuse


for _what, _paths in ABSENT.items():
    for _path in _paths:
        router.add_api_route(_path, _refusal(_what), methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])


@router.get(API + "/xet-write-token/{revision}")
def explain_xet() -> RedirectResponse:
    """Lead to a 501. hf-xet shows nothing of an answer but its status and this last address."""
    return RedirectResponse("/-/this-hub-has-no-xet-storage:set-HF_HUB_DISABLE_XET=1")
