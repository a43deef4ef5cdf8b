"""The objects in DVC's cache from which a recipe's releases can be made again."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from params import load
from params.artifacts import Artifacts
from tasks.hub_client.connection import open_repository
from tasks.hub_client.release_log import releases
from tasks.publishing.provenance import FILE, MAX_BYTES

_TIMEOUT_S = 120.0
_MD5 = re.compile(r'"md5": ?"([0-9a-f]{32}(?:\.dir)?)"')


def recorded_data(recipe: Path, *, last: int) -> set[str]:
    """Return the MD5 hashes, as in dvc.lock, of the last releases of a recipe and of the one that is published now.

    Raises:
        HubRefusedError, TransientError: the Hub refuses, or gives no clear answer.
    """
    publish = load(recipe).publish
    with open_repository(Artifacts(recipe.stem), repo_id=publish.repo_id, endpoint=publish.endpoint) as opened:
        repository = replace(opened, timeout_s=_TIMEOUT_S)
        if repository.head() is None:  # nothing has been published yet
            return set()
        entries = releases(repository)
        recent = [entry.commit for entry in entries if entry.kind == "release"][:last]
        recent += [entry.commit for entry in entries if entry.is_head]

        def read(commit: str) -> str:
            return (repository.read(commit, FILE, max_bytes=MAX_BYTES) or b"").decode(errors="replace")

        records = [repository.retry_until_clear(partial(read, commit)) for commit in recent]
    return {md5 for record in records for md5 in _MD5.findall(record)}
