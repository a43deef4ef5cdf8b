"""dvc.yaml, recipes.yaml and dvc.lock: the inputs of a stage as they are declared, and what DVC has recorded of earlier runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params.foundation.artifacts import Artifacts

RECIPES = Path("recipes.yaml")  # the list of recipes, which dvc.yaml loads


def read_stage_dependencies(stage: str, artifacts: Artifacts) -> list[str]:
    """Return the files and folders that dvc.yaml declares for a stage; those that the recipe's item lacks are left out."""
    item = read_recipes_yaml_item(artifacts)
    values = {"key": artifacts.recipe} | {f"item.{name}": path for name, path in item.items()}
    declared = read_stage_declaration(stage, artifacts).get("deps", ())
    paths = [re.sub(r"\$\{([\w.]+)\}", lambda name: values.get(name[1], name[0]), path) for path in declared]
    return [path for path in paths if "${" not in path]


def read_recipes_yaml_item(artifacts: Artifacts) -> dict[str, str]:
    """Return the recipe's item in recipes.yaml; empty if it has none."""
    recipes = read_yaml_or_nothing(artifacts.root / RECIPES).get("recipes")
    item = recipes.get(artifacts.recipe) if isinstance(recipes, Mapping) else None
    return {str(key): str(value) for key, value in item.items()} if isinstance(item, Mapping) else {}


def read_dvc_lock_stages(root: Path) -> Mapping[str, Any]:
    """Return the stages in dvc.lock: what DVC recorded of their last runs, by name, such as `train@default`."""
    return read_yaml_or_nothing(root / "dvc.lock").get("stages") or {}


def is_training_recorded(artifacts: Artifacts) -> bool:
    """Whether dvc.lock records the training that wrote the model: a DVC that was killed before has recorded nothing."""
    report = artifacts.history / "training.json"
    outs = read_dvc_lock_stages(artifacts.root).get(f"train@{artifacts.recipe}", {}).get("outs", ())
    hashes = {out["path"]: out.get("md5") for out in outs}
    recorded = hashes.get(report.relative_to(artifacts.root).as_posix())
    return report.is_file() and recorded == md5_hash(report.read_bytes())


def read_stage_declaration(stage: str, artifacts: Artifacts) -> Mapping[str, Any]:
    """Return what dvc.yaml says of a stage, with its templates; empty if it does not list the stage."""
    found: Mapping[str, Any] = (
        value_of_key(read_yaml_or_nothing(artifacts.root / "dvc.yaml"), f"stages.{stage}.do") or {}
    )
    return found


def value_of_key(content: Any, key: str) -> Any:
    """Return what is at a key with dots; None if something on the way is no mapping or lacks it."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def md5_hash(content: bytes) -> str:
    """Return the hash by which DVC knows content."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_yaml_or_nothing(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a file; an empty one if there is none that can be read, which whoever needs the file says."""
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        return {}
    return content if isinstance(content, Mapping) else {}
