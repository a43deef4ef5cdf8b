"""The branch of a Hub repository that holds copies of a training's checkpoints. It never touches main.

    last-checkpoint/      with `launch.mirror: last`; the newest
    checkpoint-<step>/    with `launch.mirror: all`
    best/                 the best weights so far, with the tokenizer: `from_pretrained(..., subfolder="best")`

Every change is one commit on the head that it was made for, so each commit of the branch holds whole checkpoints. With `last`, the
history of the branch is then rewritten to one commit: older checkpoints take no room for ever. Files are compared with their manifest when they are read for an upload, and after a download.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from params import CheckpointError
from params.schema import Publish
from tasks.hub_client.faults import InconsistentStateError, as_permanent_error
from tasks.hub_client.repository import HubRepository, RetryPolicy
from trainer.checkpoints.sealed import IDENTITY, MANIFEST, find_manifest_mismatch

logger = logging.getLogger(__name__)

BRANCH = "checkpoints"
LAST = "last-checkpoint"
BEST = "best"
_BY_STEP = re.compile(r"checkpoint-(\d+)")
_IN_MEMORY_BYTES = 10 << 20
"""Files up to this size are sent from memory, as they were when they were hashed; larger ones are read again to be sent."""
_MAX_JSON_BYTES = 64 << 20
"""Most bytes of a file that is parsed: a manifest, an identity, the state of a trainer with its log."""


@dataclass(frozen=True)
class MirroredCheckpoint:
    folder: str
    """Its folder on the branch."""
    step: int
    commit: str
    identity: dict[str, str]
    """Content of its `run.json`."""


@dataclass(frozen=True)
class CheckpointsBranch:
    """The checkpoints branch of one repository.

    Each method is one attempt and raises what the client raises: call it inside of `HubRepository.retry_until_clear`.
    """

    repository: HubRepository
    private: bool
    """Whether the repository must be private; it is created so if it does not exist."""

    @property
    def where(self) -> str:
        return f"{self.repository.where}, branch {BRANCH}"

    def put(self, folders: Mapping[str, list[CommitOperationAdd]], title: str, *, squash: bool) -> str:
        """Make each of `folders` hold exactly these files, in one commit, and return its id.

        With `squash`, it has no parents, unless the Hub refuses to rewrite branches, such as one of an earlier version.
        """
        head = self.repository.ensure_exists(private=self.private).branches.get(BRANCH)
        if head is None:  # it starts from the first commit of main
            first = self.repository.history()[-1].commit_id
            self.repository.api.create_branch(self.repository.id, branch=BRANCH, revision=first, exist_ok=True)
            head = self.repository.refs().branches.get(BRANCH)
        if head is None:
            raise InconsistentStateError(f"the branch {BRANCH} was created and is not visible")
        added = {operation.path_in_repo for operations in folders.values() for operation in operations}
        gone = [p for p in self.repository.tree(head) if p.partition("/")[0] in folders and p not in added]
        operations = [a for operations in folders.values() for a in operations]
        commit = self.repository.commit(
            [*operations, *map(CommitOperationDelete, gone)], parent=head, title=title, trailers={}, branch=BRANCH
        )
        try:
            if squash:
                self.repository.api.super_squash_history(self.repository.id, branch=BRANCH, commit_message=title)
                return self.repository.refs().branches.get(BRANCH, commit)
        except HfHubHTTPError as error:
            if not (refused := as_permanent_error(error, self.repository.api, self.repository.where)):
                raise
            logger.warning("mirror: older checkpoints stay in the history of the branch: %s", refused.what)
        return commit

    def checkpoints(self) -> Iterator[MirroredCheckpoint]:
        """Yield the checkpoints of the branch, the highest step first."""
        commit = self.repository.refs().branches.get(BRANCH)
        if commit is None:
            return
        steps = {}
        for path in self.repository.tree(commit):
            folder, _, name = path.partition("/")
            if name == IDENTITY and (match := _BY_STEP.fullmatch(folder)):
                steps[folder] = int(match[1])
            elif name == IDENTITY and folder == LAST:
                step = self._read(f"{LAST}/trainer_state.json", commit).get("global_step")
                steps[LAST] = step if isinstance(step, int) else 0
        for folder, step in sorted(steps.items(), key=lambda found: -found[1]):
            yield MirroredCheckpoint(folder, step, commit, self._read(f"{folder}/{IDENTITY}", commit))

    def step_of_last(self, identity: Mapping[str, str]) -> int:
        """Return the step of `last-checkpoint/` if it is of this run; else 0."""
        with contextlib.suppress(RepositoryNotFoundError):
            return max((c.step for c in self.checkpoints() if c.folder == LAST and c.identity == identity), default=0)
        return 0

    def load_sealed(self, name: str, commit: str, folder: Path) -> Path:
        """Download the folder `name` of the branch, as its manifest lists it, into `folder`; return where it is.

        Raises:
            CheckpointError: files are missing, or not as they were written.
        """
        files = {path for path in self.repository.tree(commit) if path.startswith(f"{name}/")}
        listed = [f"{name}/{MANIFEST}"]
        if listed[0] in files:
            listed += [f"{name}/{file}" for file in self._read(listed[0], commit)]
        if missing := sorted(set(listed) - files):
            raise self.damaged(name, f"lacks {', '.join(missing)}")
        for path in listed:
            self.repository.api.hf_hub_download(self.repository.id, path, revision=commit, local_dir=folder)
        if found := find_manifest_mismatch(folder / name):
            raise self.damaged(name, found)
        return folder / name

    def damaged(self, name: str, found: str) -> CheckpointError:
        """Return the error for a folder or a file of the branch that is not as it was written."""
        fix = "wait until the other machine has uploaded its next checkpoint, or train here from the start"
        return CheckpointError(f"{self.where}, {name}", found, fix)

    def _read(self, path: str, commit: str) -> dict[str, Any]:
        try:
            found = json.loads(self.repository.read(commit, path, max_bytes=_MAX_JSON_BYTES) or b"")
        except (ValueError, RecursionError) as error:
            found = str(error)
        if not isinstance(found, dict):
            raise self.damaged(path, f"is damaged: {str(found)[:80]}")
        return found


def repository_with_checkpoint_timeouts(repository: HubRepository, publish: Publish, command: str) -> HubRepository:
    """Return `repository` with the time that checkpoints need: no request is cut off, and `publish.timeout_s` limits retries.

    Each reason why the Hub gives no clear answer is logged once, however long it lasts.
    """
    log = functools.lru_cache(maxsize=1)(lambda line: logger.warning("%s: %s", command, line))
    retries = RetryPolicy(attempts=math.inf)
    return replace(repository, timeout_s=publish.timeout_s, cuts_requests=False, retries=retries, log=log)


def folder_upload_operations(name: str, sealed: Path, more: Path | None = None) -> list[CommitOperationAdd]:
    """Return the operations that add a sealed folder, checked against its manifest, and all files of one `more`.

    Raises:
        CheckpointError: a file is not as it was written.
    """
    beside = (
        {path.relative_to(more).as_posix(): path for path in sorted(more.rglob("*")) if path.is_file()} if more else {}
    )
    beside[MANIFEST] = sealed / MANIFEST
    found = [CommitOperationAdd(f"{name}/{file}", path.read_bytes()) for file, path in beside.items()]
    for file, (_, sha256) in json.loads(found[-1].path_or_fileobj).items():  # type: ignore[arg-type]
        path = sealed / file
        is_small = path.exists() and path.stat().st_size <= _IN_MEMORY_BYTES
        try:
            addition = CommitOperationAdd(f"{name}/{file}", path.read_bytes() if is_small else str(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(str(path), f"cannot be read: {error}", "the next checkpoint replaces it") from None
        if addition.upload_info.sha256.hex() != sha256:
            raise CheckpointError(str(path), "is not as it was written", "the next checkpoint replaces it")
        found.append(addition)
    return found
