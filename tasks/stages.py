"""The six stages by name, and how one is run from a recipe file.

A stage's signature says which sections of the recipe it reads; dvc.yaml declares the same ones (but `launch`), and a
contract test holds the two together.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pydantic

from params import DataError, load
from params.artifacts import Artifacts, storage_errors, write_whole

FUNCTIONS = {
    "ingest": "tasks.ingestion.stage:ingest",
    "validate": "tasks.validation.stage:validate",
    "tokenize": "tasks.tokenization.stage:tokenize",
    "train": "tasks.training.stage:train",
    "evaluate": "tasks.evaluation.stage:evaluate",
    "publish": "tasks.publishing.stage:publish",
}
_NEEDED = {
    "validate": {"raw": "ingest"},
    "tokenize": {"rows": "validate"},
    "train": {"tokens": "tokenize"},
    "evaluate": {"rows": "validate", "tokens": "tokenize", "model": "train"},
    "publish": {"raw": "ingest", "rows": "validate", "tokens": "tokenize", "model": "train", "evaluation": "evaluate"},
}
"""The artifacts that a stage starts from, and the stages that make them."""
_PARTS = {"metrics": "evaluation.metrics", "repo_id": "publish.repo_id", "endpoint": "publish.endpoint"}
"""Parameters of a stage that are a part of a section only, so that the rest of it may change without making it stale."""


class Report(pydantic.BaseModel):
    """What a stage did, in a few figures. It holds no clock: the same work gives the same report."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


def function(stage: str) -> Callable[..., Report]:
    """The function of `stage`; its module is imported now."""
    module, name = FUNCTIONS[stage].split(":")
    found: Callable[..., Report] = getattr(importlib.import_module(module), name)
    return found


def sections(stage: str) -> list[str]:
    """The recipe's sections that `stage` reads, from its signature; of some only a part, as `section.key`."""
    return [_PARTS.get(name, name) for name in _parameters(stage)]


def _parameters(stage: str) -> list[str]:
    return [name for name in inspect.signature(function(stage)).parameters if name != "artifacts"]


def run(stage: str, recipe_path: Path) -> Report:
    """Run one stage of the recipe at `recipe_path`, in the project whose root is the working directory.

    Raises:
        DataError: the stage before it has not run.
    """
    recipe = load(recipe_path)
    wanted = {name: attrgetter(_PARTS.get(name, name))(recipe) for name in _parameters(stage)}
    artifacts = Artifacts(recipe_path.stem)
    for name, maker in _NEEDED.get(stage, {}).items():
        folder: Path = getattr(artifacts, name)
        if not folder.exists():
            fix = f"run `python -m tasks {maker} {recipe_path}` first"
            raise DataError(str(folder), f"{stage} needs what {maker} makes, which is not there", fix)
    with storage_errors(artifacts.run):
        return function(stage)(artifacts, **wanted)


def figures(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The single figures of a report, nested names joined by dots, for people to read; lists by their length."""
    for name, value in report.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", figure) for inner, figure in figures(value))
        elif isinstance(value, list):
            yield name, f"{len(value)}"
        else:
            yield name, f"{value:.6g}" if isinstance(value, float) else value


def save_report(report: Report, path: Path) -> None:
    """Write a report as JSON that is the same for the same figures."""
    write_whole(path, report.model_dump_json(indent=2) + "\n")
