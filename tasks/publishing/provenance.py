"""All that is needed to make a released model once more, as data: recipe, code, versions, rows, weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params import RecipeError, load
from params.artifacts import Artifacts
from tasks.digests import weights_in

FILE: Final = "evergreen-provenance.json"
"""The provenance inside a release, beside the model card that tells it to people."""
SCHEMA: Final = 1
REBUILT: Final = ("ingest", "validate", "tokenize", "train")
"""The stages whose work is in the weights."""

_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^\s/:@\"']*:(?!\$\{\w+\}@)[^\s/@\"']+@")
"""A password in a URL; the placeholder of an environment variable is none."""


def provenance(artifacts: Artifacts) -> dict[str, Any]:
    """All that decided on the weights of a trained run, as JSON values: the content of `FILE`.

    It has no clock, no path of this machine that the recipe does not name, and nothing of the environment.

    Raises:
        RecipeError: the recipe cannot be read, or holds a password.
    """
    recipe = load(artifacts.recipe_path)
    text = artifacts.recipe_path.read_text(encoding="utf-8")
    _refuse_password(artifacts, text)
    source, training = (_read(artifacts.report(stage)) for stage in ("ingest", "train"))
    return {
        "schema": SCHEMA,
        "recipe": {
            "name": artifacts.recipe,
            "text": text,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "dvc_item": _dvc_item(artifacts),
        },
        "seed": recipe.seed,
        "objective": recipe.objective.model_dump(mode="json"),
        "run": training["run"],
        "git_commit": training["git_commit"],
        "versions": training["versions"],
        "data": {name: source[name] for name in ("source", "revision", "rows", "columns")}
        | {"sha256": source["data_sha256"]},
        "dvc_lock": _dvc_lock(artifacts),
        "commands": [f"python -m tasks {stage} params/{artifacts.recipe}.yaml" for stage in REBUILT],
        "weights": weights_in(artifacts.model),
    }


def _refuse_password(artifacts: Artifacts, text: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        if _PASSWORD.search(line):
            where = f"params/{artifacts.recipe}.yaml:{number}"
            fix = "write ${NAME} in its place, and give the password in that environment variable"
            raise RecipeError(where, "there is a password in a URL, and the recipe is published with the model", fix)


def _dvc_item(artifacts: Artifacts) -> dict[str, Any] | None:
    """What dvc.yaml says of this recipe, at its top."""
    for variables in _yaml(artifacts.root / "dvc.yaml").get("vars") or ():
        recipes = variables.get("recipes") if isinstance(variables, Mapping) else None
        if isinstance(recipes, Mapping) and isinstance(item := recipes.get(artifacts.recipe), Mapping):
            return {str(key): str(value) for key, value in item.items()}
    return None


def _dvc_lock(artifacts: Artifacts) -> dict[str, Any] | None:
    """The stages of dvc.lock that made the weights; None where DVC did not run them, and the lock is about other work."""
    stages = _yaml(artifacts.root / "dvc.lock").get("stages") or {}
    found = {name: stages.get(f"{name}@{artifacts.recipe}") for name in REBUILT}
    if any(entry is None for entry in found.values()):
        return None
    run = f"runs/{artifacts.recipe}"
    report = artifacts.report("train")
    is_of_this_run = _md5(found["train"], "outs", f"{run}/history/{report.name}") == _md5_of(report)
    links = (("ingest", "validate", f"{run}/raw"), ("tokenize", "train", f"{run}/tokens"))
    if not is_of_this_run or any(_md5(found[a], "outs", path) != _md5(found[b], "deps", path) for a, b, path in links):
        return None
    entries = {f"{name}@{artifacts.recipe}": _plain(entry) for name, entry in found.items()}
    return {"schema": "2.0", "stages": entries}


def _md5(entry: Any, kind: str, path: str) -> str | None:
    return next((str(one.get("md5")) for one in entry.get(kind) or () if one.get("path") == path), None)


def _plain(value: Any) -> Any:
    """The same as JSON gives it back."""
    return json.loads(json.dumps(value, default=str))


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        content = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
