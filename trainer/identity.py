"""What decides the weights of a training: keys of the recipe, data, and code.

`run_identity` hashes all of it. The key of a run, which names the folder of its checkpoints, is a hash of the identity, so
only a run that gives the same weights resumes from them. The train stage in dvc.yaml depends on the same code, and a contract
test checks that `DECIDING_CODE` and `HARMLESS_CODE` cover everything that `trainer.worker` imports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from params.foundation.hashing import file_sha256
from params.importing import source_files
from params.schema import Metrics, Model, ObjectiveChoice, Training

_PROJECT = Path(__file__).parents[1]

DECIDING_CODE = (
    "trainer/build.py",
    "trainer/checkpoints",
    "trainer/data",
    "trainer/job.py",
    "trainer/loop",
    "trainer/model",
    "trainer/objectives/__init__.py",
    "trainer/objectives/bases",
    "trainer/objectives/{objective}.py",
    "trainer/rewards.py",
    "trainer/worker.py",
)
"""Files and folders whose code decides the weights, in addition to the code that the recipe names."""

HARMLESS_CODE = {
    "params": "reads the recipe, whose values are part of the identity",
    "trainer/__init__.py": "only offers names to scripts",
    "trainer/conflicts.py": "only refuses recipes",
    "trainer/identity.py": "computes the identity; a change that matters gives another one",
    "trainer/iterative": "is a Trainer for scripts; the worker does not use it",
    "trainer/reporting": "only logs and records",
    "trainer/runtime": "starts, watches and stops processes",
}
"""Everything else that the worker imports, and why a change there leaves the weights as they are."""

_HARMLESS_KEYS = {"logging_steps", "keep_checkpoints", "save_steps", "save_minutes", "resume"}
"""Keys of `training` that change what is logged and kept, not what is learned."""
_HARMLESS_ARGUMENTS = {"run_name", "project", "skip_memory_metrics", "debug"}
"""The same for `training.arguments`."""
_HARMLESS_PREFIXES = (
    "logging_",
    "log_",
    "dataloader_",
    "report_to",
    "trackio_",
    "ddp_timeout",
    "eval_accumulation_steps",
)


def run_identity(
    *,
    seed: int,
    objective: ObjectiveChoice,
    model: Model,
    training: Training,
    metrics: Metrics | None = None,
    tokens: Path,
) -> dict[str, str]:
    """Return everything that decides the weights, by name; two trainings with equal identities give equal weights.

    It holds the recipe's keys, and SHA-256 hashes of the tokens, the tokenizer, a local base model, `DECIDING_CODE` and the
    code that the recipe names. The number of processes, the micro-batch, and what is logged or kept are not part of it.
    """
    keys = deciding_keys(seed=seed, objective=objective, model=model, training=training, metrics=metrics)
    data = (p for p in tokens.rglob("*") if p.is_file() and p.suffix in {".arrow", ".json"})
    files = {f"tokens {p.relative_to(tokens)}": p for p in data}
    if model.pretrained and Path(model.pretrained).is_dir():
        weights = (p for p in Path(model.pretrained).iterdir() if p.suffix in {".safetensors", ".json"})
        files |= {f"base model {p.name}": p for p in weights}
    hashes = {name: file_sha256(path) for name, path in files.items()}
    return dict(sorted((dict(_flat(keys)) | hashes | code_hashes(keys)).items()))


def deciding_keys(
    *, seed: int, objective: ObjectiveChoice, model: Model, training: Training, metrics: Metrics | None
) -> dict[str, Any]:
    """Return the keys of the recipe that decide the weights, as JSON values."""
    keys: dict[str, Any] = {
        "seed": seed,
        "objective": objective.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "training": training.model_dump(mode="json", exclude=_HARMLESS_KEYS),
        "metrics": metrics.model_dump(mode="json") if metrics else None,
    }
    arguments: dict[str, Any] = keys["training"]["arguments"]
    keys["training"]["arguments"] = {
        name: value
        for name, value in arguments.items()
        if name not in _HARMLESS_ARGUMENTS and not name.startswith(_HARMLESS_PREFIXES)
    }
    return keys


def code_hashes(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 hashes of `DECIDING_CODE` and of the code that `keys` name, see `deciding_keys`."""
    files = {
        f"code {path.relative_to(_PROJECT).as_posix()}": path for path in deciding_files(keys["objective"]["name"])
    }
    files |= {f"code {name}": path for name, path in source_files(keys)}
    return {name: file_sha256(path) for name, path in files.items()}


def run_key(identity: Mapping[str, str]) -> str:
    """Return the 16 hexadecimal digits that name a run's folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def deciding_files(objective: str) -> list[Path]:
    """Return the Python files of `DECIDING_CODE` for a recipe with this objective."""
    places = [_PROJECT / place.format(objective=objective) for place in DECIDING_CODE]
    return [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, sort_keys=True)
