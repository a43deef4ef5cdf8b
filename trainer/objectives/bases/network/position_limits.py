"""How many tokens a network has positions for, and where a text is cut for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trainer.objectives.bases.lazy_imports import PreTrainedConfig, PreTrainedModel, torch, transformers

NO_LIMIT: Final = 1_000_000
"""As maximum length: no text is cut. A tokenizer without one has a `model_max_length` above this."""
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

    def reading_limit(self, own: object, *, at_least: int = 0) -> int:
        """Return where a tokenizer cuts a text whose own limit is `own`, else where positions end; `NO_LIMIT` if neither is a limit.

        `at_least`: so many tokens are not cut unless the network fails with them.
        """
        limit = int(own) if isinstance(own, int | float) and own < NO_LIMIT else self.most or NO_LIMIT
        limit = max(limit, at_least)
        return min(limit, self.table or limit)


def find_position_limits(config: PreTrainedConfig) -> PositionLimits:
    """Return how many tokens a network with this configuration can read; no weights are made. ValueError if it has none."""
    config = config.get_text_config()
    with torch.device("meta"):
        tables = list(_rows_of_position_tables(transformers.AutoModel.from_config(config, trust_remote_code=False)))
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
