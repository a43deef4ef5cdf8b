"""The file that describes a release inside of its commit: its id, its files, and what they were made from.

It is what makes a commit a release. Titles and messages do not: on a Hub, who proposes a change also words the commit of its merge.
The id is a hash of the rest, so a copied id describes the very files that it was copied from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import pydantic
from huggingface_hub.hf_api import RepoFile

from tasks.hub_client.repository import HubRepository

RELEASE_FILE: Final = "evergreen-release.json"
TAG_PREFIX: Final = "release-"
"""How the tags that publishing gives to releases begin."""
HUBS_OWN_FILES: Final = frozenset({".gitattributes"})
"""Files that a Hub may add to a release."""
MAX_BYTES: Final = 4 << 20
"""Most bytes of a RELEASE_FILE."""
MAX_READ_BYTES: Final = 64 << 20
MAX_READ_FILES: Final = 100
"""Most files of a release that are read, see `ReleaseRecord.of`; a Hub keeps files over 10 MiB in git-lfs."""

Sha256 = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]
Sha1 = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{40}$")]


class ReleasedFile(pydantic.BaseModel, frozen=True):
    path: str
    size: int
    sha256: Sha256
    git_sha1: Sha1 | None = None
    """The git hash of its content, which identifies a file on the Hub unless it is a git-lfs one; None in old releases."""

    def is_held(self, held: RepoFile) -> bool | None:
        """Whether a file of a commit is this one; None if only its content can tell."""
        if held.lfs:
            return (held.lfs.size, held.lfs.sha256) == (self.size, self.sha256)
        if held.size != self.size:
            return False
        return None if self.git_sha1 is None else held.blob_id == self.git_sha1


class ReleaseRecord(pydantic.BaseModel):
    publish_id: Sha256
    files: tuple[ReleasedFile, ...]
    """All files of the release but this one."""

    @property
    def tag(self) -> str:
        return release_tag(self.publish_id)

    @classmethod
    def parse(cls, content: bytes) -> ReleaseRecord | None:
        """Return what a file says; None if it is not a RELEASE_FILE byte for byte, or its id is not the hash of the rest."""
        try:
            body = json.loads(content)
            found = cls.model_validate(body)
            del body["publish_id"]
            is_release = release_id(body) == found.publish_id and release_record_bytes(body) == content
        except (ValueError, RecursionError):
            return None
        return found if is_release else None

    @classmethod
    def of(cls, repository: HubRepository, commit: str) -> ReleaseRecord | None:
        """Return the release that a commit holds; None if it holds none, or other files than its release.

        One attempt, for `HubRepository.retry_until_clear`. The Hub tells the hashes of all files. Those that an old release does not
        list are compared by content.
        """
        tree = repository.tree(commit)
        if RELEASE_FILE not in tree or tree[RELEASE_FILE].size > MAX_BYTES:
            return None
        found = cls.parse(repository.read(commit, RELEASE_FILE, max_bytes=MAX_BYTES) or b"")
        return found if found and found.has_its_files(repository, commit, tree) else None

    def has_its_files(self, repository: HubRepository, commit: str, tree: Mapping[str, RepoFile]) -> bool:
        """Whether a commit, whose files are in `tree`, holds the files of this release and no others."""
        if tree.keys() - HUBS_OWN_FILES - {RELEASE_FILE} != {file.path for file in self.files}:
            return False
        unclear = []
        for file in self.files:
            is_held = file.is_held(tree[file.path])
            if is_held is False:
                return False
            if is_held is None:
                unclear.append(file)
        if len(unclear) > MAX_READ_FILES or sum(file.size for file in unclear) > MAX_READ_BYTES:
            return False
        for file in unclear:
            content = repository.read(commit, file.path, max_bytes=file.size) or b""
            if hashlib.sha256(content).hexdigest() != file.sha256:
                return False
        return True


def release_record_bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"publish_id": release_id(body), **body}, sort_keys=True, indent=1).encode() + b"\n"


def release_id(body: Mapping[str, Any]) -> str:
    """Return the id of a release: SHA-256 of the content of its RELEASE_FILE, without the id, as canonical JSON."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def release_tag(publish_id: str) -> str:
    return f"{TAG_PREFIX}{publish_id[:12]}"
