"""Finds a published model by what a user writes, and brings its files to this machine, into the Hub client's cache.

`default` is what the recipe has published: the branch main of its repository, on its Hub. `default@release-0123456789ab` is an
older release of it, and `owner/name@revision` one of any repository: on the Hub of the recipe that publishes there, else on that
of HF_ENDPOINT, else on the local one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from params import HubRefusedError, RecipeError
from params.foundation.artifacts import Artifacts, translate_disk_errors
from tasks.hub_client.connection import find_repository_endpoint, open_repository
from tasks.recipes.loading import find_recipe, load

if TYPE_CHECKING:
    from tasks.hub_client.repository import HubRepository

MAIN: Final = "main"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]*")
_LOOK_S = 120.0


@dataclass(frozen=True)
class ModelReference:
    """A revision of a repository on a Hub."""

    repo_id: str
    revision: str
    endpoint: str
    """The address of the Hub, or `local`."""
    recipe: str | None = None
    """The recipe by whose name it was found."""

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Return what a user means.

        Raises:
            RecipeError: it names neither a recipe nor a repository, or the recipe is invalid.
        """
        name, at, revision = text.partition("@")
        if at and not _REVISION.fullmatch(revision):
            what = f"{revision!r} is not a revision"
            raise RecipeError(text, what, "write a tag, a commit or a branch after the @")
        if "/" in name and not name.endswith((".yaml", ".yml")):
            if not _REPOSITORY.fullmatch(name):
                raise RecipeError(text, "names no repository", "write owner/name, or owner/name@revision")
            return cls(name, revision or MAIN, find_repository_endpoint(name))
        path = find_recipe(name)
        publish = load(path).publish
        return cls(publish.repo_id, revision or MAIN, publish.endpoint, path.stem)

    def other(self, text: str) -> ModelReference:
        """Return another revision of the same repository, or with an `@` any model.

        Raises:
            RecipeError: as `parse`.
        """
        if "@" in text:
            return self.parse(text)
        if not _REVISION.fullmatch(text):
            raise RecipeError(text, "is not a revision", "write a tag, a commit, a branch, or owner/name@revision")
        return replace(self, revision=text)


@dataclass(frozen=True)
class DownloadedModel:
    folder: Path
    repo_id: str
    commit: str
    tag: str | None
    """The tag that names it, if a tag was asked for or main is at one."""

    @property
    def where(self) -> str:
        return f"{self.repo_id}@{self.tag or self.commit[:12]}"


def fetch_published_model(root: Path, name: ModelReference) -> DownloadedModel:
    """Download a published model, unless the cache has it.

    Raises:
        HubRefusedError: there is no such repository or revision, or the Hub refuses.
        TransientError: no clear answer in time.
        StorageError: the disk is full.
    """
    with open_repository(Artifacts("try", root), repo_id=name.repo_id, endpoint=name.endpoint) as opened:
        return fetch_model_from_repository(opened, name.revision, recipe=name.recipe)


def fetch_model_from_repository(opened: HubRepository, revision: str, *, recipe: str | None = None) -> DownloadedModel:
    """As `fetch_published_model`, from a repository that is open."""
    repository = replace(opened, timeout_s=_LOOK_S)
    commit, tag = repository.retry_until_clear(lambda: _look(repository, revision, recipe))
    with translate_disk_errors(Path("the cache of the Hub client")):
        return DownloadedModel(repository.download_model(commit), repository.id, commit, tag)


def _look(repository: HubRepository, revision: str, recipe: str | None) -> tuple[str, str | None]:
    """Return the commit of a revision, and a tag of it."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = str(repository.api.model_info(repository.id, revision=revision).sha)
        tags = repository.refs().tags
        files = repository.tree(commit)
    except RepositoryNotFoundError:
        fix = f"publish a model: evergreen run {recipe}" if recipe else "check the name, and that the token may see it"
        raise HubRefusedError(repository.where, "nothing is published there", fix) from None
    except RevisionNotFoundError:
        listed = f"that `evergreen releases{f' {recipe}' if recipe else ''}` lists"
        raise HubRefusedError(repository.where, f"there is no revision {revision}", f"choose one {listed}") from None
    if not any(path.endswith(".safetensors") for path in files):
        fix = f"publish a model: evergreen run {recipe}" if recipe else "name a revision with a model"
        raise HubRefusedError(repository.where, f"the revision {revision} has no weights as safetensors", fix)
    here = sorted((not tag.startswith("release-"), tag) for tag, target in tags.items() if target == commit)
    return commit, revision if revision in tags else here[0][1] if here else None
