"""A repository on a Hub, and the one loop in which we talk to it: look, act, and look again after every unclear answer."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    constants,
    get_session,
    hf_raise_for_status,
)
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import GitCommitInfo, RepoFile
from huggingface_hub.utils._headers import build_hf_headers

from params.foundation.errors import HubRefusedError, TransientError
from tasks.digests import weights_digest
from tasks.hub_client import faults
from tasks.hub_client.time_limits import limit_hub_requests

MAIN: Final = "main"
LOOK_TIMEOUT_S: Final = 60.0
"""For calls that only read what the Hub holds."""

SETTINGS: Final = (".json", ".txt", ".model", ".jinja")
"""The suffixes of a model's files that are parsed: those of its configuration and of its tokenizer."""
MAX_SETTINGS_BYTES: Final = 256 << 20
"""Most bytes of such a file; the largest tokenizers have some 30 MiB."""
_XET_UNCLEAR: Final = frozenset({401, 403, 408, 425, 429})
"""With these, and all from 500 on but 501 (not implemented), the Hub has not said whether it has Xet storage."""

T = TypeVar("T")
Operation = CommitOperationAdd | CommitOperationCopy | CommitOperationDelete
Tree = Mapping[str, RepoFile]
"""The files of a commit by path."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often to ask a Hub that gives no clear answer."""

    attempts: float = 8
    """How often at most; math.inf: until the time is up."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class Refs(NamedTuple):
    """What branches and tags point at: commits by name."""

    branches: dict[str, str]
    tags: dict[str, str]


@dataclass(frozen=True)
class PublishedModel:
    """A model that main holds, or held."""

    commit: str
    tag: str | None
    """A tag of this commit; the one that publishing made if there are several."""
    weights: str
    """Their digest, see `tasks.digests.weights_digest`."""


@dataclass(frozen=True)
class HubRepository:
    """A repository on a Hub, and for how long to ask about it.

    `retry_until_clear`, `head`, `newest_other` and `holds` ask until the answer is clear. The other methods are one attempt: they
    raise what the client raises, and are called inside of `retry_until_clear`.
    """

    api: HfApi
    id: str
    timeout_s: float = LOOK_TIMEOUT_S
    """No attempt and no wait begins later than this after the start of a call."""
    cuts_requests: bool = True
    """Whether a request that is still running after `timeout_s` is cut off. False for checkpoints and models, which may
    take longer to transfer."""
    retries: RetryPolicy = RetryPolicy()
    log: Callable[[str], None] = lambda _: None
    """Takes a line for every unclear answer. No line holds the token."""
    folder: str = ""
    """The folder of a Hub that is served for this process alone: messages name it, because its address soon leads nowhere."""

    @property
    def where(self) -> str:
        return f"{self.folder or self.api.endpoint}/{self.id}"

    def retry_until_clear(
        self, attempt: Callable[[], T], *, missing: Callable[[], T] | None = None, fix: str = "try again later"
    ) -> T:
        """Call `attempt` until it returns or the Hub refuses for good, and return its result.

        Args:
            attempt: may be called again whatever it has raised: it looks before it acts.
            missing: gives the result without such a repository, by default an error.
            fix: what the user can do when no clear answer came in time.

        Raises:
            HubRefusedError: the Hub would refuse again.
            TransientError: no clear answer in time.
            EvergreenError: any that `attempt` raises.
        """
        faults.refuse_malformed_token(self.api, self.where)
        clock, started = self.retries.clock, self.retries.clock()
        with limit_hub_requests(self.timeout_s if self.cuts_requests else math.inf):
            for number in itertools.count():
                try:
                    return attempt()
                except faults.CLIENT_ERRORS as error:
                    if missing and isinstance(error, RepositoryNotFoundError):
                        return missing()
                    if refused := faults.as_permanent_error(error, self.api, self.where):
                        raise refused from None
                    reason, wait_s = faults.describe_without_secrets(error, self.api), faults.retry_delay(error, number)
                self.log(f"{self.where}: no clear answer: {reason}")
                if clock() - started + wait_s > self.timeout_s:
                    reason += f"; {self.timeout_s:.0f} s do not allow another wait of {wait_s:.0f} s"
                    break
                if number + 1 >= self.retries.attempts:
                    break
                self.retries.sleep(wait_s)
        what = f"no clear answer after {number + 1} attempts in {clock() - started:.0f} s; the last: {reason}"
        raise TransientError(self.where, what, fix)

    def head(self) -> PublishedModel | None:
        """Return the model that main holds; None without a repository, a branch main, or weights on it."""

        def look() -> PublishedModel | None:
            branches, tags = self.refs()
            return self._model(branches[MAIN], tags) if MAIN in branches else None

        return self.retry_until_clear(look, missing=lambda: None)

    def newest_other(self, weights: str, *, since: str | None) -> PublishedModel | None:
        """Return the newest commit of main whose weights have another digest than `weights`, and None if they have none.

        Commits before `since` are not looked at.
        """

        def look() -> PublishedModel | None:
            tags = self.refs().tags
            for entry in self.history():
                found = self._model(entry.commit_id, tags)
                if found is None or found.weights != weights:
                    return found
                if entry.commit_id == since:
                    return None
            return None

        return self.retry_until_clear(look, missing=lambda: None)

    def _model(self, commit: str, tags: Mapping[str, str]) -> PublishedModel | None:
        here = sorted((not name.startswith("release-"), name) for name, target in tags.items() if target == commit)
        weights = tree_weights_digest(self.tree(commit))
        if not weights:
            return None
        return PublishedModel(commit, here[0][1] if here else None, weights)

    def time_of(self, commit: str | None) -> datetime | None:
        """Return when a commit of main was made, by the Hub's clock; None if main does not have it, or the Hub does not answer now."""
        with contextlib.suppress(TransientError):
            history = self.retry_until_clear(self.history)
            return next((one.created_at for one in history if one.commit_id == commit), None)
        return None

    def holds(self, commit: str) -> bool:
        """Return whether the history of main has `commit`."""
        return self.retry_until_clear(
            lambda: any(one.commit_id == commit for one in self.history()), missing=lambda: False
        )

    def refs(self) -> Refs:
        found = self.api.list_repo_refs(self.id)
        return Refs(
            {branch.name: branch.target_commit for branch in found.branches},
            {tag.name: tag.target_commit for tag in found.tags},
        )

    def history(self) -> Sequence[GitCommitInfo]:
        """Return the commits of main, newest first."""
        return list(self.api.list_repo_commits(self.id, revision=MAIN))

    def tree(self, commit: str) -> Tree:
        entries = self.api.list_repo_tree(self.id, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    def read(self, commit: str, path: str, *, max_bytes: int) -> bytes | None:
        """Return the content of a file of a commit; None if there is no such file.

        Whoever can change the repository decides how large its files are, so each reader sets a limit.
        """
        found = next(iter(self.api.get_paths_info(self.id, [path], revision=commit)), None)
        if not isinstance(found, RepoFile):
            return None
        self._refuse_large(commit, found, max_bytes)
        with tempfile.TemporaryDirectory() as folder:
            file = self.api.hf_hub_download(self.id, path, revision=commit, local_dir=folder)
            return Path(file).read_bytes()

    def refuse_large_settings(self, commit: str, tree: Tree) -> None:
        """Check the sizes of a model's files other than weights before they are downloaded and parsed."""
        for path, file in tree.items():
            if path.endswith(SETTINGS):
                self._refuse_large(commit, file, MAX_SETTINGS_BYTES)

    def download_model(self, commit: str, folder: Path | None = None) -> Path:
        """Download the model and the tokenizer of a commit, no code and no pictures, into a folder or the client's cache.

        Raises:
            HubRefusedError, TransientError: as `retry_until_clear`.
        """
        kinds = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]

        def snapshot() -> str:
            self.refuse_large_settings(commit, self.tree(commit))
            return str(self.api.snapshot_download(self.id, revision=commit, local_dir=folder, allow_patterns=kinds))

        patient = replace(self, cuts_requests=False)  # a large model takes longer than a look at the Hub
        return Path(patient.retry_until_clear(snapshot))

    def _refuse_large(self, commit: str, file: RepoFile, max_bytes: int) -> None:
        if file.size > max_bytes:
            what = f"{file.path} of revision {commit} has {file.size:,} bytes, more than the {max_bytes:,} that it may have"
            raise HubRefusedError(self.where, what, "find out who wrote it, and publish again or roll back")

    def ensure_exists(self, *, private: bool) -> Refs:
        """Create the repository unless it exists, and return its branches and tags.

        If `private`, it is created so, and an existing one must be private.
        """
        try:
            found = self.refs()
        except RepositoryNotFoundError:
            self.api.create_repo(self.id, private=private, exist_ok=True)
            found = None
        try:
            found = found or self.refs()
        except RepositoryNotFoundError:
            raise faults.InconsistentStateError("the repository was created and is not visible") from None
        if private and not self.api.model_info(self.id).private:
            fix = "make the repository private, or set publish.private to false"
            raise HubRefusedError(self.where, "publish.private is true, and the repository is public", fix)
        return found

    def commit(
        self,
        operations: Sequence[Operation],
        *,
        parent: str,
        title: str,
        trailers: Mapping[str, str],
        description: str = "",
        branch: str = MAIN,
        create_pr: bool = False,
    ) -> str:
        """Put one commit on a branch if the branch is still at `parent`, and return its id; or propose it as a pull request.

        Check the files of the id that is returned: the client leaves out files that the branch holds by now. If none is
        left, it sends nothing and returns the head of the branch, which may be another client's commit. Make new
        `operations` for each attempt: the client stores in them what it learned of an earlier head.
        """
        lines = "\n".join(f"{name}: {value}" for name, value in trailers.items())
        with disable_xet_where_missing(self.api, self.id, branch, create_pr=create_pr):
            made = self.api.create_commit(
                self.id,
                operations,
                commit_message=title,
                commit_description="\n\n".join(filter(None, [description, lines])),
                revision=branch,
                parent_commit=parent,
                create_pr=create_pr,
            )
        return made.oid


def tree_weights_digest(files: Tree) -> str | None:
    """Return the digest of a commit's weights; None if it has none.

    Weights that are not a large file, which publishing never makes, count by the git hash of their content.
    """
    return weights_digest({path: file.lfs.sha256 if file.lfs else file.blob_id for path, file in files.items()})


@contextlib.contextmanager
def disable_xet_where_missing(api: HfApi, repo_id: str, branch: str, *, create_pr: bool = False) -> Iterator[None]:
    """Inside the block, large files go to a Hub without Xet storage by git-lfs.

    With hf-xet installed, the client uploads to Xet storage, does not ask whether the Hub has it, and would fail. The setting
    belongs to the process: another thread that uploads meanwhile uses git-lfs, too, which every Hub has. With `create_pr` the
    upload makes a pull request, for which the user need not be allowed to write to the branch.
    """
    before = constants.HF_HUB_DISABLE_XET
    if not before:
        # what an upload by Xet begins with: the address of the storage and a token for it
        answer = get_session().get(
            f"{api.endpoint}/api/models/{repo_id}/xet-write-token/{quote(branch, safe='')}",
            params={"create_pr": "1"} if create_pr else None,
            headers=build_hf_headers(token=api.token),
        )
        if answer.status_code in _XET_UNCLEAR or (answer.status_code >= 500 and answer.status_code != 501):
            hf_raise_for_status(answer)
        has_xet = answer.is_success and constants.HUGGINGFACE_HEADER_X_XET_ENDPOINT in answer.headers
        constants.HF_HUB_DISABLE_XET = not has_xet
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before
