"""What the API says about a repository, one field at a time, so that a list computes only what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dulwich.objects import ObjectID

from tasks.hub_server.card_metadata import read_card
from tasks.hub_server.errors import HubError
from tasks.hub_server.git_objects import CommitRecord, Entry
from tasks.hub_server.limits import BODY_BYTES
from tasks.hub_server.repositories import MAIN
from tasks.hub_server.requests import Json, Target, iso_date
from tasks.hub_server.routes_absent import absent

_PLAIN_TAGS = ("tags", "library_name", "pipeline_tag")
_MODEL_TAGS = {"language": "", "license": "license:", "datasets": "dataset:", "base_model": "base_model:"}
_DATASET_KEYS = (
    *("annotations_creators", "language", "language_creators", "license", "multilinguality"),
    *("size_categories", "source_datasets", "task_categories", "task_ids"),
)
_TAGS: Final = {"models": _MODEL_TAGS, "datasets": {key: f"{key}:" for key in _DATASET_KEYS}}
"""By kind of repository: which values of the card's metadata are tags, and what is put before them."""


@dataclass(frozen=True)
class Description:
    """A repository at one commit, or its newest one."""

    target: Target
    sha: str
    blobs: bool = False
    """Whether to describe the content of each file."""

    @cached_property
    def metadata(self) -> dict[str, object]:
        """The metadata of the card; empty if there is none or it is invalid."""
        try:
            entry = self.target.repository.entry(self.sha, "README.md")
        except HubError:
            return {}
        if entry.sha256 or entry.size > BODY_BYTES:
            return {}
        card = read_card(
            self.target.repository.read(entry).decode(errors="replace"), is_model=self.target.kind == "models"
        )
        return {} if card.errors else card.metadata or {}

    @property
    def tags(self) -> list[str]:
        """The tags that the card has, and those that follow from its other metadata."""
        before = dict.fromkeys(_PLAIN_TAGS, "") | _TAGS[self.target.kind]
        found = [f"{prefix}{value}" for key, prefix in before.items() for value in _texts(self.metadata.get(key))]
        return list(dict.fromkeys(found))

    @property
    def last_commit(self) -> CommitRecord:
        """The newest commit."""
        return self.target.repository.history(self.sha, skip=0, limit=1)[0]

    @property
    def created(self) -> int:
        """When the first commit of main was made, in seconds since 1970."""
        main = self.target.repository.resolve(MAIN)
        with self.target.repository.open() as git:
            return min(int(entry.commit.commit_time) for entry in git.get_walker(include=[ObjectID(main.encode())]))

    def siblings(self) -> list[dict[str, object]]:
        """Return the files."""
        found = self.target.repository.entries(self.sha, recursive=True)
        return [_sibling(entry, blobs=self.blobs) for entry in found if not entry.is_folder]

    def text(self, key: str) -> str | None:
        """Return a text of the metadata; None if it has none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def fields(self, names: Iterable[str]) -> dict[str, object]:
        """Return the id, and the fields with these names that the repository has."""
        found: Json = dict.fromkeys(("_id", "id", "modelId"), self.target.id) | {
            name: FIELDS[name](self) for name in names
        }
        return {name: value for name, value in found.items() if value is not None}


FIELDS: Final[Mapping[str, Callable[[Description], object]]] = {
    "author": lambda each: each.target.namespace,
    "cardData": lambda each: each.metadata,
    "createdAt": lambda each: iso_date(each.created),
    "disabled": lambda _: False,
    "downloads": lambda _: 0,
    "gated": lambda _: False,
    "lastModified": lambda each: iso_date(each.last_commit.time),
    "library_name": lambda each: each.text("library_name"),
    "likes": lambda _: 0,
    "pipeline_tag": lambda each: each.text("pipeline_tag"),
    "private": lambda each: each.target.repository.private,
    "sha": lambda each: each.sha,
    "siblings": lambda each: each.siblings(),
    "tags": lambda each: each.tags,
}
LISTED: Final = FIELDS.keys() - {"cardData", "siblings"}
"""Fields of a list, unless it asks for others."""


def check_fields(names: Iterable[str]) -> None:
    """Check that there are fields with these names.

    Raises:
        HubError: 501 if not.
    """
    for name in names:
        if name not in FIELDS:
            raise absent(f"field {name!r} of a repository, only {', '.join(sorted(FIELDS))}")


def _texts(value: object) -> list[str]:
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]


def _sibling(entry: Entry, *, blobs: bool) -> dict[str, object]:
    fields: dict[str, object] = {"rfilename": entry.path}
    if blobs:
        fields |= {"size": entry.size, "blobId": entry.oid}
        if entry.sha256:
            fields["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return fields
