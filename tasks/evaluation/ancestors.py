"""Which models a model goes back to: the release that its training started from, its base, and what those go back to.

    a release        its record says what it goes back to itself (`ReleaseRecord.ancestors`)
    runs/<x>/model   the recipe x has its own start and base
    another model    is not one of this project, and nothing is said of it

Two things follow from them: which rows the model has learned from (learned_rows.py), and whether people have rolled back from what is in
its weights (rolled_back_ancestors.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from params import EvergreenError, load
from params.foundation.artifacts import KNOWN_ROWS, PROFILE, Artifacts
from params.schema import Model
from tasks.digests import PROVENANCE, ReleasedModel, ReleaseRecord, digests_in_each_form, weights_digest
from trainer.start import RECORD, ReleaseReference, read_pinned_start


@dataclass(frozen=True)
class Ancestor:
    """A release, or the model of a run, that a model goes back to."""

    name: str
    """In messages."""
    is_of_base: bool = False
    """Whether the model goes back to it through its base, which may be a model of quite other data; else through its start."""
    through: str = ""
    """The name of this start or base; empty if it is that itself."""
    folder: Path | None = None
    """The files in which a release says how it was made; None if they are not here."""
    run: Artifacts | None = None
    """The run whose model it is; None for a release."""
    endpoint: str = ""
    """Address of the Hub that it comes from, or `local`; empty for a folder."""
    unknown: str = ""
    """Why nothing can be said of it."""
    published: tuple[ReleasedModel, ...] = ()
    """It as a release, in each form that it may have."""

    def releases(self) -> tuple[ReleasedModel, ...]:
        """Return it, and the releases that its record says it goes back to."""
        record = None
        if self.folder:
            with contextlib.suppress(ValueError):  # rows that it has learned from are unknown then, which is said
                record = ReleaseRecord.of(self.folder)
        return (*self.published, *(record.ancestors if record else ()))


def list_ancestors(artifacts: Artifacts, model: Model | None = None) -> list[Ancestor]:
    """Return the models that the model of a run goes back to: its start, then its base, each with what it goes back to itself.

    `model` is the section of its recipe, by default the one that the recipe has now. Releases that a release goes back to are in
    `Ancestor.releases`.
    """
    return _list_unseen(artifacts, model, frozenset())


def list_released_ancestors(artifacts: Artifacts) -> tuple[ReleasedModel, ...]:
    """Return the releases that the model of a run goes back to, each once; what a run has made counts, as it may be published yet."""
    return tuple(dict.fromkeys(release for one in list_ancestors(artifacts) for release in one.releases()))


def find_base(artifacts: Artifacts) -> str | None:
    """Return the name of the base model of a run if it is one that Evergreen has made."""
    return next((one.name for one in list_ancestors(artifacts) if one.is_of_base and not one.through), None)


def read_start_of_training(artifacts: Artifacts) -> ReleaseReference | None:
    """Return the release that the training started from; None if it started from the recipe's own model, or there was none."""
    started_from = _read_training(artifacts).get("started_from")
    return ReleaseReference.model_validate(started_from) if started_from else None


def _read_training(artifacts: Artifacts) -> dict[str, Any]:
    path = artifacts.report("train")
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def _list_unseen(artifacts: Artifacts, model: Model | None, seen: frozenset[str]) -> list[Ancestor]:
    """As `list_ancestors`, without the runs of recipes in `seen`: bases can name each other in a circle."""
    found = []
    if start := read_start_of_training(artifacts):
        found.append(_start(artifacts, start))
    try:
        chosen = model or load(artifacts.recipe_path).model
    except (EvergreenError, OSError) as error:
        why = f"{artifacts.run}/model: its recipe, which names its base, cannot be read: {error}"
        return [*found, Ancestor(f"{artifacts.run}/model", unknown=why)]
    bases = _list_base(artifacts, chosen, seen | {artifacts.recipe})
    return [*found, *(replace(one, is_of_base=True) for one in bases)]


def _start(artifacts: Artifacts, start: ReleaseReference) -> Ancestor:
    published = (ReleasedModel(repo_id=start.repo_id, weights=start.weights),)
    own = Ancestor(start.name, endpoint=start.endpoint, published=published)
    is_pinned = (artifacts.start / RECORD).exists() and read_pinned_start(artifacts, "champion") == start
    if is_pinned and artifacts.start_record.is_dir():
        return replace(own, folder=artifacts.start_record)
    return replace(own, unknown=f"{start.name}: what it says of its rows is no longer in {artifacts.start_record}")


def _list_base(artifacts: Artifacts, model: Model, seen: frozenset[str]) -> list[Ancestor]:
    if model.pretrained is None:
        return []
    folder = artifacts.root / model.pretrained
    if not folder.is_dir():
        return _list_hub_model(model.pretrained, _read_training(artifacts).get("base_commit") or model.revision)
    if (folder / PROVENANCE).exists():
        return [_release_in_folder(folder, model.pretrained)]
    runs, place = (artifacts.root / "runs").resolve(), folder.resolve()
    if place.is_relative_to(runs) and place != runs:
        return _list_run(Artifacts(place.relative_to(runs).parts[0], artifacts.root), seen)
    return []


def _list_run(run: Artifacts, seen: frozenset[str]) -> list[Ancestor]:
    if run.recipe in seen:
        return []
    name = f"{run.run}/model"
    published = tuple(ReleasedModel(weights=one) for one in digests_in_each_form(run.model))
    earlier = _list_unseen(run, None, seen)
    return [Ancestor(name, run=run, published=published), *(replace(one, through=name) for one in earlier)]


def _release_in_folder(folder: Path, name: str, endpoint: str = "", repo_id: str = "") -> Ancestor:
    published: tuple[ReleasedModel, ...] = ()
    with contextlib.suppress(ValueError):
        record = ReleaseRecord.of(folder)
        if record and (weights := weights_digest(record.weights)):
            published = (ReleasedModel(repo_id=repo_id or record.repo_id, weights=weights),)
    return Ancestor(name, folder=folder, endpoint=endpoint, published=published)


def _list_hub_model(name: str, revision: str | None) -> list[Ancestor]:
    from transformers.utils.hub import cached_file

    found: dict[str, str | None] = {}
    for file in (PROVENANCE, KNOWN_ROWS, PROFILE):
        try:
            found[file] = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        except (OSError, ValueError) as error:
            why = f"{name}: its Hub did not say whether it is a release of Evergreen: {type(error).__name__}"
            return [Ancestor(name, unknown=why)]
        if file == PROVENANCE and not found[file]:
            return []
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return [_release_in_folder(Path(str(found[PROVENANCE])).parent, name, endpoint, name)]
