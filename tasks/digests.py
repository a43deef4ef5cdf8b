"""Digests of a model's weights, of the validated rows, and of the recipe's sections that an evaluation depends on; what a release records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, Field

from params.foundation.artifacts import ADAPTER, CORPUS, SPLITS, Artifacts
from params.foundation.errors import ModelError
from params.foundation.hashing import file_sha256
from params.schema import AdapterForm, Model, ObjectiveChoice
from params.sections.evaluation import Evaluation
from trainer.data import shards
from trainer.model.weights_header import check_chosen_settings

PROVENANCE: Final = "evergreen-provenance.json"  # the file of a release that says what made it


class RecordOfRows(BaseModel):
    """What a release says of the rows that it learned from."""

    learned_until: str = ""
    """The time of the newest one, or of the newest one that chose the best checkpoint; empty if rows had no times."""
    split: str = "hash"
    """By what rows were held out (`data.split.by`)."""
    unknown: tuple[str, ...] = ()
    """Why the release cannot name all rows that it has learned from: what it started from does not name them."""


class ReleasedModel(BaseModel, frozen=True):
    """A model that was published, or may have been."""

    repo_id: Annotated[str, Field(pattern=r"^([\w.-]+/[\w.-]+)?$")] = ""
    """Empty if only its weights are known."""
    weights: str
    """Their digest, see `weights_digest`."""


class ReleaseRecord(BaseModel):
    """The part of a release's record that says how to read rows with it."""

    objective: ObjectiveChoice
    max_length: int | None = None
    """The tokens up to which the model was judged; a record of an earlier version does not say it: its tokenizer does."""
    data: RecordOfRows = RecordOfRows()
    repo_id: str = ""
    """The repository that it was made for; a record of an earlier version does not say it."""
    weights: dict[str, str] = {}
    """SHA-256 of each file of its weights, by its path."""
    start: ReleasedModel | None = None
    """None if the training started from the recipe's own model."""
    goes_back_to: tuple[ReleasedModel, ...] | None = None
    """All releases that it goes back to, through its start and its base; None in a record of an earlier version."""

    @property
    def ancestors(self) -> tuple[ReleasedModel, ...]:
        """All releases that it goes back to, as far as it says it."""
        if self.goes_back_to is not None:
            return self.goes_back_to
        return (self.start,) if self.start else ()

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read it from the files of a release, which may lack it; ValueError if it cannot be used."""
        path = folder / PROVENANCE
        return cls.model_validate_json(path.read_bytes()) if path.exists() else None


def weights_digest_by_form(artifacts: Artifacts) -> dict[AdapterForm, str]:
    """Return the digest of the weights in a release of the trained model, for each form that it can be published in.

    ModelError if there are none, or if the model has other thresholds than those that the digest covers.
    """
    check_chosen_settings(artifacts.model)
    files = weight_file_hashes(artifacts.model)
    forms: tuple[AdapterForm, ...] = (
        ("merged", "adapter", "both") if files_in_release_form("adapter", files) else ("merged",)
    )
    digests = {form: digest for form in forms if (digest := weights_digest(files_in_release_form(form, files)))}
    if "merged" not in digests:
        raise ModelError(str(artifacts.model), f"there is no {WEIGHTS} file in it", "train the model first")
    return digests


def files_in_release_form(form: AdapterForm, files: Mapping[str, str]) -> dict[str, str]:
    """Return which of a trained model's files a release in a form has, by their paths in the release."""
    folder, is_adapter = f"{ADAPTER}/", form == "adapter"
    if form == "both":
        return dict(files)
    return {
        path.removeprefix(folder): digest for path, digest in files.items() if path.startswith(folder) == is_adapter
    }


def digests_in_each_form(folder: Path) -> list[str]:
    """Return the digests that releases of the model in a folder may have, each once."""
    files = weight_file_hashes(folder)
    forms: tuple[AdapterForm, ...] = ("merged", "adapter", "both")
    found = (weights_digest(files_in_release_form(form, files)) for form in forms)
    return list(dict.fromkeys(filter(None, found)))


def validated_rows_digest(artifacts: Artifacts) -> str:
    """Return the digest of the validated rows of all splits, and of the documents of `data.corpus`."""
    digest = hashlib.sha256()
    for split in (*SPLITS, *([CORPUS] if (artifacts.rows / CORPUS).exists() else [])):
        digest.update(f"{split} {shards.folder_sha256(artifacts.rows / split)}\n".encode())
    return digest.hexdigest()


def evaluation_recipe_digest(*, seed: int, objective: ObjectiveChoice, model: Model, evaluation: Evaluation) -> str:
    """Return the digest of the recipe's sections that an evaluation depends on."""
    sections = {"objective": objective, "model": model, "evaluation": evaluation}
    body = {"seed": seed, **{name: section.model_dump(mode="json") for name, section in sections.items()}}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


WEIGHTS: Final = ".safetensors"  # the suffix of the files that make a model the one it is


def weights_digest(files: Mapping[str, str]) -> str | None:
    """What tells two models apart: SHA-256 over the lines `<path> <sha256>` of all .safetensors, in order of path.

    `files` maps paths inside the release to the SHA-256 of their content. None if no file holds weights. Thresholds stand in the headers
    of these files (`trainer/model/weights_header.py`), so equal weights with others have another digest.
    """
    lines = [f"{path} {files[path]}\n" for path in sorted(files) if path.endswith(WEIGHTS)]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def weight_file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of weights in a folder, by its path there."""
    paths = sorted(path for path in folder.rglob(f"*{WEIGHTS}") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
