"""How many tokens a model reads: what its network has positions for, and where its tokenizer cuts a text.

The limit of a training (`tokenization.max_length`) is not one of them: it only saves memory and time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainer.model import adapters
from trainer.runtime.model_files import check_safe_to_load

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NO_LIMIT: Final = 1_000_000
"""As maximum length: no text is cut. A tokenizer without one has a `model_max_length` above this."""
_TOKENIZER: Final = "tokenizer_config.json"
_POSITIONS: Final = ("max_position_embeddings", "max_seq_len")


class PositionLimits(NamedTuple):
    """How many tokens a network can read."""

    table: int | None
    """What its tables of positions have rows for: with one more token it fails. None if it has none."""
    stated: int | None
    """What its configuration says; a network with relative positions computes on."""

    @property
    def most(self) -> int | None:
        """The limit that a model is used with; None if there is none."""
        return self.table or self.stated


def find_position_limits(config: PreTrainedConfig) -> PositionLimits:
    """Return how many tokens a network with this configuration can read; no weights are made. ValueError if it has none."""
    import torch
    from transformers import AutoModel

    config = config.get_text_config()
    with torch.device("meta"):
        tables = list(_rows_of_position_tables(AutoModel.from_config(config, trust_remote_code=False)))
    stated = [found for name in _POSITIONS if isinstance(found := getattr(config, name, None), int) and found > 0]
    return PositionLimits(min(tables, default=None), min(stated, default=None))


def _rows_of_position_tables(network: Any) -> Iterator[int]:
    from torch.nn import Embedding, Module

    if getattr(network.config, "is_encoder_decoder", False):  # a decoder may have fewer positions, as that of LED
        reader = network.get_encoder()
        network = reader if isinstance(reader, Module) else network
    for name, layer in network.named_modules():
        own = name.rpartition(".")[2]
        if isinstance(layer, Embedding) and ("position" in own or own == "wpe"):
            # OPT and BART count positions from 2, RoBERTa and its kin from behind the padding token
            first = getattr(layer, "offset", 0) or (0 if layer.padding_idx is None else layer.padding_idx + 1)
            yield int(layer.num_embeddings) - int(first)


def find_position_table(network: PreTrainedModel) -> int | None:
    """Return for how many tokens a network has rows in its tables of positions; None if it has none."""
    return min(_rows_of_position_tables(network), default=None)


def find_position_limits_in(folder: Path) -> PositionLimits:
    """Return the same of the model in a folder, or of an adapter's base model; OSError or ValueError if it cannot be read."""
    from transformers import AutoConfig

    path, revision = str(folder), None
    if adapters.is_adapter_folder(folder) and not (folder / "config.json").exists():
        base = adapters.BaseModelReference.of(folder)
        path, revision = base.name, base.revision
    revision = check_safe_to_load(path, revision, weights=False)
    return find_position_limits(AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=False))


def find_reading_limit(folder: Path, *, at_least: int = 0, is_new: bool = False) -> int:
    """Return where the tokenizer in a model's folder cuts a text: its own limit, or else the network's; `NO_LIMIT` if neither has one.

    `at_least`: so many tokens the model has learned from, which are not cut unless the network fails with them. `is_new`: the tokenizer is
    that of another model.
    """
    positions = find_position_limits_in(folder)
    own = json.loads((folder / _TOKENIZER).read_bytes()).get("model_max_length")
    has_own = not is_new and isinstance(own, int | float) and own < NO_LIMIT
    limit = max(int(own) if has_own else positions.most or NO_LIMIT, at_least)
    return min(limit, positions.table or limit)


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
