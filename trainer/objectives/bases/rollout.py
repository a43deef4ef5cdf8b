"""Completions that a model generated, and how they become batches to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trainer.objectives.bases.padding import pad


@dataclass
class Rollout:
    """A prompt and its G completions."""

    step: int
    """The optimizer step that trains on it, counted from 0."""
    place: int
    """Its position in the global batch of that step."""
    row: dict[str, Any]
    """What rewards get of its row: `row_id`, `prompt` and the reference columns."""
    prompt: list[int]
    """Tokens of the prompt."""
    completions: list[list[int]]
    """Tokens of each completion; the last one is an end-of-text token where the completion terminated."""
    terminated: list[bool]
    """Which completions ended with an end-of-text token, instead of at `max_new_tokens`."""
    rewards: list[float]
    """The reward of each completion."""
    reference_completion: list[int] | None = None
    """Tokens of the row's reference completion, for objectives that can train on it."""
    old_logprobs: list[torch.Tensor] | None = None
    """Log-probabilities of each completion's tokens under the model that sampled it."""
    ref_logprobs: list[torch.Tensor] | None = None
    """Log-probabilities of each completion's tokens under the reference model."""


@dataclass(frozen=True)
class TrainingSample:
    """One sequence to train on."""

    prompt: list[int]
    completion: list[int]
    weight: float
    """What the losses of its tokens are multiplied by."""
    old_logprobs: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None


def training_batch(samples: Sequence[TrainingSample], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return a batch of B samples, padded to T tokens on the right.

    `input_ids`, `attention_mask` and `completion_mask` (B, T), the last one true at completion tokens; `weights` (B,); and,
    where all samples have them, `old_logprobs` and `ref_logprobs` (B, T), 0 outside of completions.
    """
    sequences = [[*sample.prompt, *sample.completion] for sample in samples]
    completion_mask = pad([[0] * len(sample.prompt) + [1] * len(sample.completion) for sample in samples], 0).bool()
    batch = {
        "input_ids": pad(sequences, pad_token_id),
        "attention_mask": pad([[1] * len(sequence) for sequence in sequences], 0),
        "completion_mask": completion_mask,
        "weights": torch.tensor([sample.weight for sample in samples]),
    }
    for name in ("old_logprobs", "ref_logprobs"):
        values = [getattr(sample, name) for sample in samples]
        if all(logprobs is not None for logprobs in values):
            batch[name] = torch.zeros(completion_mask.shape).masked_scatter(completion_mask, torch.cat(values))
    return batch


def token_logprobs(
    logits: torch.Tensor, input_ids: torch.Tensor, completion_mask: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-probability of each completion token given those before it, (B, T); 0 elsewhere.

    From logits (B, T, V) divided by the temperature, as in sampling, tokens (B, T), and a mask that is false at every first
    token (B, T).
    """
    selected = logits[:, :-1][completion_mask[:, 1:]].float() / temperature  # (n, V)
    values = -F.cross_entropy(selected, input_ids[:, 1:][completion_mask[:, 1:]], reduction="none")
    return torch.zeros(completion_mask.shape, device=logits.device).masked_scatter(completion_mask, values)
