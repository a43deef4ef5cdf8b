"""Check a transformers configuration in a separate process without torch, which takes a third of the time.

    echo '{"model_type": "llama", "hidden_size": 64}' | python -m trainer.model.config_check

It prints a JSON list of `[key, what, known names]`, empty if the configuration is valid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start_check(config: dict[str, Any]) -> Callable[[], list[tuple[str, str, list[str]]]]:
    """Start checking `config`, which has a `model_type`; the returned function waits for the list of errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(config))
    process.stdin.close()
    process.stdin = None

    def wait() -> list[tuple[str, str, list[str]]]:
        out, err = process.communicate()
        if process.returncode:
            return [("", f"could not be checked: {err.strip().splitlines()[-1]}", [])]
        return [tuple(item) for item in json.loads(out)]

    return wait


def config_errors(config: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return the errors of `config`: the key (empty for all of it), what is wrong, and the valid names."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = dict(config)
    model_type = config.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        return [("model_type", f"transformers has no model type {model_type!r}", sorted(CONFIG_MAPPING))]
    cls = CONFIG_MAPPING[model_type]
    annotated = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    known = sorted(annotated | set(cls.attribute_map))
    unknown = [name for name in config if name not in known]
    if unknown:
        return [(name, f"{model_type} has no such setting", known) for name in unknown]
    try:
        cls(**config)
    except Exception as error:  # noqa: BLE001 (whatever transformers raises, the recipe has to change)
        return [("", f"transformers rejects it: {str(error.__cause__ or error).strip().splitlines()[-1]}", [])]
    return []


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # so that transformers does not import torch
    print(json.dumps(config_errors(json.load(sys.stdin))))
