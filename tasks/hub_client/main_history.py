"""The history of main: what was published when, and what was rolled back by whom and why.

for line in release_table_lines(read_main_commits(HubRepository(HfApi(), "me/model"))):
    print(line)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from functools import cached_property
from typing import Final, Literal

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import GitCommitInfo

from tasks.hub_client.release_file import RELEASE_FILE, TAG_PREFIX, ReleaseRecord
from tasks.hub_client.repository import MAIN, HubRepository, PublishedModel, Tree, tree_weights_digest

PUBLISH_ID: Final = "Publish-Id"
"""Trailer of a release's commit, which helps to find it; what makes it a release is its RELEASE_FILE."""
ROLLBACK_ID: Final = "Rollback-Id"
ROLLED_BACK_TO: Final = "Rolled-Back-To"
ROLLED_BACK_FROM: Final = "Rolled-Back-From"
GATE: Final = "Gate"
BY: Final = "By"
REASON: Final = "Reason"
"""Trailers of a rollback's commit."""
_NO_DISCUSSIONS = frozenset({403, 404, 410})
"""A repository whose discussions are turned off answers so."""


@dataclass(frozen=True)
class MainCommit:
    commit: str
    tags: tuple[str, ...]
    title: str
    date: str
    """When it was made, by the Hub's clock: ISO 8601 in UTC, to the second."""
    kind: Literal["release", "rollback", "other"]
    """`other`: a commit that neither publishing nor a rollback made."""
    to: str | None
    by: str | None
    why: str | None
    """For a rollback: the tag with the files that main got back, who asked for it, and the reason."""


def read_main_commits(repository: HubRepository, *, last: int | None = None) -> list[MainCommit]:
    """Ask for the history of main, and return its commits: see `MainHistory.describe_commits`.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: no clear answer in time.
    """
    return MainHistory.read(repository).describe_commits(last=last)


@dataclass(frozen=True)
class RolledBackCommit:
    """A commit of main that people have rolled back from."""

    commit: str
    tag: str | None
    by: str
    why: str

    @property
    def sentence(self) -> str:
        """Return, for example, `release-0123456789ab, which was rolled back by Ada: leaked rows`."""
        return f"{self.tag or self.commit}, which was rolled back by {self.by}: {self.why}"


@dataclass(frozen=True)
class MainHistory:
    """The history of main as the Hub told it once, and what is asked about its commits.

    Files of commits are looked up when they are asked for, once each. All methods raise what `HubRepository.retry_until_clear` raises.
    """

    repository: HubRepository
    tags: Mapping[str, str]
    """The commits that tags point at, by name."""
    commits: Sequence[GitCommitInfo]
    """Newest first; empty without a repository, or a branch main."""
    trees: dict[str, Tree] = field(default_factory=dict)

    @classmethod
    def read(cls, repository: HubRepository) -> MainHistory:
        """Ask for commits and tags."""

        def look() -> MainHistory:
            branches, tags = repository.refs()
            return cls(repository, tags, repository.history() if MAIN in branches else [])

        return repository.retry_until_clear(look, missing=lambda: cls(repository, {}, []))

    def describe_commits(self, *, last: int | None = None) -> list[MainCommit]:
        """Return the `last` commits of main, newest first; none if there is no such repository, or none that this token may read.

        A release is the first commit with its RELEASE_FILE, however it came to main, if it is tagged as one or holds the files which
        that describes. A rollback is a commit with the trailers of one that does what they say, and was not proposed by a pull
        request. No title and no message makes a commit one of the two.
        """
        entries: list[MainCommit] = []
        before = self.commits[last : last + 1] if last is not None else ()
        known: set[str | None] = {_blobs(self.tree(one.commit_id)).get(RELEASE_FILE) for one in before}
        for number, commit in reversed(list(enumerate(self.commits[:last]))):
            rollback = self.rollback(number) or {}
            file = None if rollback else self.file_of_release(number, known)
            release_or_other: Literal["release", "other"] = "release" if file else "other"
            known.add(file)
            entries.append(
                MainCommit(
                    commit=commit.commit_id,
                    tags=tuple(sorted(tag for tag, target in self.tags.items() if target == commit.commit_id)),
                    title=commit.title,
                    date=commit.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    kind="rollback" if rollback else release_or_other,
                    to=rollback.get(ROLLED_BACK_TO),
                    by=rollback.get(BY),
                    why=rollback.get(REASON),
                )
            )
        return entries[::-1]

    def head(self) -> PublishedModel | None:
        """Return the model that main holds; None if it holds none."""
        commit = self.commits[0].commit_id if self.commits else None
        weights = commit and self.weights(commit)
        return PublishedModel(commit, self.tag_of(commit), weights) if commit and weights else None

    def weights(self, commit: str) -> str | None:
        """Return the digest of a commit's weights; None if it has none."""
        return tree_weights_digest(self.tree(commit))

    def tag_of(self, commit: str) -> str | None:
        """Return a tag of a commit, the one that publishing made if there are several."""
        tags = [tag for tag, target in self.tags.items() if target == commit]
        return min(tags, key=lambda one: (not one.startswith(TAG_PREFIX), one), default=None)

    def find_rollback_reason(self, weights: Collection[str], *, of_form: bool = False) -> str | None:
        """Return who rolled back from the model, and why; None if it was published again since.

        A model that was published between the one that a rollback leaves and the one that it brings back is as distrusted as the first of the two.
        `weights` are the digests of its releases, which may hold it in several forms. With `of_form` they are one form of it: only a rollback from
        that form itself says something of the form.
        """
        left = self.left_behind()
        last = max((number for number, one in enumerate(self.commits) if one.commit_id in left), default=-1)
        for commit in self.commits[: last + 1]:
            if self.weights(commit.commit_id) in weights:
                found = left.get(commit.commit_id)
                is_meant = found is not None and (not of_form or self.weights(found[ROLLED_BACK_FROM]) in weights)
                return f"by {found[BY]}: {found[REASON]}" if found and is_meant else None
        return None

    def find_rolled_back(
        self, weights: Collection[str], forms: Iterable[Collection[str]] = ()
    ) -> dict[str, RolledBackCommit]:
        """Return those of the models with these digests of their weights that a rollback has left behind, by the digest.

        A rollback leaves behind what main got after the files that it brings back: a model that was published in between is as distrusted as
        the last one. Weights that main got again later are not left behind. Of weights that main never had, nothing is said.

        `forms` has the digests of models that may be published in several forms: who has left one behind for another distrusts the form only.
        """
        left = self.left_behind() if weights else {}
        found: dict[str, RolledBackCommit] = {}
        for commit, trailers in left.items():  # newest first: the oldest commit with the weights is their release
            digest = self.weights(commit)
            if digest in weights:
                found[str(digest)] = RolledBackCommit(commit, self.tag_of(commit), trailers[BY], trailers[REASON])
        if not found:
            return {}
        kept = {self.weights(one.commit_id) for one in self.commits if one.commit_id not in left}
        kept.update(*(group for group in forms if not kept.isdisjoint(group)))
        return {digest: one for digest, one in found.items() if digest not in kept}

    def tree(self, commit: str) -> Tree:
        if commit not in self.trees:
            self.trees[commit] = self.repository.retry_until_clear(lambda: self.repository.tree(commit))
        return self.trees[commit]

    def file_of_release(self, number: int, known: Collection[str | None]) -> str | None:
        """Return the git hash of a release's RELEASE_FILE, which is none of `known`; None if a commit is no release."""
        commit, repository = self.commits[number].commit_id, self.repository
        file = self.tree(commit).get(RELEASE_FILE)
        if file is None or file.blob_id in known:
            return None
        # Who may write main has tagged it; publishing does so after a look at its files.
        is_tagged = any(target == commit and tag.startswith(TAG_PREFIX) for tag, target in self.tags.items())
        is_release = is_tagged or repository.retry_until_clear(lambda: ReleaseRecord.of(repository, commit))
        return file.blob_id if is_release else None

    def rollback(self, number: int) -> Mapping[str, str] | None:
        """Return the trailers of a rollback: a commit that brings back the files of a tag, made by who may write main."""
        commit, older = self.commits[number], [one.commit_id for one in self.commits[number + 1 :]]
        trailers: dict[str, str] = {}
        for line in commit.message.splitlines():  # of several with one name, the first counts
            name, colon, value = line.partition(": ")
            if colon:
                trailers.setdefault(name, value)
        if not {ROLLED_BACK_TO, ROLLED_BACK_FROM, BY, REASON} <= trailers.keys():
            return None
        if older[:1] != [trailers[ROLLED_BACK_FROM]] or commit.commit_id in self.merges:
            return None
        target = self.tags.get(trailers[ROLLED_BACK_TO])  # without it, the tag has been deleted since
        held = _blobs(self.tree(commit.commit_id))
        brings_back = any(held == _blobs(self.tree(one)) for one in ([target] if target else older))
        return trailers if brings_back else None

    def left_behind(self) -> dict[str, Mapping[str, str]]:
        """Return the commits that rollbacks have left behind, each with the trailers of the rollback."""
        found: dict[str, Mapping[str, str]] = {}
        number = 0
        while number < len(self.commits):
            trailers = self.rollback(number)
            target = self._brought_back(number, trailers) if trailers else number + 1
            if trailers:
                found |= {one.commit_id: trailers for one in self.commits[number + 1 : target]}
            number = target
        return found

    def _brought_back(self, number: int, trailers: Mapping[str, str]) -> int:
        """Return the place of the commit whose files a rollback brought back."""
        tagged = self.tags.get(trailers[ROLLED_BACK_TO])
        places = range(number + 1, len(self.commits))
        for place in places:
            if self.commits[place].commit_id == tagged:
                return place
        held = _blobs(self.tree(self.commits[number].commit_id))
        same = (place for place in places if _blobs(self.tree(self.commits[place].commit_id)) == held)
        return next(same, min(number + 2, len(self.commits)))

    @cached_property
    def merges(self) -> Collection[str | None]:
        """The commits with which pull requests were merged. Their messages may be of people who may not write main."""
        api, repo_id = self.repository.api, self.repository.id

        def look() -> set[str | None]:
            try:
                found = list(api.get_repo_discussions(repo_id, discussion_type="pull_request"))
            except HfHubHTTPError as error:
                if error.response.status_code in _NO_DISCUSSIONS:
                    return set()
                raise
            merged = [one.num for one in found if one.status == "merged"]
            return {api.get_discussion_details(repo_id, number).merge_commit_oid for number in merged}

        return self.repository.retry_until_clear(look)


def _blobs(tree: Tree) -> dict[str, str]:
    return {path: file.blob_id for path, file in tree.items()}


def release_table_lines(entries: Sequence[MainCommit]) -> list[str]:
    """Format the log as a table for a terminal, with a heading; `*` marks the commit that main is at."""
    rows: list[tuple[str, ...]] = [("", "commit", "date (UTC)", "kind", "tags", "what")]
    for number, entry in enumerate(entries):
        what = entry.title if entry.kind != "rollback" else f"to {entry.to}, by {entry.by}: {entry.why}"
        cells = (entry.commit[:12], entry.date[:16].replace("T", " "), entry.kind, ", ".join(entry.tags), what)
        rows.append(("" if number else "*", *map(to_one_printable_line, cells)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def to_one_printable_line(text: str) -> str:
    """Remove line ends and control characters, with which a text could pass for another trailer or row."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
