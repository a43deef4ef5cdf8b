"""Publish a folder to a Hub repository as exactly one commit and one tag, whatever fails on the way.

At most one commit lands, because each attempt sends `parent_commit`, the head that it looked at: the Hub compares and swaps,
and refuses a late or repeated request of an older attempt with 412. At least one lands, because after every unclear answer the
loop looks before it acts: is the tag there, is a commit with our id in the history, does main hold our files. A commit counts
as ours when it holds our files, not because the client returned its id.

    release = plan_release(folder, repo_id="me/model", private=True, made_from={"data": "..."})
    published = publish_release(HubRepository(HfApi(), "me/model", timeout_s=600), release)

A release that landed once is never committed again, even when others have followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from params.foundation.errors import HubRefusedError, ModelError, StaleBlessingError
from tasks.hub_client.faults import InconsistentStateError
from tasks.hub_client.main_history import PUBLISH_ID
from tasks.hub_client.release_file import HUBS_OWN_FILES, RELEASE_FILE, ReleasedFile
from tasks.hub_client.repository import MAIN, HubRepository, Tree, tree_weights_digest
from tasks.publishing.release_plan import ANY_WEIGHTS, ReleaseOutcome, ReleasePlan

_IN_MEMORY_BYTES = 10 << 20
"""Files up to this size are read once, compared with the plan and sent from memory."""


def publish_release(repository: HubRepository, release: ReleasePlan) -> ReleaseOutcome:
    """Publish a release, unless the Hub has it.

    Args:
        repository: where; `timeout_s` limits all attempts, requests and waits together.
        release: from `plan_release`; its `replaces` is ignored if it has landed.

    Raises:
        HubRefusedError: the Hub would refuse again: access, name, a tag that holds something else.
        StaleBlessingError: main holds other weights than it replaces.
        TransientError: no clear answer in time. Publishing again later is safe: nothing lands twice.
        ModelError: a file was changed since the release was planned.
    """

    def look_and_act() -> ReleaseOutcome:
        state = RepositoryState.read(repository, release)
        if found := state.find_release():
            return found
        state.refuse_stale()
        title, trailers = f"Publish {release.tag}", {PUBLISH_ID: release.publish_id}
        commit = repository.commit(state.operations(), parent=state.head, title=title, trailers=trailers)
        if files_to_write_or_remove(release, repository.tree(commit)):
            raise InconsistentStateError(f"commit {commit}, which the client returned, does not hold the release")
        state.tag(commit)
        return ReleaseOutcome("published", commit, "committed")

    fix = "publish again later: what has landed is found, and nothing lands twice"
    published = repository.retry_until_clear(look_and_act, fix=fix)
    repository.log(f"{repository.where}: {published.how}, {published.commit} is {release.tag}")
    return published


@dataclass(frozen=True)
class RepositoryState:
    """What a repository holds when an attempt to publish a release looks at it."""

    repository: HubRepository
    release: ReleasePlan
    tagged: str | None
    """The commit that the release's tag points at."""
    head: str
    """The commit of main."""
    files: Tree
    """The files of that commit."""

    @classmethod
    def read(cls, repository: HubRepository, release: ReleasePlan) -> RepositoryState:
        """Return what a repository holds; create it if it is not there."""
        branches, tags = repository.ensure_exists(private=release.private)
        tagged, head = tags.get(release.tag), branches.get(MAIN)
        if tagged and files_to_write_or_remove(release, repository.tree(tagged)):
            what = f"the tag {release.tag} holds other files, at {tagged}"
            raise HubRefusedError(
                repository.where, what, "choose another tag; a tag that others may use is never moved"
            )
        if head is None:
            what = f"the repository has no branch {MAIN}"
            raise HubRefusedError(repository.where, what, "create one, or remove the repository")
        return cls(repository, release, tagged, head, repository.tree(head))

    def find_release(self, *, merged: Sequence[str] = ()) -> ReleaseOutcome | None:
        """Return the release if main's history has it, and tag it; None if it has not landed.

        `merged` are commits with which pull requests of its name were merged.
        """
        repository, release, commits = self.repository, self.release, self.repository.history()
        # another release followed, or it was rolled back
        superseded = tree_weights_digest(self.files) != release.weights
        note = "it was published before, and main holds another model now" if superseded else ""
        if self.tagged in {commit.commit_id for commit in commits}:
            return ReleaseOutcome("published", self.tagged, "found by its tag", note=note)
        trailer = f"{PUBLISH_ID}: {release.publish_id}"
        landed = [commit.commit_id for commit in commits[::-1] if trailer in commit.message.splitlines()]
        places = [*((commit, "merged") for commit in merged), *((commit, "found by its id") for commit in landed)]
        for commit, how in [*places, (self.head, "found on main")]:
            # Whoever proposes a change words its commit: only the files say whether it is this release.
            if not files_to_write_or_remove(release, self.files if commit == self.head else repository.tree(commit)):
                self.tag(commit)
                return ReleaseOutcome("published", commit, how, note=note)
            if how != "found on main":
                told = f"has the id of {release.tag} and other files: it is not this release"
                repository.log(f"{repository.where}: commit {commit} {told}")
        return None

    def tag(self, commit: str) -> None:
        """Tag a release that has landed. A tag outside of main's history stays: main was moved back, and it holds the release."""
        if not self.tagged:
            self.repository.api.create_tag(self.release.repo_id, tag=self.release.tag, revision=commit)

    def refuse_stale(self) -> None:
        """Refuse to replace another model than the one that the release was compared with."""
        if self.release.replaces not in (ANY_WEIGHTS, tree_weights_digest(self.files)):
            what = f"another model was published since this one was compared with the champion: commit {self.head}"
            fix = "evaluate again: `evergreen evaluate ...`, or start the flow, which does both"
            raise StaleBlessingError(self.repository.where, what, fix)

    def operations(self) -> list[CommitOperationAdd | CommitOperationDelete]:
        """Return the operations of a commit that makes main hold the release; new ones for each attempt."""
        return [
            CommitOperationDelete(change) if isinstance(change, str) else _addition(self.release, change)
            for change in files_to_write_or_remove(self.release, self.files)
        ]


def files_to_write_or_remove(release: ReleasePlan, current: Tree) -> list[ReleasedFile | str]:
    """Return what separates a commit from the release: files to write, and paths to remove."""
    planned = {file.path for file in release.files} | HUBS_OWN_FILES
    write = [file for file in release.files if file.path not in current or not file.is_held(current[file.path])]
    return [*write, *(path for path in current if path not in planned)]


def _addition(release: ReleasePlan, file: ReleasedFile) -> CommitOperationAdd:
    """Return the operation that adds a file, with the content that was planned."""
    if file.path == RELEASE_FILE:
        return CommitOperationAdd(file.path, release.record)
    source = release.folder / file.path
    try:
        content = source.read_bytes() if file.size <= _IN_MEMORY_BYTES else str(source)
        addition = CommitOperationAdd(file.path, content)
        sha256 = addition.upload_info.sha256.hex()
    except OSError as error:
        sha256 = f"unreadable ({error.strerror})"
    if sha256 != file.sha256:
        what = f"was {file.sha256} when the release was planned and is {sha256} now"
        raise ModelError(str(source), what, "publish again when nothing writes to its folder")
    return addition
