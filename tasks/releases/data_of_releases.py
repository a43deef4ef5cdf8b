"""The objects in DVC's cache from which the releases in a repository can be made again."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from params import HubRefusedError
from params.foundation.artifacts import Artifacts
from tasks.hub_client.connection import open_repository
from tasks.hub_client.main_history import read_main_commits
from tasks.hub_client.repository import MAIN, HubRepository
from tasks.publishing.proposal import WAITING
from tasks.publishing.provenance import FILE, MAX_BYTES

_TIMEOUT_S: Final = 120.0
_MD5: Final = re.compile(r'"md5": ?"([0-9a-f]{32}(?:\.dir)?)"')


def fetch_release_data_hashes(repo_id: str, endpoint: str, *, last: int, must_exist: bool) -> set[str]:
    """Return the MD5 hashes, as in dvc.lock, of the last releases, of what main holds, and of what waits for approval.

    A release is known by its record, the file `FILE`, whoever made the commit: that of a merge has a person's message.

    Of main, the `last` releases count, the newest first; one that was published again after a rollback counts once. If models
    were published there, the repository `must_exist`: a Hub that does not find it gives no clear answer.

    Raises:
        HubRefusedError, TransientError: the Hub refuses, or gives no clear answer.
    """
    with open_repository(Artifacts("clean"), repo_id=repo_id, endpoint=endpoint) as opened:
        repository = replace(opened, timeout_s=_TIMEOUT_S)
        records = repository.retry_until_clear(lambda: _records(repository, last), missing=lambda: None)
        if records is None and must_exist:
            fix = "set HF_TOKEN to one that may read it; if it was deleted, `--releases 0` keeps the data of no release"
            raise HubRefusedError(repository.where, "is not found, and models were published there", fix)
    return {md5 for record in (records or {}).values() for md5 in _MD5.findall(record)}


def _records(repository: HubRepository, last: int) -> dict[str, str] | None:
    """Return the records by the hashes of their content."""
    branches, tags = repository.refs()
    entries = read_main_commits(repository) if MAIN in branches else []
    records: dict[str, str] = {}
    released: set[str] = set()

    def add(revision: str) -> set[str]:
        file = repository.tree(revision).get(FILE)
        if file:
            content = repository.read(revision, FILE, max_bytes=MAX_BYTES) or b""
            records[file.blob_id] = content.decode(errors="replace")
        return {file.blob_id} if file else set()

    for entry in entries:
        found = add(entry.commit)
        released |= found if entry.kind != "rollback" else set()
        if len(released) >= last:
            break
    for commit in {*tags.values()} - {entry.commit for entry in entries}:
        add(commit)  # of a history that was squashed, for example
    for proposal in repository.api.get_repo_discussions(repository.id, discussion_type="pull_request"):
        if proposal.status in WAITING:
            add(f"refs/pr/{proposal.num}")
    return records
