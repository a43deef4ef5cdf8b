"""The file that describes a release inside of its commit: its id, its files, and what they were made from.

It is what makes a commit a release. Titles and messages do not: on a Hub, who proposes a change also words the commit of its merge.
The id is a hash of the rest, so a copied id describes the very files that it was copied from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pydantic

from tasks.hub_client.repository import Repository

RELEASE_FILE: Final = "evergreen-release.json"
TAG_PREFIX: Final = "release-"
"""Of the tags that publishing gives to releases."""
HUBS_OWN_FILES: Final = frozenset({".gitattributes"})
"""Files that a Hub may add to a release."""
MAX_BYTES: Final = 4 << 20
"""Of a RELEASE_FILE."""

Sha256 = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]


class _ListedFile(pydantic.BaseModel):
    path: str
    size: int
    sha256: Sha256


class _Content(pydantic.BaseModel):
    publish_id: Sha256
    files: tuple[_ListedFile, ...]


@dataclass(frozen=True)
class ReleaseRecord:
    """What a RELEASE_FILE says."""

    publish_id: str
    files: Mapping[str, tuple[int, str]]
    """Size in bytes and SHA-256 by path; all files of the release but this one."""

    @property
    def tag(self) -> str:
        """The tag that publishing gives it."""
        return release_tag(self.publish_id)

    @classmethod
    def parse(cls, content: bytes) -> ReleaseRecord | None:
        """Return what a file says; None if it is not a RELEASE_FILE, or its id is not the hash of the rest."""
        try:
            body = json.loads(content)
            found = _Content.model_validate(body)
            if release_id({key: value for key, value in body.items() if key != "publish_id"}) != found.publish_id:
                return None
        except (ValueError, RecursionError):
            return None
        return cls(found.publish_id, {file.path: (file.size, file.sha256) for file in found.files})

    @classmethod
    def of(cls, repository: Repository, commit: str) -> ReleaseRecord | None:
        """Return the release that a commit holds; None if it holds none, or other files than its release.

        One attempt, for `Repository.retry_until_clear`. The Hub tells the hash of git-lfs files, and the size of all.
        """
        tree = repository.tree(commit)
        if RELEASE_FILE not in tree or tree[RELEASE_FILE].size > MAX_BYTES:
            return None
        found = cls.parse(repository.read(commit, RELEASE_FILE, max_bytes=MAX_BYTES) or b"")
        held = {path: file for path, file in tree.items() if path not in HUBS_OWN_FILES and path != RELEASE_FILE}
        if found is None or held.keys() != found.files.keys():
            return None
        is_held = all(
            (file.lfs.size, file.lfs.sha256) == found.files[path] if file.lfs else file.size == found.files[path][0]
            for path, file in held.items()
        )
        return found if is_held else None


def release_id(body: Mapping[str, Any]) -> str:
    """Return the id of a release: SHA-256 of the content of its RELEASE_FILE, without the id, as canonical JSON.

    Raises:
        ValueError: a number in it is not finite.
    """
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def release_tag(publish_id: str) -> str:
    """Return the tag of a release."""
    return f"{TAG_PREFIX}{publish_id[:12]}"
