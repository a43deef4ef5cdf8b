"""Figures of every sequence of a split, a batch at a time: the logits are reduced before anything is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives import Objective


def score_split(
    model: PreTrainedModel,
    sequences: Dataset,
    *,
    objective: Objective[Any],
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yield, batch by batch, the row ids (B) and the scores (B, K) of `objective.score_names`, on the CPU."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    for start in range(0, len(sequences), batch_size):
        examples = [sequences[i] for i in range(start, min(start + batch_size, len(sequences)))]
        batch = {name: value.to(device) for name, value in objective.collate(examples, tokenizer).items()}
        labels = batch.pop("labels")
        with torch.inference_mode():
            logits = model(**batch).logits
            yield [e["row_id"] for e in examples], objective.score(logits, labels).cpu()
