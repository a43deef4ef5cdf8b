"""The pull requests of one repository.

    refs/pr/<number>              the branch of a pull request; it exists if this ref exists
    discussions/<number>.json     title, status and events, written whole

A pull request's file is written before its ref, so a number is never used again, even if the process is killed in between.
A merge puts all changes on main as one commit with one parent, as on the Hub. It is stored in the file before main moves,
so the next reader knows whether it has happened. It is by file: a file that main has changed since the pull request's base,
too, is a conflict, unless both have the same content.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dulwich.objects import Commit, ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo
from pydantic import BaseModel, Field

from tasks.hub_server import git_objects
from tasks.hub_server.errors import HubError, branch_moved_error
from tasks.hub_server.names import COMMIT_ID, file_above, pull_request_number, pull_request_ref, to_full_ref
from tasks.hub_server.repositories import MAIN, BareRepository

_MAIN = to_full_ref("heads", MAIN)
_MAX_TITLE = 200
_MAX_COMMENT = 64 << 10
"""In characters, as on the Hub."""
Status = Literal["draft", "open", "closed", "merged"]
"""Earlier versions made drafts, which can be merged like open ones, and changes of titles."""


class PullRequestEvent(BaseModel):
    type: Literal["comment", "status-change", "title-change", "commit"]
    author: str
    text: str
    """The comment, the new status, the new title, or the title of the commit."""
    before: str = ""
    """The old title."""
    id: str = Field(default_factory=lambda: secrets.token_hex(12))
    """A commit's id in git, where the event is a commit."""
    time: int = Field(default_factory=lambda: int(time.time()))
    """Seconds since 1970, UTC."""


class RecordedMerge(BaseModel):
    """A merge, stored before main moves. It has happened if main has the commit, even if the process is killed then."""

    commit: str
    parent: str
    """Main's head before."""
    events: list[PullRequestEvent]


class PullRequest(BaseModel):
    """A pull request as it is stored. What git knows, its commits, is not stored again."""

    number: int
    title: str
    author: str
    base: str
    """The commit on main from which it starts."""
    status: Status
    events: list[PullRequestEvent]
    """Without commits. The first one is the description."""
    merge: RecordedMerge | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can still change: it is open or a draft."""
        return self.status in ("open", "draft")

    def may_set(self, status: str, user: str, *, can_write: bool) -> bool:
        """Whether `user` may set this status. The author may close it, but not open what somebody else has closed."""
        changes = [event for event in self.events if event.type == "status-change"]
        closed_by = changes[-1].author if changes and self.status == "closed" else user
        return can_write or (user == self.author and (status == "closed" or closed_by == user))

    def history(self, commits: list[git_objects.CommitRecord]) -> list[PullRequestEvent]:
        """Return the events together with `commits`, by time. The description stays first."""
        found = [
            PullRequestEvent(type="commit", author=each.author, text=each.title, id=each.sha, time=each.time)
            for each in commits
        ]
        return [self.events[0], *sorted(found + self.events[1:], key=lambda event: event.time)]


@dataclass(frozen=True)
class PullRequestChanges:
    """What a pull request changes since its base."""

    head: str
    main: ObjectID
    commits: list[git_objects.CommitRecord]
    """Oldest first."""
    files: list[tuple[str, git_objects.TreeEntry | None, git_objects.TreeEntry | None]]
    """Path, and the file before and after."""
    conflicts: list[str]
    """Files that cannot be merged into main."""
    merged: dict[str, ObjectID]
    """The files of main with the changes."""


@dataclass(frozen=True)
class PullRequests:
    """The pull requests of one repository, as a user may change them. HubError 404 for one that does not exist."""

    repository: BareRepository
    user: str = ""
    """Who changes them; empty for somebody who only reads."""
    can_write: bool = False
    """Whether this user can write to the repository."""

    def heads(self) -> dict[str, str]:
        """Return number -> commit id of the branches."""
        with self.repository.open() as git:
            return {str(number): sha.decode() for number, sha in sorted(_heads(git).items())}

    def all(self) -> list[PullRequest]:
        """Return all pull requests, newest first."""
        with self.repository.open() as git:
            numbers = sorted(_heads(git), reverse=True)
            return [self._load(git, number) for number in numbers if self._path(number).exists()]

    def get(self, number: int) -> PullRequest:
        with self.repository.open() as git:
            return self._load(git, number)

    def read(self, number: int) -> tuple[PullRequest, PullRequestChanges]:
        with self.repository.open() as git:
            found = self._load(git, number)
            return found, _read_changes(git, found)

    def create(
        self, changes: Sequence[git_objects.Change], *, title: str, description: str, parent: str | None, size: int
    ) -> tuple[PullRequest, str]:
        """Create a pull request with one commit of `size` bytes, and return it and the commit's id.

        It starts from `parent`, a commit on main (7 to 40 digits), or from main's head. HubError 400 for an invalid title
        or description, if `parent` is not on main, or as `BareRepository.commit`.
        """
        line = " ".join(title.split())
        if not 0 < len(line) <= _MAX_TITLE:
            raise HubError(400, f"The title of a pull request has 1 to {_MAX_TITLE} characters, this one {len(line)}")
        events = [self._comment(description)]
        with self.repository.writing() as git:
            base = _find_on_main(git, parent) if parent else git.refs[_MAIN]
            self._charge(size)
            message = git_objects.commit_message(title, description)
            head = self.repository.add_commit(git, base, changes, message=message, user=self.user)
            taken = {int(path.stem) for path in self._path(0).parent.glob("*.json")} | _heads(git).keys()
            number, author = max(taken, default=0) + 1, self.user
            found = PullRequest(
                number=number, title=line, author=author, base=base.decode(), status="open", events=events
            )
            self._save(found)
            git.refs.add_if_new(pull_request_ref(number), head)
            return found, head.decode()

    def commit(
        self, number: int, changes: Sequence[git_objects.Change], *, message: str, parent: str | None, size: int
    ) -> str:
        """Add a commit of `size` bytes to a pull request and return its id.

        HubError as `BareRepository.commit`; 403 for users who are neither its author nor can write; 409 if it is not open.
        """
        with self.repository.writing() as git:
            found = self._load(git, number)
            self.require_author(found)
            _require_open(found)
            ref = pull_request_ref(number)
            self._charge(size)
            return self.repository.commit(git, ref, changes, message=message, parent=parent, user=self.user)

    def comment(self, number: int, text: str) -> PullRequestEvent:
        """Add a comment. HubError 400 if it is empty or too long."""
        if not text.strip():
            raise HubError(400, "The comment is empty")
        event = self._comment(text)
        with self.repository.writing() as git:
            found = self._load(git, number)
            self._charge(len(event.text.encode(errors="replace")))
            found.events.append(event)
            self._save(found)
        return event

    def set_status(
        self, number: int, status: Status, *, comment: str = "", seen: str | None = None
    ) -> PullRequestEvent:
        """Open or close a pull request, with a comment.

        HubError 403 without permission; 409 if it has this status, is merged, or has other commits than up to `seen`.
        """
        with self.repository.writing() as git:
            found = self._load(git, number, seen)
            if not found.may_set(status, self.user, can_write=self.can_write):
                raise HubError(403, f"You don't have the rights to set pull request #{number} to {status}")
            if found.status in (status, "merged"):
                raise HubError(409, f"Pull request #{number} is already {found.status}")
            found.status = status
            self._charge(len(comment.encode(errors="replace")))
            found.events += self._events(comment, status)
            self._save(found)
            return found.events[-1]

    def merge(self, number: int, *, comment: str = "", seen: str | None = None) -> str:
        """Put the changes on main as one commit, and return its id.

        HubError 403 without permission; 409 if the pull request is not open, has other commits than up to `seen`, or is
        in conflict with main.
        """
        if not self.can_write:
            raise HubError(403, f"You don't have the rights to merge pull request #{number}")
        with self.repository.writing() as git:
            found = self._load(git, number, seen)
            _require_open(found)
            changes = _read_changes(git, found)
            if changes.conflicts:
                what = f"Main has changed since pull request #{number} was made, in the same files"
                raise HubError(409, f"{what}: {', '.join(changes.conflicts[:10])}")
            lines = [f"- {commit.title} ({commit.sha})" for commit in changes.commits]
            authors = sorted({commit.author for commit in changes.commits} - {self.user})
            trailers = [f"Co-authored-by: {author} <{author}@localhost>" for author in authors]
            message = git_objects.commit_message(
                f"{found.title} (#{number})", "\n".join(lines + [""] * bool(trailers) + trailers)
            )
            sha = git_objects.write_commit(git, changes.merged, [changes.main], message, self.user)
            events = self._events(comment, "merged")
            found.merge = RecordedMerge(commit=sha.decode(), parent=changes.main.decode(), events=events)
            self._save(found)
            if not git.refs.set_if_equals(_MAIN, changes.main, sha):
                raise branch_moved_error()
            self._save(self._load(git, number))
            self.repository.reader_shares.clear(found.author)
            return sha.decode()

    def require_author(self, found: PullRequest) -> None:
        """Raise HubError 403 unless the user is the author of a pull request or can write."""
        if self.user != found.author and not self.can_write:
            raise HubError(403, f"You don't have the rights to change pull request #{found.number}")

    def _charge(self, size: int) -> None:
        """Count bytes that are stored for a user who cannot write, inside `writing`. HubError 413 if they are too many."""
        if not self.can_write:
            self.repository.reader_shares.charge(self.user, size)

    def _comment(self, text: str) -> PullRequestEvent:
        if "\0" in text or len(text) > _MAX_COMMENT:
            raise HubError(400, f"The text has a NUL character, or more than {_MAX_COMMENT} characters")
        return PullRequestEvent(type="comment", author=self.user, text=text)

    def _events(self, comment: str, status: Status) -> list[PullRequestEvent]:
        """Return a change of the status, after a comment if there is one."""
        comments = [self._comment(comment)] if comment.strip() else []
        return [*comments, PullRequestEvent(type="status-change", author=self.user, text=status)]

    def _path(self, number: int) -> Path:
        return self.repository.path / "discussions" / f"{number}.json"

    def _load(self, git: Repo, number: int, seen: str | None = None) -> PullRequest:
        path, ref = self._path(number), pull_request_ref(number)
        if ref not in git.refs or not path.exists():
            raise HubError(404, f"There is no pull request #{number}")
        if seen not in (None, git.refs[ref].decode()):
            raise HubError(409, f"Pull request #{number} has changed since you looked at it: load its page again")
        found = PullRequest.model_validate_json(path.read_bytes())
        merge = found.merge
        if merge and found.status != "merged":
            since = _first_parents(git, git.refs[_MAIN], until=merge.parent)
            if any(commit.id.decode() == merge.commit for commit in since):
                found.status = "merged"
                found.events += merge.events
        return found

    def _save(self, found: PullRequest) -> None:
        path = self._path(found.number)
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(found.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _require_open(found: PullRequest) -> None:
    if not found.is_open:
        raise HubError(409, f"Pull request #{found.number} is {found.status}")


def _heads(git: Repo) -> dict[int, ObjectID]:
    refs = git.refs.as_dict(Ref(b"refs/pr"))
    return {
        number: sha
        for name, sha in refs.items()
        if (number := pull_request_number(f"refs/pr/{name.decode(errors='replace')}"))
    }


def _first_parents(git: Repo, head: ObjectID, until: str = "") -> Iterator[Commit]:
    """Yield the commits from `head` back, by their first parents, without `until` and what is before it."""
    sha: ObjectID | None = head
    while sha is not None and sha.decode() != until:
        commit = git_objects.read_commit(git, sha.decode())
        yield commit
        sha = commit.parents[0] if commit.parents else None


def _find_on_main(git: Repo, parent: str) -> ObjectID:
    if COMMIT_ID.fullmatch(parent.lower()):
        for commit in _first_parents(git, git.refs[_MAIN]):
            if commit.id.decode().startswith(parent.lower()):
                return commit.id
    raise HubError(400, f"A pull request starts from a commit of {MAIN}, and {parent!r} is none")


def _read_changes(git: Repo, found: PullRequest) -> PullRequestChanges:
    head, main = git.refs[pull_request_ref(found.number)], git.refs[_MAIN]
    commits = [git_objects.to_commit_record(commit) for commit in _first_parents(git, head, until=found.base)][::-1]
    before, after, merged = (
        git_objects.list_file_blobs(git, sha) for sha in (ObjectID(found.base.encode()), head, main)
    )
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    conflicts = set()
    for path in changed:
        if merged.get(path) not in (before.get(path), after.get(path)):
            conflicts.add(path)
        elif path in after:
            merged[path] = after[path]
        else:
            merged.pop(path, None)
    conflicts |= {path for path in merged if file_above(path, merged.keys())}

    def entry(path: str, files: dict[str, ObjectID]) -> git_objects.TreeEntry | None:
        if path not in files:
            return None
        return git_objects.read_tree_entry(git, _shown(path), git_objects.FILE_MODE, files[path])

    files = [(_shown(path), entry(path, before), entry(path, after)) for path in changed]
    shown = [] if found.status == "merged" else [_shown(path) for path in sorted(conflicts)]
    return PullRequestChanges(head.decode(), main, commits, files, shown, merged)


def _shown(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="replace")  # what is not UTF-8 in git
