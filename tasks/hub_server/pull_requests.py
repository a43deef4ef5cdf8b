"""The pull requests of one repository.

    refs/pr/<number>              the branch of a pull request; it exists if this ref exists
    discussions/<number>.json     title, status and events, written whole

A pull request's file is written before its ref, so a number is never used again, even if the process is killed in between.
A merge puts all changes on main as one commit with one parent, as on the Hub. It is stored in the file before main moves,
so the next reader knows whether it has happened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dulwich.objects import ObjectID
from dulwich.refs import Ref
from dulwich.repo import Repo

from tasks.hub_server.changes import Changes, branch_changes, first_parent_commits, merge_files
from tasks.hub_server.discussions import Event, Merge, PullRequest, Status, check_text, check_title
from tasks.hub_server.errors import HubError, branch_moved
from tasks.hub_server.git_objects import Change, commit_message, commit_record, write_commit
from tasks.hub_server.names import COMMIT_ID, pull_number, pull_ref, ref_name
from tasks.hub_server.repositories import MAIN, Repository

_MAIN = ref_name("heads", MAIN)


@dataclass(frozen=True)
class PullRequests:
    """The pull requests of one repository, as a user may change them."""

    repository: Repository
    user: str = ""
    """Who changes them; empty for somebody who only reads."""
    can_write: bool = False
    """Whether this user can write to the repository."""

    def heads(self) -> dict[int, str]:
        """Return number -> commit id of the branches."""
        with self.repository.open() as git:
            return {number: sha.decode() for number, sha in sorted(_heads(git).items())}

    def all(self) -> list[PullRequest]:
        """Return all pull requests, newest first."""
        with self.repository.open() as git:
            numbers = sorted(_heads(git), reverse=True)
            return [self._load(git, number) for number in numbers if self._path(number).exists()]

    def get(self, number: int) -> PullRequest:
        """Return a pull request.

        Raises:
            HubError: 404 if it does not exist.
        """
        with self.repository.open() as git:
            return self._load(git, number)

    def read(self, number: int) -> tuple[PullRequest, Changes]:
        """Return a pull request and what it changes.

        Raises:
            HubError: 404 if it does not exist.
        """
        with self.repository.open() as git:
            found = self._load(git, number)
            changes = branch_changes(git, found.base, git.refs[pull_ref(number)], git.refs[_MAIN])
            if found.status == "merged":
                changes = replace(changes, conflicts=[])
            return found, changes

    def create(
        self, changes: Sequence[Change], *, title: str, description: str, parent: str | None
    ) -> tuple[PullRequest, str]:
        """Create a pull request with one commit, and return it and the commit's id.

        It starts from `parent`, a commit on main (7 to 40 digits), or from main's head.

        Raises:
            HubError: 400 for an invalid title or description, if `parent` is not on main, or as `Repository.commit`.
        """
        with self.repository.writing() as git:
            base = _find_on_main(git, parent) if parent else git.refs[_MAIN]
            message = commit_message(title, description)
            head = self.repository.add_commit(git, base, changes, message=message, user=self.user)
            taken = {int(path.stem) for path in self._path(0).parent.glob("*.json")} | _heads(git).keys()
            found = PullRequest(
                number=max(taken, default=0) + 1,
                title=check_title(title),
                author=self.user,
                base=base.decode(),
                status="open",
                events=[Event(type="comment", author=self.user, text=check_text(description))],
            )
            self._save(found)
            git.refs.add_if_new(pull_ref(found.number), head)
            return found, head.decode()

    def commit(self, number: int, changes: Sequence[Change], *, message: str, parent: str | None) -> str:
        """Add a commit to a pull request and return its id.

        Raises:
            HubError: as `Repository.commit`; 403 for users who are neither its author nor can write; 409 if it is not open.
        """
        with self.repository.writing() as git:
            found = self._load(git, number)
            self.require_author(found)
            _require_open(found)
            ref = pull_ref(number)
            return self.repository.commit_to(git, ref, changes, message=message, parent=parent, user=self.user)

    def comment(self, number: int, text: str) -> Event:
        """Add a comment.

        Raises:
            HubError: 404; 400 if it is empty or too long.
        """
        if not text.strip():
            raise HubError(400, "The comment is empty")
        event = Event(type="comment", author=self.user, text=check_text(text))
        with self.repository.writing() as git:
            return self._record(self._load(git, number), event)

    def set_status(self, number: int, status: Status, *, comment: str = "", seen: str | None = None) -> Event:
        """Open or close a pull request, with a comment.

        Raises:
            HubError: 404; 403 without permission; 409 if it has this status already, is merged, or has other commits than up to `seen`.
        """
        with self.repository.writing() as git:
            found = self._load(git, number)
            if not found.may_set(status, self.user, can_write=self.can_write):
                raise HubError(403, f"You don't have the rights to set pull request #{number} to {status}")
            if found.status in (status, "merged"):
                raise HubError(409, f"Pull request #{number} is already {found.status}")
            _require_unchanged(git, found, seen)
            found.status = status
            found.events += self._comments(comment)
            return self._record(found, Event(type="status-change", author=self.user, text=status))

    def merge(self, number: int, *, comment: str = "", seen: str | None = None) -> str:
        """Put the changes on main as one commit, and return its id.

        Raises:
            HubError: 404; 403 without permission; 409 if the pull request is not open, has other commits than up to `seen`, or
                is in conflict with main.
        """
        if not self.can_write:
            raise HubError(403, f"You don't have the rights to merge pull request #{number}")
        with self.repository.writing() as git:
            found = self._load(git, number)
            _require_open(found)
            _require_unchanged(git, found, seen)
            head, main = git.refs[pull_ref(number)], git.refs[_MAIN]
            commits = [commit_record(commit) for commit in first_parent_commits(git, head, until=found.base)][::-1]
            files, conflicts = merge_files(git, found.base, head, main)
            if conflicts:
                names = ", ".join(conflicts[:10])
                raise HubError(
                    409, f"Main has changed since pull request #{number} was made, in the same files: {names}"
                )
            lines = [f"- {commit.title} ({commit.sha})" for commit in commits]
            authors = sorted({commit.author for commit in commits} - {self.user})
            trailers = [f"Co-authored-by: {author} <{author}@localhost>" for author in authors]
            message = commit_message(f"{found.title} (#{number})", "\n".join(lines + [""] * bool(trailers) + trailers))
            sha = write_commit(git, files, [main], message, self.user)

            events = [*self._comments(comment), Event(type="status-change", author=self.user, text="merged")]
            found.merge = Merge(commit=sha.decode(), parent=main.decode(), events=events)
            self._save(found)
            if not git.refs.set_if_equals(_MAIN, main, sha):
                raise branch_moved()
            found.finish_merge()
            self._save(found)
            return sha.decode()

    def require_author(self, found: PullRequest) -> None:
        """Check that the user is the author of a pull request or can write.

        Raises:
            HubError: 403.
        """
        if self.user != found.author and not self.can_write:
            raise HubError(403, f"You don't have the rights to change pull request #{found.number}")

    def _comments(self, text: str) -> list[Event]:
        return [Event(type="comment", author=self.user, text=check_text(text))] if text.strip() else []

    def _record(self, found: PullRequest, event: Event) -> Event:
        found.events.append(event)
        self._save(found)
        return event

    def _path(self, number: int) -> Path:
        return self.repository.path / "discussions" / f"{number}.json"

    def _load(self, git: Repo, number: int) -> PullRequest:
        path = self._path(number)
        if pull_ref(number) not in git.refs or not path.exists():
            raise HubError(404, f"There is no pull request #{number}")
        found = PullRequest.model_validate_json(path.read_bytes())
        merge = found.merge
        if merge and found.status != "merged":
            since = first_parent_commits(git, git.refs[_MAIN], until=merge.parent)
            if any(commit.id.decode() == merge.commit for commit in since):
                found.finish_merge()
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


def _require_unchanged(git: Repo, found: PullRequest, seen: str | None) -> None:
    if seen is not None and git.refs[pull_ref(found.number)].decode() != seen:
        raise HubError(409, f"Pull request #{found.number} has changed since you looked at it: load its page again")


def _heads(git: Repo) -> dict[int, ObjectID]:
    refs = git.refs.as_dict(Ref(b"refs/pr"))
    return {
        number: sha for name, sha in refs.items() if (number := pull_number(f"refs/pr/{name.decode(errors='replace')}"))
    }


def _find_on_main(git: Repo, parent: str) -> ObjectID:
    """Return the commit on main whose id begins with `parent`."""
    if COMMIT_ID.fullmatch(parent.lower()):
        for commit in first_parent_commits(git, git.refs[_MAIN]):
            if commit.id.decode().startswith(parent.lower()):
                return commit.id
    raise HubError(400, f"A pull request starts from a commit of {MAIN}, and {parent!r} is none")
