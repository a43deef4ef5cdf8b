"""Padding: sequences of different lengths, and their labels, as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.objectives.bases.lazy_imports import F, PreTrainedModel, torch
from trainer.objectives.bases.texts.tokenizing import MODEL_INPUTS, TOKEN_TYPES, Tokenizer, types_of_single_texts

IGNORE_INDEX = -100
"""The label of a position that has no loss; transformers and `torch.nn.functional.cross_entropy` use the same value."""


def pad_to_tensor(sequences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Return B sequences as one (B, T) tensor, filled with `value` on the right."""
    longest = max(map(len, sequences))
    return torch.tensor(
        [[*sequence, *[value] * (longest - len(sequence))] for sequence in sequences], dtype=torch.int64
    )


def token_column_names(names: Iterable[str]) -> list[str]:
    """Return which values of an example are tokens of a text: `input_ids`, and others such as `other_input_ids`."""
    return [name for name in names if name.endswith("input_ids")]


def pad_batch(examples: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    """Return the padded tokens (B, T) of each text of a batch, with a mask, and the `labels`, if there are any.

    `input_ids` has `attention_mask`, `other_input_ids` has `other_attention_mask`; so it is with `token_type_ids`, which are padded as the
    tokenizer does it. Those of texts without any are what the tokenizer gives to texts that are read alone, unless all are 0.
    """
    batch: dict[str, torch.Tensor] = {}
    for name in token_column_names(examples[0]):
        ids = [e[name] for e in examples]
        batch[name] = pad_to_tensor(ids, tokenizer.pad_token_id)
        batch[name.replace("input_ids", "attention_mask")] = pad_to_tensor([[1] * len(row) for row in ids], 0)
        of_types = name.replace("input_ids", TOKEN_TYPES)
        known = [e[of_types] for e in examples if of_types in e]
        if kinds := known or types_of_single_texts(ids, tokenizer):
            batch[of_types] = pad_to_tensor(kinds, tokenizer.pad_token_type_id)
    if "labels" in examples[0]:
        batch["labels"] = label_tensor([e["labels"] for e in examples])
    return batch


def concatenate_texts_along_batch(batch: Mapping[str, Any], model: Any) -> dict[str, torch.Tensor]:
    """Return all texts of a batch as one batch, for one forward pass: `input_ids`, `attention_mask` and types, if there are any, (M * B, T).

    The first texts of all B rows come first, then the second ones. Shorter ones are filled with the padding token of the model, which
    may be wrapped for several processes: some models find the end of a text by it. Of one without, with token 0; the mask hides both.
    """
    pad_token_id = getattr(model, "module", model).config.pad_token_id or 0
    texts = [name.removesuffix("input_ids") for name in token_column_names(batch)]
    return {
        name: pad_and_concatenate([batch[text + name] for text in texts], pad_token_id if name == "input_ids" else 0)
        for name in MODEL_INPUTS
        if texts[0] + name in batch
    }


def pad_and_concatenate(parts: Sequence[torch.Tensor], value: int) -> torch.Tensor:
    """Return tensors (B, T) of several lengths as one, filled with `value` on the right."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, longest - part.shape[1]), value=value) for part in parts])


def label_tensor(labels: Sequence[Any]) -> torch.Tensor:
    """Return the labels of B examples: int64 (B,) of classes or (B, T) of tokens, padded; float32 (B,) or (B, L) of numbers."""
    is_list = isinstance(labels[0], list)
    is_number = isinstance(next((one for row in labels for one in row), 0) if is_list else labels[0], float)
    if is_list and not is_number:
        return pad_to_tensor(labels, IGNORE_INDEX)
    return torch.tensor(labels, dtype=torch.float32 if is_number else torch.int64)


def count_labels(batch: Mapping[str, Any]) -> torch.Tensor:
    """Return how many labels of a batch have a loss: of tokens or classes; or else how many sequences there are."""
    labels = batch.get("labels")
    if labels is None or labels.is_floating_point():
        return torch.tensor(len(batch["input_ids"]))
    found: torch.Tensor = (labels != IGNORE_INDEX).sum()
    return found


def put_padding_before_text(network: PreTrainedModel) -> PreTrainedModel:
    """Let a model whose head reads the last position, as XLNet's, find the end of each text there; return the model.

    Batches are padded behind their texts. This moves the padding before them, as XLNet's own tokenizer puts it: its positions are relative.
    """
    if hasattr(network, "sequence_summary") and getattr(network.config, "summary_type", None) == "last":
        network.base_model.register_forward_pre_hook(_move_padding, with_kwargs=True)
    return network


def _move_padding(_: Any, ids: tuple[torch.Tensor, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    given = dict(zip(("input_ids",), ids, strict=False)) | named
    mask = given.get("attention_mask")  # (B, T)
    if mask is None:
        return (), given
    size = mask.shape[1]
    lengths = size - mask.flip(1).argmax(1, keepdim=True)  # (B, 1), up to the last token
    places = (torch.arange(size, device=mask.device) + lengths) % size  # (B, T)
    return (), given | {name: given[name].gather(1, places) for name in MODEL_INPUTS if given.get(name) is not None}
