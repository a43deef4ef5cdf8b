"""Check what a recipe hands to transformers, in a separate process without torch, which takes a third of the time.

    python -m trainer.model.config_check '[{"model_type": "llama", "hidden_size": 64}, {"optimizer": "adamw"}]'

It prints a JSON list of findings, empty if the model's configuration and the names are valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

Finding: TypeAlias = tuple[tuple[str, ...], str, list[str]]
"""A key of the recipe, what is wrong with it, and the valid names."""


def start_transformers_settings_check(
    config: dict[str, Any], names: dict[str, str], valid: Path | None = None
) -> Callable[[], list[Finding]]:
    """Start checking `config`, which is empty or has a `model_type`, and `names`, the `lr_scheduler` and `optimizer` of a training.

    The returned function waits for what was found. The file `valid` keeps a hash of settings that were valid: they are not checked again.
    """
    settings = json.dumps([config, names])
    digest = _digest(settings)
    with contextlib.suppress(OSError):
        if valid and valid.read_bytes() == digest:
            return list
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
    )

    def wait() -> list[Finding]:
        out, err = process.communicate()
        if process.returncode:
            key = ("model", "config") if config else ("training",)
            return [(key, f"could not be checked: {err.strip().splitlines()[-1]}", [])]
        found: list[Finding] = [(tuple(key), what, known) for key, what, known in json.loads(out)]
        if valid and not found:
            with contextlib.suppress(OSError):
                valid.parent.mkdir(parents=True, exist_ok=True)
                valid.write_bytes(digest)
        return found

    return wait


def _digest(settings: str) -> bytes:
    """Return a hash of settings, and of all that decides whether they are valid."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for text in (settings, version("transformers"), version("huggingface_hub"), sys.version):
        found.update(f"{text}\0".encode())
    return found.hexdigest().encode()


def find_transformers_settings_errors(config: dict[str, Any], names: dict[str, str]) -> list[Finding]:
    """Return what is wrong with the arguments of `start_transformers_settings_check`."""
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    found: list[Finding] = []
    for key, kind in (("lr_scheduler", SchedulerType), ("optimizer", OptimizerNames)):
        known = [str(member.value) for member in kind]
        if key in names and names[key] not in known:
            found.append((("training", key), f"transformers has no {key} {names[key]!r}", known))
    return found + (_find_model_config_errors(config) if config else [])


def _find_model_config_errors(config: dict[str, Any]) -> list[Finding]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings, section = dict(config), ("model", "config")
    model_type = settings.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        what = f"transformers has no model type {model_type!r}"
        return [((*section, "model_type"), what, sorted(CONFIG_MAPPING))]
    cls = CONFIG_MAPPING[model_type]
    annotated = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    known = sorted(annotated | set(cls.attribute_map))
    what = f"{model_type} has no such setting"
    unknown: list[Finding] = [((*section, name), what, known) for name in settings if name not in known]
    if unknown:
        return unknown
    try:
        cls(**settings)
    except Exception as error:  # noqa: BLE001 (whatever transformers raises, the recipe has to change)
        return [(section, f"transformers rejects it: {str(error.__cause__ or error).strip().splitlines()[-1]}", [])]
    return []


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # so that transformers does not import torch
    print(json.dumps(find_transformers_settings_errors(*json.loads(sys.argv[1]))))
