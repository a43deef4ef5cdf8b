"""Which models a model goes back to: the release that its training started from, its base, and what those go back to.

    a release        its record says what it goes back to itself (`ReleaseRecord.ancestors`)
    runs/<x>/model   its training has recorded what it goes back to (training_record.py); that of an earlier version has not: then its
                     report names its start, and the recipe x its base
    another model    is one that Evergreen has made if its training has left its record in the folder; else nothing is said of it

Two things follow from them: which rows the model has learned from (learned_rows.py), and whether people have rolled back from what is in
its weights (rolled_back_ancestors.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from params import EvergreenError
from params.foundation.artifacts import KNOWN_ROWS, PROFILE, Artifacts
from params.schema import Model
from tasks.digests import PROVENANCE, ReleasedModel, ReleaseRecord, digests_in_each_form, weights_digest
from tasks.hub_client.cached_files import fetch_if_there
from tasks.lineage.training_record import RecordedAncestor, read_recorded_ancestors
from tasks.recipes.loading import load
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
    """The files in which it says how it was made; None if they are not here."""
    run: Artifacts | None = None
    """The run of this project whose model it is; None for others."""
    endpoint: str = ""
    """Address of the Hub that it comes from, or `local`; empty for a folder."""
    unknown: str = ""
    """Why nothing can be said of it."""
    published: tuple[ReleasedModel, ...] = ()
    """It as a release, in each form that it may have."""
    goes_back_to: tuple[ReleasedModel, ...] = ()
    """The releases that it goes back to, by the record of the training; else `folder` says it."""

    @property
    def says_nothing(self) -> bool:
        """Whether it is unknown, and names no release."""
        return bool(self.unknown) and not self.releases()

    @property
    def way(self) -> tuple[str, bool, str]:
        """How the model goes back to it; all releases of a repository that a base goes back to have one."""
        return (self.name, self.is_of_base, self.through)

    def says_as_much_as(self, other: Ancestor) -> bool:
        """Whether it is on the same way, is known if the other is, and names all of its releases."""
        is_as_well_known = not self.unknown or bool(other.unknown)
        return self.way == other.way and is_as_well_known and {*other.releases()} <= {*self.releases()}

    def releases(self) -> tuple[ReleasedModel, ...]:
        """Return it, and the releases that its record says it goes back to."""
        record = None
        if self.folder:
            with contextlib.suppress(ValueError):  # rows that it has learned from are unknown then, which is said
                record = ReleaseRecord.of(self.folder)
        return (*self.published, *self.goes_back_to, *(record.ancestors if record else ()))

    def record(self) -> RecordedAncestor:
        """Return what a training records of it: all that its files say now."""
        releases = self.releases()[len(self.published) :]
        own = {"name": self.name, "is_of_base": self.is_of_base, "through": self.through, "unknown": self.unknown}
        return RecordedAncestor(**own, endpoint=self.endpoint, published=self.published, goes_back_to=releases)

    @classmethod
    def of_record(cls, found: RecordedAncestor) -> Self:
        return cls(**dict(found))


def list_ancestors_of_model(artifacts: Artifacts) -> list[Ancestor]:
    """Return the models that the trained model of a run goes back to, as its training has recorded it.

    If it has not, or could not ask all of them, these are (also) what `list_ancestors` finds now, which replaces what says nothing.
    """
    recorded = _read_record(artifacts.model)
    if recorded is None:
        return list_ancestors(artifacts)
    if not any(one.unknown for one in recorded):
        return recorded
    now = list_ancestors(artifacts)
    answered = {one.way for one in now if not one.unknown}
    kept = [one for one in recorded if not one.says_nothing or one.way not in answered]
    return [*kept, *(one for one in now if not any(known.says_as_much_as(one) for known in kept))]


def record_ancestors(parents: Sequence[Ancestor]) -> tuple[RecordedAncestor, ...]:
    """Return these parents of a training and what they go back to themselves, to be recorded beside its model."""
    found = list(parents)
    for base in [one for one in parents if one.is_of_base and one.folder]:
        assert base.folder
        earlier = _read_record(base.folder)
        if earlier is None and base.run:
            earlier = list_ancestors(base.run)
        found += [replace(one, through=base.name, is_of_base=True) for one in earlier or ()]
    return tuple(one.record() for one in found)


def _read_record(folder: Path) -> list[Ancestor] | None:
    """Return what the training of the model in a folder has recorded of its ancestors; None if it has not."""
    found = read_recorded_ancestors(folder / KNOWN_ROWS)
    return None if found is None else [Ancestor.of_record(one) for one in found]


def list_ancestors(artifacts: Artifacts, model: Model | None = None) -> list[Ancestor]:
    """Return the models that the model of a run goes back to, by its report and the recipe as it is now: its start, then its base.

    Each is followed by what it goes back to itself. `model` is the section of its recipe, by default the one that the recipe has now. Releases that a release goes back to are in
    `Ancestor.releases`.
    """
    return _list_unseen(artifacts, model, frozenset())


def list_parents(artifacts: Artifacts, model: Model) -> list[Ancestor]:
    """Return the models that a training with this section of the recipe starts from now: its start, then its base."""
    start = read_pinned_start(artifacts, model.start)
    own = [_start(artifacts, start)] if start else []
    base = _find_base_model(artifacts, model)
    return [*own, *([base] if base else [])]


def list_released_ancestors(artifacts: Artifacts) -> tuple[ReleasedModel, ...]:
    """Return the releases that the model of a run goes back to, each once; what a run has made counts, as it may be published yet."""
    return tuple(dict.fromkeys(release for one in list_ancestors_of_model(artifacts) for release in one.releases()))


def find_base_commit(model: Model) -> str | None:
    """Return the commit of a base model that was loaded from a Hub, by the client's cache; None for another base.

    A branch names another commit tomorrow, so a rollback of the base would be hidden if this were asked later.
    """
    if model.pretrained is None or Path(model.pretrained).is_dir():
        return None
    from transformers.utils.hub import cached_file, extract_commit_hash

    only_here: Any = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    path = cached_file(model.pretrained, "config.json", revision=model.revision, **only_here)
    commit: str | None = extract_commit_hash(path, None)
    return commit


def find_base(artifacts: Artifacts) -> str | None:
    """Return the name of the base model of a run if it is one that Evergreen has made."""
    return next((one.name for one in list_ancestors_of_model(artifacts) if one.is_of_base and not one.through), None)


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
    base = _find_base_model(artifacts, chosen, _read_training(artifacts).get("base_commit"))
    if not base or not base.run:
        return [*found, *([base] if base else [])]
    if base.run.recipe in seen | {artifacts.recipe}:
        return found
    earlier = _read_record(base.run.model)
    if earlier is None:
        earlier = _list_unseen(base.run, None, seen | {artifacts.recipe})
    return [*found, base, *(replace(one, through=base.name, is_of_base=True) for one in earlier)]


def _start(artifacts: Artifacts, start: ReleaseReference) -> Ancestor:
    published = (ReleasedModel(repo_id=start.repo_id, weights=start.weights),)
    own = Ancestor(start.name, endpoint=start.endpoint, published=published)
    is_pinned = (artifacts.start / RECORD).exists() and read_pinned_start(artifacts, "champion") == start
    if is_pinned and artifacts.start_record.is_dir():
        return replace(own, folder=artifacts.start_record)
    return replace(own, unknown=f"{start.name}: what it says of its rows is no longer in {artifacts.start_record}")


def _find_base_model(artifacts: Artifacts, model: Model, commit: str | None = None) -> Ancestor | None:
    """Return the base of a model, if it is one that Evergreen may have made.

    `commit` is that of a base from a Hub; by default the one that the client's cache has.
    """
    if model.pretrained is None:
        return None
    folder = artifacts.root / model.pretrained
    if not folder.is_dir():
        return _find_hub_model(model, commit)
    if (folder / PROVENANCE).exists():
        return _release_in_folder(folder, model.pretrained)
    runs, place = (artifacts.root / "runs").resolve(), folder.resolve()
    if place.is_relative_to(runs) and place != runs:
        run = Artifacts(place.relative_to(runs).parts[0], artifacts.root)
        own = Ancestor(f"{run.run}/model", is_of_base=True, folder=run.model, run=run)
    else:
        own = Ancestor(model.pretrained, is_of_base=True, folder=folder)
        is_of_other_project = (place.parent / "history" / "training.json").exists()
        if not is_of_other_project and not (folder / KNOWN_ROWS).exists():
            return None
    assert own.folder
    return replace(own, published=tuple(ReleasedModel(weights=one) for one in digests_in_each_form(own.folder)))


def _release_in_folder(folder: Path, name: str, endpoint: str = "", repo_id: str = "") -> Ancestor:
    published: tuple[ReleasedModel, ...] = ()
    with contextlib.suppress(ValueError):
        record = ReleaseRecord.of(folder)
        if record and (weights := weights_digest(record.weights)):
            published = (ReleasedModel(repo_id=repo_id or record.repo_id, weights=weights),)
    return Ancestor(name, is_of_base=True, folder=folder, endpoint=endpoint, published=published)


def _find_hub_model(model: Model, commit: str | None) -> Ancestor | None:
    name = str(model.pretrained)
    try:
        revision = commit or find_base_commit(model) or model.revision
        record = fetch_if_there(name, PROVENANCE, revision)
        for file in (KNOWN_ROWS, PROFILE) if record else ():
            fetch_if_there(name, file, revision)
    except (OSError, ValueError) as error:
        why = f"{name}: its Hub did not say whether it is a release of Evergreen: {type(error).__name__}"
        return Ancestor(name, is_of_base=True, unknown=f"{why}; train again when it answers")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return _release_in_folder(record.parent, name, endpoint, name) if record else None
