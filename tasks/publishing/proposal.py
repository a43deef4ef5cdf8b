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
from typing import Final, NamedTuple

from huggingface_hub.community import Discussion, DiscussionComment, DiscussionStatusChange

from params.foundation.errors import StaleBlessingError
from tasks.hub_client.faults import InconsistentStateError
from tasks.hub_client.main_history import PUBLISH_ID
from tasks.hub_client.release_file import ReleaseRecord
from tasks.hub_client.repository import HubRepository, Tree, tree_weights_digest
from tasks.publishing.exactly_once import RepositoryState, files_to_write_or_remove
from tasks.publishing.release_plan import ReleaseOutcome, ReleasePlan

WAITING: Final = frozenset({"open", "draft"})
"""Statuses of a pull request that a person may merge or close."""
_NO_REJECTION = "Evergreen has closed this pull request itself. That rejects no model: it may be proposed again."
"""The end of the comment with which we close one; later runs look for it."""
_TITLE = re.compile(r"Publish (?P<tag>\S+) of (?P<recipe>\S+)")


class _SeenProposals(NamedTuple):
    """Pull requests that propose releases, oldest first."""

    of_all: Sequence[Discussion]
    """Those of any recipe; the others are of this one."""
    same: Sequence[Discussion]
    """Of the release that is to be proposed."""
    earlier: Sequence[Discussion]
    """Of others."""
    is_open: Sequence[Discussion]
    waiting: Sequence[Discussion]
    """Open ones with all files of the release."""


@dataclass(frozen=True)
class ReleaseProposals:
    """The pull requests that propose the models of a recipe."""

    repository: HubRepository
    recipe: str

    def propose(self, release: ReleasePlan) -> ReleaseOutcome:
        """Propose a release, unless it was proposed before; return what became of it.

        Raises:
            HubRefusedError: the Hub would refuse again.
            StaleBlessingError: main holds other weights than the release replaces; an open proposal was closed for it.
            TransientError: no clear answer in time. Proposing again later is safe.
        """
        fix = "run it again later: a proposal that was made is found"
        return self.repository.retry_until_clear(lambda: self._look_and_act(release), fix=fix)

    def withdraw(self, reason: str) -> None:
        """Close the open proposals of the recipe, because the gate no longer says that its model may be published."""

        def attempt() -> None:
            ours = [found for found in self._of_any_recipe() if _named(found)["recipe"] == self.recipe]
            self._tag_merged(ours)
            self._close([found for found in ours if found.status in WAITING], reason)

        self.repository.retry_until_clear(attempt, missing=lambda: None)

    def decision(self, number: int) -> ReleaseOutcome | None:
        """Return what a person has decided on a pull request; None if it waits, or if we have closed it."""

        def look() -> ReleaseOutcome | None:
            found = next((one for one in self._of_any_recipe() if one.num == number), None)
            if found and found.status == "closed" and self._is_rejected(found):
                return ReleaseOutcome("rejected", pull_request=number, note=f"pull request {number} was closed")
            if found and found.status == "merged":
                self._tag_merged([found])
                if commit := self.repository.refs().tags.get(_named(found)["tag"]):
                    note = f"pull request {number} was merged"
                    return ReleaseOutcome("published", commit, pull_request=number, note=note)
            return None

        return self.repository.retry_until_clear(look, missing=lambda: None)

    def _look_and_act(self, release: ReleasePlan, *, created: bool = False) -> ReleaseOutcome:
        """Make one attempt; it can be repeated whatever it raises."""
        repository, state = self.repository, RepositoryState.read(self.repository, release)
        seen = self._sort(release)
        self._tag_merged(seen.earlier)
        if decided := self._decided(release, state, seen):
            return decided
        waiting = seen.waiting[:1]
        torn = [found for found in seen.is_open if found in seen.same and found not in seen.waiting]
        self._close(torn, f"It holds other files than {release.tag}.")
        superseded = [found for found in seen.is_open if found not in torn and found not in waiting]
        self._close(superseded, f"A newer model of this recipe is proposed as {release.tag}.")
        if waiting:
            number = waiting[0].num
            return ReleaseOutcome("proposed", pull_request=number, note=f"pull request {number} waits for approval")
        if created:
            raise InconsistentStateError("the pull request was created and is not visible")
        repository.commit(
            state.operations(),
            parent=state.head,
            title=f"Publish {release.tag} of {self.recipe}",
            trailers={PUBLISH_ID: release.publish_id},
            description=release.description,
            create_pr=True,
        )
        return self._look_and_act(release, created=True)  # are there two?

    def _decided(self, release: ReleasePlan, state: RepositoryState, seen: _SeenProposals) -> ReleaseOutcome | None:
        """Return what has become of a release already; StaleBlessingError if it may not replace what main holds."""
        if published := state.find_release(merged=self._merge_commits(seen.same)):
            self._close(seen.is_open, f"{release.tag} is published.")
            return published
        try:
            state.refuse_stale()
        except StaleBlessingError as error:
            self._close(seen.is_open, f"{error.what[0].upper()}{error.what[1:]}.")
            raise
        rejected = None if seen.waiting else self._find_rejection(seen.of_all, {release.weights or "", *release.forms})
        if rejected:
            return ReleaseOutcome("rejected", pull_request=rejected, note=f"pull request {rejected} was closed")
        return None

    def _sort(self, release: ReleasePlan) -> _SeenProposals:
        of_all = self._of_any_recipe()
        ours = [found for found in of_all if _named(found)["recipe"] == self.recipe]
        same = [found for found in ours if _named(found)["tag"] == release.tag]
        earlier = [found for found in ours if found not in same]
        is_open = [found for found in ours if found.status in WAITING]
        waiting = [found for found in same if found in is_open and self._has_files_of(found, release)]
        return _SeenProposals(of_all, same, earlier, is_open, waiting)

    def _of_any_recipe(self) -> list[Discussion]:
        """Return the pull requests that propose a release of any recipe, oldest first."""
        found = self.repository.api.get_repo_discussions(self.repository.id, discussion_type="pull_request")
        return sorted((one for one in found if _TITLE.fullmatch(one.title)), key=lambda one: one.num)

    def _files(self, proposal: Discussion) -> Tree:
        return self.repository.tree(f"refs/pr/{proposal.num}")

    def _has_files_of(self, proposal: Discussion, release: ReleasePlan) -> bool:
        return not files_to_write_or_remove(release, self._files(proposal))

    def _find_rejection(self, proposals: Sequence[Discussion], weights: Collection[str]) -> int | None:
        """Return the newest pull request of this account with one of these models that a person has closed."""
        closed = [proposal for proposal in reversed(proposals) if proposal.status == "closed"]
        account = self.repository.api.whoami(cache=True)["name"] if closed else None
        for proposal in closed:
            is_ours = proposal.author == account and tree_weights_digest(self._files(proposal)) in weights
            if is_ours and self._is_rejected(proposal):
                return proposal.num
        return None

    def _is_rejected(self, proposal: Discussion) -> bool:
        """Whether a person closed a pull request of this account: only those who may write can, and those who use the account."""
        events = self.repository.api.get_discussion_details(self.repository.id, proposal.num).events
        last = max((n for n, event in enumerate(events) if isinstance(event, DiscussionStatusChange)), default=None)
        if last is None:
            return True
        return not any(
            isinstance(beside, DiscussionComment)
            and beside.author == events[last].author
            and beside.content.rstrip().endswith(_NO_REJECTION)
            for beside in events[max(last - 1, 0) : last + 2]
        )

    def _merge_commits(self, proposals: Sequence[Discussion]) -> list[str]:
        """Return the commits with which pull requests were merged, the newest first."""
        merged = [one.num for one in reversed(proposals) if one.status == "merged"]
        details = [self.repository.api.get_discussion_details(self.repository.id, number) for number in merged]
        return [one.merge_commit_oid for one in details if one.merge_commit_oid]

    def _tag_merged(self, proposals: Sequence[Discussion]) -> None:
        """Tag releases that were merged when a newer model was already there, so that no run has recorded it."""
        repository, landed = self.repository, [proposal for proposal in proposals if proposal.status == "merged"]
        tags = repository.refs().tags if landed else {}
        for proposal in landed:
            if (tag := _named(proposal)["tag"]) in tags:
                continue
            for commit in self._merge_commits([proposal]):
                found = ReleaseRecord.of(repository, commit)
                if found and found.tag == tag:
                    repository.api.create_tag(repository.id, tag=tag, revision=commit)
                    tags[tag] = commit
            if tag not in tags:
                told = "was merged with other files: not tagged"
                repository.log(f"{repository.where}: pull request {proposal.num} {told}")

    def _close(self, proposals: Sequence[Discussion], reason: str) -> None:
        comment = f"{reason}\n\n{_NO_REJECTION}"
        for proposal in proposals:
            self.repository.api.change_discussion_status(self.repository.id, proposal.num, "closed", comment=comment)


def _named(proposal: Discussion) -> re.Match[str]:
    """The recipe and the tag in the title."""
    title = _TITLE.fullmatch(proposal.title)
    assert title is not None, proposal.title
    return title
