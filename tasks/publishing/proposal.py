"""Propose a release as a pull request of the Hub repository: merging it publishes, closing it rejects the model.

Each call looks before it acts, so it may be repeated whatever it raised. A pull request is ours if its title names the recipe
and the tag of a release, which is a hash of its content. At the end of a call, a recipe has at most one open pull request: those of
other models are closed, and so is the younger one of two that an unclear answer left; all that were merged are tagged.

Anybody may give a pull request such a title. So an open one counts only if it holds the files of the release, and a closed one only
if this account made it. A model stays rejected, whatever recipe proposes it and whatever text is published with it, until somebody
opens the pull request again; what we close ourselves says so, and rejects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import httpx2
from huggingface_hub.community import Discussion, DiscussionComment, DiscussionStatusChange
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from params.foundation.errors import StaleBlessingError
from tasks.hub_client.faults import LookAgainError
from tasks.hub_client.release_file import ReleaseRecord
from tasks.hub_client.release_log import PUBLISH_ID
from tasks.hub_client.repository import Repository, tree_weights
from tasks.publishing.exactly_once import (
    PublishedRelease,
    RepositoryState,
    changes,
    difference,
    find_release,
    look,
    refuse_stale,
)
from tasks.publishing.release import ReleasePlan

WAITING: Final = frozenset({"open", "draft"})
"""Statuses of a pull request that a person may merge or close."""
_NO_REJECTION = "Evergreen has closed this pull request itself. That rejects no model: it may be proposed again."
"""The end of the comment with which we close one; later runs look for it."""
_TITLE = re.compile(r"Publish (?P<tag>\S+) of (?P<recipe>\S+)")


@dataclass(frozen=True)
class Proposal:
    """A pull request that waits for a person, or that one has closed."""

    status: Literal["open", "closed"]
    number: int


def propose_release(
    repository: Repository,
    release: ReleasePlan,
    *,
    recipe: str,
    description: str,
    replaces: str | None,
    weights: Collection[str] = (),
) -> Proposal | PublishedRelease:
    """Propose a release, unless it was proposed before; return what became of it.

    Args:
        repository: where.
        release: from `plan_release`.
        recipe: whose model it is; other open proposals of this recipe are closed.
        description: of the pull request, in Markdown.
        replaces: digest of the weights that main must hold for the proposal to be made or to stay open; None: none.
        weights: digests of the model in its other forms; who has rejected one of them has rejected the model.

    Raises:
        HubRefusedError: the Hub would refuse again.
        StaleBlessingError: main holds other weights than `replaces`; an open proposal was closed for it.
        TransientError: no clear answer in time. Proposing again later is safe.
    """

    def attempt() -> Proposal | PublishedRelease:
        return _look_and_act(
            repository, release, recipe, description, replaces, weights={*weights, release.weights or ""}
        )

    fix = "run it again later: a proposal that was made is found"
    return repository.retry_until_clear(attempt, fix=fix)


def withdraw_proposals(repository: Repository, recipe: str, reason: str) -> None:
    """Close the open proposals of a recipe, because the gate no longer says that its model may be published."""

    def attempt() -> None:
        try:
            ours = [found for found in _proposals(repository) if _recipe(found) == recipe]
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
    weights: Collection[str],
    created: bool = False,
) -> Proposal | PublishedRelease:
    """Make one attempt; it can be repeated whatever it raises."""
    state = look(repository, release)
    proposals = _proposals(repository)
    ours = [found for found in proposals if _recipe(found) == recipe]
    same = [found for found in ours if _tag(found) == release.tag]
    waiting = [found for found in same if found.status in WAITING and _holds(repository, found, release)]
    others = [found for found in ours if found.status in WAITING and found not in waiting[:1]]
    _tag_merged(repository, [found for found in ours if found not in same])
    if published := find_release(repository, release, state, merged=_merge_commits(repository, same)):
        _close(repository, [*waiting, *others], f"{release.tag} is published.")
        return published
    try:
        refuse_stale(repository, state, replaces)
    except StaleBlessingError as error:
        _close(repository, [*waiting, *others], f"{error.what[0].upper()}{error.what[1:]}.")
        raise
    if not waiting and (number := _find_rejection(repository, proposals, weights)):
        return Proposal("closed", number)
    changed = [found for found in others if found in same and found not in waiting]
    _close(repository, changed, f"It holds other files than {release.tag}.")
    others = [found for found in others if found not in changed]
    _close(repository, others, f"A newer model of this recipe is proposed as {release.tag}.")
    if waiting:
        return Proposal("open", waiting[0].num)
    if created:
        raise LookAgainError("the pull request was created and is not visible")
    _create(repository, release, state, recipe, description)
    # Are there two?
    return _look_and_act(repository, release, recipe, description, replaces, weights=weights, created=True)


def _holds(repository: Repository, proposal: Discussion, release: ReleasePlan) -> bool:
    return not difference(release, repository.tree(_branch(proposal)))


def _branch(proposal: Discussion) -> str:
    return f"refs/pr/{proposal.num}"


def _find_rejection(repository: Repository, proposals: Sequence[Discussion], weights: Collection[str]) -> int | None:
    """Return the newest pull request of this account with one of these models that a person has closed."""
    closed = [proposal for proposal in reversed(proposals) if proposal.status == "closed"]
    account = repository.api.whoami(cache=True)["name"] if closed else None
    for proposal in closed:
        if (
            proposal.author == account
            and tree_weights(repository.tree(_branch(proposal))) in weights
            and _is_rejected(repository, proposal)
        ):
            return proposal.num
    return None


def _is_rejected(repository: Repository, proposal: Discussion) -> bool:
    """Whether a person closed a pull request of this account: only those who may write can, and those who use the account."""
    events = repository.api.get_discussion_details(repository.id, proposal.num).events
    closed = [n for n, event in enumerate(events) if isinstance(event, DiscussionStatusChange)]
    if not closed:
        return True
    closing = events[closed[-1]]
    beside = [event for n in (closed[-1] - 1, closed[-1] + 1) for event in events[max(n, 0) : n + 1]]
    comments = [event for event in beside if isinstance(event, DiscussionComment) and event.author == closing.author]
    return not any(comment.content.rstrip().endswith(_NO_REJECTION) for comment in comments)


def _proposals(repository: Repository) -> list[Discussion]:
    """Return the pull requests that propose a release of any recipe, oldest first."""
    found = repository.api.get_repo_discussions(repository.id, discussion_type="pull_request")
    return sorted((one for one in found if _TITLE.fullmatch(one.title)), key=lambda one: one.num)


def _recipe(proposal: Discussion) -> str:
    return _named(proposal)["recipe"]


def _tag(proposal: Discussion) -> str:
    return _named(proposal)["tag"]


def _named(proposal: Discussion) -> re.Match[str]:
    title = _TITLE.fullmatch(proposal.title)
    assert title is not None, proposal.title
    return title


def _merge_commits(repository: Repository, proposals: Sequence[Discussion]) -> list[str]:
    """Return the commits with which pull requests were merged, the newest first."""
    merged = [one.num for one in reversed(proposals) if one.status == "merged"]
    details = [repository.api.get_discussion_details(repository.id, number) for number in merged]
    return [one.merge_commit_oid for one in details if one.merge_commit_oid]


def _tag_merged(repository: Repository, proposals: Sequence[Discussion]) -> None:
    """Tag releases that were merged when a newer model was already there, so that no run has recorded it."""
    landed = [proposal for proposal in proposals if proposal.status == "merged"]
    tags = repository.refs().tags if landed else {}
    for proposal in landed:
        tag = _tag(proposal)
        if tag in tags:
            continue
        if merged := [
            commit for commit in _merge_commits(repository, [proposal]) if _is_release(repository, commit, tag)
        ]:
            repository.api.create_tag(repository.id, tag=tag, revision=merged[0])
            tags[tag] = merged[0]
        else:
            repository.log(f"{repository.where}: pull request {proposal.num} was merged with other files: not tagged")


def _is_release(repository: Repository, commit: str, tag: str) -> bool:
    """Whether a commit holds the files of the release with a tag, and no others."""
    found = ReleaseRecord.of(repository, commit)
    return found is not None and found.tag == tag


def _close(repository: Repository, proposals: Sequence[Discussion], reason: str) -> None:
    comment = f"{reason}\n\n{_NO_REJECTION}"
    for proposal in proposals:
        repository.api.change_discussion_status(repository.id, proposal.num, "closed", comment=comment)


def _create(
    repository: Repository, release: ReleasePlan, state: RepositoryState, recipe: str, description: str
) -> None:
    repository.propose(
        changes(release, state),
        parent=state.head,
        title=f"Publish {release.tag} of {recipe}",
        description=f"{description}\n\n{PUBLISH_ID}: {release.publish_id}",
    )
