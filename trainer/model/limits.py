"""How many tokens a model reads: what its network has positions for, and where its tokenizer cuts a text.

The limit of a training (`tokenization.max_length`) is not one of them: it only saves memory and time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from trainer.model import adapters
from trainer.objectives.bases.lazy_imports import transformers
from trainer.objectives.bases.network.position_limits import NO_LIMIT, PositionLimits, find_position_limits
from trainer.runtime.library_errors import panics_as_errors
from trainer.runtime.model_files import check_safe_to_load

_TOKENIZER: Final = "tokenizer_config.json"


def find_position_limits_in(folder: Path) -> PositionLimits:
    """Return the same of the model in a folder, or of an adapter's base model; OSError or ValueError if it cannot be read."""
    path, revision = str(folder), None
    if adapters.is_adapter_folder(folder) and not (folder / "config.json").exists():
        base = adapters.BaseModelReference.of(folder)
        path, revision = base.name, base.revision
    revision = check_safe_to_load(path, revision, weights=False)
    with panics_as_errors():
        return find_position_limits(
            transformers.AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=False)
        )


def find_reading_limit(folder: Path, *, at_least: int = 0, is_new: bool = False) -> int:
    """Return where the tokenizer in a model's folder cuts a text: its own limit, or else the network's; `NO_LIMIT` if neither has one.

    `at_least`: so many tokens the model has learned from, which are not cut unless the network fails with them. `is_new`: the tokenizer is
    that of another model.
    """
    positions = find_position_limits_in(folder)
    own = None if is_new else json.loads((folder / _TOKENIZER).read_bytes()).get("model_max_length")
    return positions.reading_limit(own, at_least=at_least)


def window_overlap(limit: int) -> int:
    """Return how many tokens two windows of a long text share."""
    return min(limit // 4, 128)


def write_reading_limit(folder: Path, limit: int) -> None:
    """Let the tokenizer in a folder cut texts at a limit, if it is one."""
    path = folder / _TOKENIZER
    config = json.loads(path.read_bytes())
    if limit < NO_LIMIT and config.get("model_max_length") != limit:
        path.write_text(
            json.dumps(config | {"model_max_length": limit}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
