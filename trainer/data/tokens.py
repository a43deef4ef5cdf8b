"""Read the outputs of the tokenize stage: splits as memory-mapped Arrow, the tokenizer, the objective's state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import ObjectiveState

STATE = "objective.json"


def read_split(tokens: Path, split: str) -> Dataset:
    """Return the sequences of a split; they stay on disk until they are read."""
    from datasets import Dataset

    return Dataset.from_file(str(tokens / f"{split}.arrow"))


def read_lengths(tokens: Path, split: str) -> list[int]:
    """Return the number of tokens of each sequence of a split."""
    import pyarrow.compute as pc

    lengths: list[int] = pc.list_value_length(read_split(tokens, split).data.column("input_ids")).to_pylist()
    return lengths


def read_tokenizer(tokens: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer that made the sequences."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tokens / "tokenizer")
    return tokenizer


def read_state(tokens: Path) -> ObjectiveState:
    """Return what the objective collected from the train split."""
    state: ObjectiveState = json.loads((tokens / STATE).read_text(encoding="utf-8"))
    return state
