"""Propose a release as a pull request of the Hub repository: merging it publishes, closing it rejects the model.

Each call looks before it acts, so it may be repeated whatever it raised. A pull request is ours if its title names the recipe
and the tag of a release, which is a hash of its content. At the end of a call, a recipe has at most one open pull request: those of
other models are closed, and so is the younger one of two that an unclear answer left; all that were merged are tagged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import httpx2
from huggingface_hub.community import Discussion
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from params.errors import StaleBlessingError
from tasks.hub_client.faults import LookAgainError
from tasks.hub_client.release_log import PUBLISH_ID
from tasks.hub_client.repository import Repository
from tasks.publishing.exactly_once import (
    PublishedRelease,
    RepositoryState,
    changes,
    find_release,
    look,
    refuse_stale,
)
from tasks.publishing.release import ReleasePlan

WAITING: Final = frozenset({"open", "draft"})
"""Statuses of a pull request that a person may merge or close."""
_TITLE = re.compile(r"Publish (?P<tag>\S+) of (?P<recipe>\S+)")


@dataclass(frozen=True)
class Proposal:
    """A pull request that waits for a person, or that one has closed."""

    status: Literal["open", "closed"]
    number: int


def propose_release(
    repository: Repository, release: ReleasePlan, *, recipe: str, description: str, replaces: str | None
) -> Proposal | PublishedRelease:
    """Propose a release, unless it was proposed before; return what became of it.

    Args:
        repository: where.
        release: from `plan_release`.
        recipe: whose model it is; other open proposals of this recipe are closed.
        description: of the pull request, in Markdown.
        replaces: digest of the weights that main must hold for the proposal to be made or to stay open; None: none.

    Raises:
        HubRefusedError: the Hub would refuse again; or the pull request was merged with other files.
        StaleBlessingError: main holds other weights than `replaces`; an open proposal was closed for it.
        TransientError: no clear answer in time. Proposing again later is safe.
    """

    def attempt() -> Proposal | PublishedRelease:
        return _look_and_act(repository, release, recipe, description, replaces)

    fix = "run it again later: a proposal that was made is found"
    return repository.retry_until_clear(attempt, fix=fix)


def withdraw_proposals(repository: Repository, recipe: str, reason: str) -> None:
    """Close the open proposals of a recipe, because the gate no longer says that its model may be published."""

    def attempt() -> None:
        try:
            ours = _of_recipe(repository, recipe)
        except RepositoryNotFoundError:
            return
        _tag_merged(repository, ours)
        _close(repository, [found for found in ours if found.status in WAITING], reason)

    repository.retry_until_clear(attempt)


def status_of(repository: Repository, number: int) -> str | None:
    """Return the status of a pull request: `open`, `draft`, `closed` or `merged`; None if it is not there."""

    def attempt() -> str | None:
        try:
            return repository.api.get_discussion_details(repository.id, number).status
        except HfHubHTTPError as error:
            if error.response.status_code == httpx2.codes.NOT_FOUND:
                return None
            raise

    return repository.retry_until_clear(attempt)


def _look_and_act(
    repository: Repository,
    release: ReleasePlan,
    recipe: str,
    description: str,
    replaces: str | None,
    *,
    created: bool = False,
) -> Proposal | PublishedRelease:
    """Make one attempt; it can be repeated whatever it raises."""
    state = look(repository, release)
    ours = _of_recipe(repository, recipe)
    same = [found for found in ours if _tag(found) == release.tag]
    waiting = [found for found in same if found.status in WAITING]
    others = [found for found in ours if found.status in WAITING and found not in waiting[:1]]
    _tag_merged(repository, [found for found in ours if found not in same])
    if published := find_release(repository, release, state, merged=_merge_commit(repository, same)):
        _close(repository, [*waiting, *others], f"{release.tag} is published.")
        return published
    try:
        refuse_stale(repository, state, replaces)
    except StaleBlessingError as error:
        _close(repository, [*waiting, *others], f"{error.what[0].upper()}{error.what[1:]}.")
        raise
    if not waiting and (closed := [found for found in same if found.status == "closed"]):
        return Proposal("closed", closed[-1].num)
    _close(repository, others, f"A newer model of this recipe is proposed as {release.tag}.")
    if waiting:
        return Proposal("open", waiting[0].num)
    if created:
        raise LookAgainError("the pull request was created and is not visible")
    _create(repository, release, state, recipe, description)
    return _look_and_act(repository, release, recipe, description, replaces, created=True)  # are there two?


def _of_recipe(repository: Repository, recipe: str) -> list[Discussion]:
    """Return the pull requests of a recipe, oldest first."""
    found = repository.api.get_repo_discussions(repository.id, discussion_type="pull_request")
    ours = [one for one in found if (title := _TITLE.fullmatch(one.title)) and title["recipe"] == recipe]
    return sorted(ours, key=lambda one: one.num)


def _tag(proposal: Discussion) -> str:
    title = _TITLE.fullmatch(proposal.title)
    assert title is not None, proposal.title
    return title["tag"]


def _merge_commit(repository: Repository, proposals: Sequence[Discussion]) -> str | None:
    merged = [one.num for one in proposals if one.status == "merged"]
    return repository.api.get_discussion_details(repository.id, merged[-1]).merge_commit_oid if merged else None


def _tag_merged(repository: Repository, proposals: Sequence[Discussion]) -> None:
    """Tag releases that were merged when a newer model was already there, so that no run has recorded it."""
    landed = [proposal for proposal in proposals if proposal.status == "merged"]
    tags = repository.refs().tags if landed else {}
    for proposal in landed:
        tag = _tag(proposal)
        if tag in tags:
            continue
        proposed = repository.api.list_repo_commits(repository.id, revision=f"refs/pr/{proposal.num}")[0]
        merged = _merge_commit(repository, [proposal])
        is_ours = f"{PUBLISH_ID}: {tag.removeprefix('release-')}" in proposed.message
        if is_ours and merged and _blobs(repository, merged) == _blobs(repository, proposed.commit_id):
            repository.api.create_tag(repository.id, tag=tag, revision=merged)
        else:
            repository.log(f"{repository.where}: pull request {proposal.num} was merged with other files: not tagged")


def _blobs(repository: Repository, commit: str) -> dict[str, str]:
    return {path: file.blob_id for path, file in repository.tree(commit).items()}


def _close(repository: Repository, proposals: Sequence[Discussion], reason: str) -> None:
    for proposal in proposals:
        repository.api.change_discussion_status(repository.id, proposal.num, "closed", comment=reason)


def _create(
    repository: Repository, release: ReleasePlan, state: RepositoryState, recipe: str, description: str
) -> None:
    repository.api.create_commit(
        repository.id,
        changes(release, state),
        commit_message=f"Publish {release.tag} of {recipe}",
        commit_description=f"{description}\n\n{PUBLISH_ID}: {release.publish_id}",
        parent_commit=state.head,
        create_pr=True,
    )
