"""What a model generated for a prompt, and what the training makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Rollout:
    """A prompt with its completions, and what is known of them."""

    step: int
    """The optimizer step that learns from it, counted from 0."""
    place: int
    """Its place in the global batch of that step."""
    row: dict[str, Any]
    """What rewards see."""
    prompt: list[int]
    completions: list[list[int]]
    """Tokens; where a completion ended by itself, the last one is an end-of-text token."""
    terminated: list[bool]
    """Which completions ended by themselves."""
    rewards: list[float]
    reference_completion: list[int] | None = None
    """Tokens of the reference completion, for an objective that may learn it."""
    old: list[torch.Tensor] | None = None
    """Log-probabilities of each completion's tokens under the model that sampled it."""
    reference: list[torch.Tensor] | None = None
    """The same under the reference model."""


@dataclass(frozen=True)
class TrainingSample:
    """One sequence to learn from."""

    prompt: list[int]
    completion: list[int]
    weight: float
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None
