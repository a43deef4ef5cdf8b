"""The inputs of a stage at one moment.

DVC hashes the inputs of a stage when its command has ended, so that an edit during the run would be recorded as what ran. A
stage therefore reads its inputs when it starts, and fails if they have changed when it ends: then DVC records nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from params import InputsChangedError, RecipeError
from params.dvc_files import (
    md5_hash,
    read_dvc_lock_stages,
    read_stage_declaration,
    read_stage_dependencies,
    read_yaml_or_nothing,
    value_of_key,
)
from params.foundation.artifacts import Artifacts
from params.foundation.stages import STAGES
from tasks.recipes.loading import load

_HASHED_BYTES = 2**16
"""Larger files are compared by size and time of the last change: code is smaller, data takes too long to read twice."""


@dataclass(frozen=True)
class StageInputsSnapshot:
    """What a stage depends on, as it is at one moment."""

    stage: str
    artifacts: Artifacts
    params: Mapping[str, Any]  # the declared keys of the recipe with their values
    files: Mapping[str, Mapping[str, str]]
    """The state of the files of each declared dependency, by their path below it; `.` if it is a file itself."""

    @classmethod
    def read(cls, stage: str, artifacts: Artifacts) -> StageInputsSnapshot:
        """Return the inputs as they are now. They are empty if dvc.yaml does not list the stage."""
        declared = read_stage_declaration(stage, artifacts).get("params", ())
        keys = [key for section in declared for names in section.values() for key in names]
        recipe: Mapping[str, Any] = {}
        with contextlib.suppress(RecipeError):  # whoever reads it next says it
            recipe = load(artifacts.recipe_path).model_dump(mode="json")
        return cls(
            stage=stage,
            artifacts=artifacts,
            params={key: value_of_key(recipe, key) for key in keys},
            files={path: _states(artifacts.root / path) for path in read_stage_dependencies(stage, artifacts)},
        )

    @property
    def name(self) -> str:
        """The stage's name in DVC, for example `train@default`."""
        return f"{self.stage}@{self.artifacts.recipe}"

    @property
    def code(self) -> dict[str, str]:
        """The state of each Python file that the stage depends on; empty if dvc.yaml does not list the stage."""
        states = ((Path(path, name), state) for path, files in self.files.items() for name, state in files.items())
        return {path.as_posix(): state for path, state in states if path.suffix == ".py"}

    def check(self) -> None:
        """Fail if an input is not what it was."""
        now = StageInputsSnapshot.read(self.stage, self.artifacts)
        recipe = self.artifacts.recipe_path
        changed = [f"{key} in {recipe}" for key in self.params if self.params[key] != now.params.get(key)]
        for path, files in self.files.items():
            found = now.files.get(path, {})
            names = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
            changed += [(Path(path) / name).as_posix() for name in names]
        if changed:
            raise _error(self.name, f"changed while it ran: {', '.join(changed)}")

    def recorded_changes(self, entry: Mapping[str, Any]) -> list[str]:
        """Return which keys and which code differ from `entry`, that of this stage in dvc.lock."""
        params: Mapping[str, Any] = next(iter(entry.get("params", {}).values()), {})
        hashes = {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}
        changed = [key for key, value in self.params.items() if _plain(params.get(key)) != _plain(value)]
        code = [path for path, files in self.files.items() if any(Path(path, name).suffix == ".py" for name in files)]
        return changed + [path for path in code if hashes.get(path) != _dvc_hash(self.files[path])]


def check_earlier_stages_unchanged(stage: str, artifacts: Artifacts) -> None:
    """Fail if an earlier stage ran with other code or another recipe than there are now, says dvc.lock.

    Without DVC, the stages are the user's to run, and dvc.lock says nothing about them.
    """
    if "DVC_STAGE" not in os.environ:
        return
    recorded = read_dvc_lock_stages(artifacts.root)
    for earlier in STAGES[: STAGES.index(stage)]:
        inputs = StageInputsSnapshot.read(earlier, artifacts)
        entry = recorded.get(inputs.name)
        if entry and (changed := inputs.recorded_changes(entry)):
            raise _error(inputs.name, f"changed since it ran: {', '.join(changed)}")


def check_recipe_matches_snapshot(inputs: StageInputsSnapshot) -> None:
    """Fail if the recipe was edited since DVC looked at its values, which then are not those of this stage."""
    if os.environ.get("DVC_STAGE") != inputs.name:
        return
    resolved = read_yaml_or_nothing(inputs.artifacts.resolved_recipe)
    changed = [key for key, value in inputs.params.items() if _plain(value_of_key(resolved, key)) != _plain(value)]
    if changed:
        file = inputs.artifacts.resolved_recipe
        raise _error(inputs.name, f"the recipe changed since {file} was written: {', '.join(changed)}")


def _error(name: str, what: str) -> InputsChangedError:
    return InputsChangedError(name, what, "run the recipe again: finished work is kept for inputs that are the same")


def _states(path: Path) -> dict[str, str]:
    """Return the state of a file, or of every file of a folder that DVC does not ignore, by its path below `path`."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {f.relative_to(path).as_posix(): file_fingerprint(f) for f in files if "__pycache__" not in f.parts}


def file_fingerprint(file: Path) -> str:
    """Return what tells whether a file has changed: its MD5 or, of a large one, size and time; empty if there is none."""
    try:
        about = file.stat()
        is_small = about.st_size < _HASHED_BYTES
        return md5_hash(file.read_bytes()) if is_small else f"{about.st_size} {about.st_mtime_ns}"
    except FileNotFoundError:
        return ""


def _dvc_hash(files: Mapping[str, str]) -> str:
    """Return the hash that dvc.lock records for a file, or for a folder of these files."""
    if "." in files:
        return files["."]
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return md5_hash(json.dumps(entries, sort_keys=True).encode()) + ".dir"


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
