"""The branch of a Hub repository on which a training's checkpoints are kept, beside main and never on it.

    last-checkpoint/      with `launch.mirror: last`; the newest
    checkpoint-<step>/    with `launch.mirror: all`
    best/                 the best weights so far, with the tokenizer: `from_pretrained(..., subfolder="best")`

Every change is one commit that names the head that it was made for, so that the branch holds whole checkpoints at each
of its commits. What is sent is compared with the manifest as it is read; what is fetched, with the manifest beside it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from params import CheckpointError, EvergreenError, HubRefusedError, TransientError
from tasks.hub_client.faults import (
    CLIENT_ERRORS,
    LookAgainError,
    bounded_client,
    explain,
    refusal,
    refuse_malformed_token,
    wait_before_retry,
)
from trainer.checkpoints.sealed import IDENTITY, MANIFEST

BRANCH = "checkpoints"
LAST = "last-checkpoint"
BEST = "best"
_BY_STEP = re.compile(r"checkpoint-(\d+)")
_IN_MEMORY_BYTES = 10 << 20
"""Files up to this size are sent as they were when they were hashed; larger ones are named by their hash on the way."""
NEXT = "have the other machine train on until its next checkpoint, or train here from the start"

T = TypeVar("T")
Patience = Callable[[float], bool]
"""Waits so many seconds, or returns False at once: no further attempt."""


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the branch."""

    place: str
    """Its folder."""
    step: int
    commit: str
    identity: dict[str, str]
    """Content of its `run.json`."""


@dataclass(frozen=True)
class Branch:
    """The branch of one repository. Its methods may raise whatever the client raises; `retry_until_clear` makes sense of that."""

    api: HfApi
    repo_id: str
    private: bool
    """Whether the repository must be private; one that has to be made is made so."""

    @property
    def where(self) -> str:
        """For people: the repository and the branch."""
        return f"{self.api.endpoint}/{self.repo_id}, branch {BRANCH}"

    def put(self, folders: Mapping[str, list[CommitOperationAdd]], title: str) -> str:
        """Have each of `folders` hold these files and no others, in one commit; returns its id."""
        head = self._head_to_write()
        added = {operation.path_in_repo for operations in folders.values() for operation in operations}
        gone = [p for p in self.files(head) if p.partition("/")[0] in folders and p not in added]
        commit = self.api.create_commit(
            self.repo_id,
            [*(a for operations in folders.values() for a in operations), *map(CommitOperationDelete, gone)],
            commit_message=title,
            revision=BRANCH,
            parent_commit=head,
        )
        return str(commit.oid)

    def head(self) -> str | None:
        """The newest commit of the branch; None where there is no such branch."""
        refs = self.api.list_repo_refs(self.repo_id)
        return next((ref.target_commit for ref in refs.branches if ref.name == BRANCH), None)

    def files(self, commit: str) -> list[str]:
        """The paths of all files."""
        entries = self.api.list_repo_tree(self.repo_id, recursive=True, revision=commit)
        return [entry.path for entry in entries if isinstance(entry, RepoFile)]

    def kept(self, scratch: Path) -> Iterator[Kept]:
        """The checkpoints on the branch, the highest step first."""
        commit = self.head()
        if commit is None:
            return
        steps = {}
        for path in self.files(commit):
            place, _, name = path.partition("/")
            if name == IDENTITY and (match := _BY_STEP.fullmatch(place)):
                steps[place] = int(match[1])
            elif name == IDENTITY and place == LAST:
                steps[LAST] = int(self._read(f"{LAST}/trainer_state.json", commit, scratch)["global_step"])
        for place, step in sorted(steps.items(), key=lambda found: -found[1]):
            yield Kept(place, step, commit, self._read(f"{place}/{IDENTITY}", commit, scratch))

    def step_of_last(self, identity: Mapping[str, str], scratch: Path) -> int:
        """How far `last-checkpoint/` is, if it is of this run; else 0."""
        try:
            found = [kept.step for kept in self.kept(scratch) if kept.place == LAST and kept.identity == identity]
        except RepositoryNotFoundError:
            return 0
        return max(found, default=0)

    def load(self, path: str, commit: str, folder: Path) -> Path:
        """Download one file to `folder`, below which it has the path that it has on the branch."""
        return Path(self.api.hf_hub_download(self.repo_id, path, revision=commit, local_dir=folder))

    def load_sealed(self, place: str, commit: str, folder: Path) -> Path:
        """Download what the manifest of one folder names, to that folder below `folder`.

        Raises:
            CheckpointError: it is not whole.
        """
        files = {path for path in self.files(commit) if path.startswith(f"{place}/")}
        wanted = [f"{place}/{MANIFEST}"]
        if wanted[0] in files:
            wanted += [f"{place}/{name}" for name in self._read(wanted[0], commit, folder)]
        if lacking := sorted(set(wanted) - files):
            raise CheckpointError(f"{self.where}, {place}", f"it lacks {', '.join(lacking)}", NEXT)
        for path in wanted:
            self.load(path, commit, folder)
        return folder / place

    def _read(self, path: str, commit: str, folder: Path) -> dict[str, Any]:
        """A file of JSON."""
        try:
            found = json.loads(self.load(path, commit, folder).read_bytes())
        except ValueError as error:
            found = str(error)
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.where}, {path}", f"is damaged: {str(found)[:80]}", NEXT)
        return found

    def _head_to_write(self) -> str:
        """The newest commit of the branch, which is made where it is missing, from the first commit of main."""
        try:
            head = self.head()
        except RepositoryNotFoundError:
            self.api.create_repo(self.repo_id, private=self.private, exist_ok=True)
            head = self.head()
        if self.private and not self.api.model_info(self.repo_id).private:
            what = "checkpoints are private, as publish.private says, and the repository is public"
            raise HubRefusedError(self.where, what, "make the repository private, or set publish.private to false")
        if head is None:
            *_, first = self.api.list_repo_commits(self.repo_id)
            self.api.create_branch(self.repo_id, branch=BRANCH, revision=first.commit_id, exist_ok=True)
            head = self.head()
        if head is None:
            raise LookAgainError(f"the branch {BRANCH} was made and is not visible")
        return head


def retry_until_clear(branch: Branch, question: Callable[[], T], patience: Patience, log: Callable[[str], None]) -> T:
    """The answer to `question`, which is asked again for as long as the answer is unclear and `patience` lasts.

    Args:
        branch: what is asked.
        question: can be asked again whatever it has raised.
        patience: waits between attempts.
        log: takes a line when something keeps the Hub from answering, and none for more of the same.

    Raises:
        HubRefusedError: the Hub would refuse again.
        TransientError: patience ended without an answer.
    """
    refuse_malformed_token(branch.api, branch.repo_id)
    attempt, before = 0, ""
    with bounded_client():
        while True:
            try:
                return question()
            except EvergreenError:
                raise
            except CLIENT_ERRORS as error:
                if refused := refusal(error, branch.api, branch.repo_id):
                    raise refused from None
                reason, wait_s = explain(error, branch.api), wait_before_retry(error, attempt)
            attempt += 1
            if reason != before:
                log(f"{branch.where}: no clear answer, asking again: {reason}")
                before = reason
            if not patience(wait_s):
                what = f"no clear answer after {attempt} attempt(s); the last: {reason}"
                raise TransientError(branch.where, what, "run it again when the Hub answers") from None


def within(seconds: float) -> Patience:
    """Patience for so many seconds from now."""
    end = time.monotonic() + seconds

    def wait(wait_s: float) -> bool:
        if time.monotonic() + wait_s > end:
            return False
        time.sleep(wait_s)
        return True

    return wait


def additions(place: str, sealed: Path, beside: Iterable[Path] = ()) -> list[CommitOperationAdd]:
    """The files of a sealed folder as parts of a commit, certainly with the content that its manifest names.

    Args:
        place: the folder on the branch.
        sealed: a checkpoint, or best weights.
        beside: files to add to them.

    Raises:
        CheckpointError: a file is not as it was written.
    """
    found = [CommitOperationAdd(f"{place}/{path.name}", path.read_bytes()) for path in (*beside, sealed / MANIFEST)]
    for name, (_, sha256) in json.loads(found[-1].path_or_fileobj).items():  # type: ignore[arg-type]
        path = sealed / name
        is_small = path.exists() and path.stat().st_size <= _IN_MEMORY_BYTES
        try:
            addition = CommitOperationAdd(f"{place}/{name}", path.read_bytes() if is_small else str(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(str(path), f"cannot be read: {error}", "the next checkpoint replaces it") from None
        if addition.upload_info.sha256.hex() != sha256:
            raise CheckpointError(str(path), "is not as it was written", "the next checkpoint replaces it")
        found.append(addition)
    return found
