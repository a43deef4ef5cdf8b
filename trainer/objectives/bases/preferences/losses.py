"""Losses of pairs of completions, from their log-probabilities under the model and under its reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.objectives.bases.lazy_imports import F, torch
from trainer.objectives.bases.texts.padding import IGNORE_INDEX, pad_and_concatenate


def completion_logprobs(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return log-probabilities in nats of chosen and rejected completions, (2, B) float64, by one forward pass."""
    labels = pad_and_concatenate([batch["labels"], batch["rejected_labels"]], IGNORE_INDEX)  # (2B, T)
    inputs = {n: pad_and_concatenate([batch[n], batch[f"rejected_{n}"]], 0) for n in ("input_ids", "attention_mask")}
    return sequence_logprobs(model, inputs, labels).view(2, -1)


def sequence_logprobs(model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities in nats of the labels of each sequence, (B,) float64, from labels (B, T)."""
    logits = model(**inputs, use_cache=False).logits
    sums = []
    for row_logits, row_labels in zip(logits[:, :-1], labels[:, 1:], strict=True):
        has_loss = row_labels != IGNORE_INDEX  # (T-1,), one row at a time: the float copy of logits stays small
        losses = F.cross_entropy(row_logits[has_loss].float(), row_labels[has_loss], reduction="none")
        sums.append(-losses.double().sum())
    return torch.stack(sums)


def preference_losses(
    kind: str, logratios: torch.Tensor, tokens: torch.Tensor, *, beta: float, flipped: float
) -> torch.Tensor:
    """Return the loss of each pair, (B,), from log-probabilities minus those of the reference and numbers of tokens, (2, B).

    `flipped` is the share of labels that are taken to be wrong.

    sigmoid: Rafailov et al. 2023; with label smoothing its conservative form (https://ericmitchell.ai/cdpo.pdf).
    ipo: Azar et al. 2023 (https://arxiv.org/abs/2310.12036), with log-probabilities per token. hinge: Liu et al. 2023
    (https://arxiv.org/abs/2309.06657). robust: Chowdhury et al. 2024 (https://arxiv.org/abs/2403.00409). exo_pair: Ji
    et al. 2024 (https://arxiv.org/abs/2402.00856). apo_zero and apo_down: D'Oosterlinck et al. 2024
    (https://arxiv.org/abs/2408.06266).
    """
    chosen, rejected = beta * logratios  # (B,) each
    margin = chosen - rejected
    log_p, log_q = F.logsigmoid(margin), F.logsigmoid(-margin)  # that the label is right, and that it is flipped
    match kind:
        case "ipo":
            per_token = logratios / tokens
            losses = (per_token[0] - per_token[1] - 0.5 / beta) ** 2
        case "hinge":
            losses = torch.relu(1.0 - margin)
        case "robust":
            losses = (flipped * log_q - (1.0 - flipped) * log_p) / (1.0 - 2.0 * flipped)
        case "exo_pair":
            losses = log_p.exp() * (log_p - math.log1p(-flipped)) + log_q.exp() * (log_q - math.log(flipped))
        case "apo_zero":
            losses = (-chosen).sigmoid() + rejected.sigmoid()
        case "apo_down":
            losses = chosen.sigmoid() + (-margin).sigmoid()
        case _:
            losses = -(1.0 - flipped) * log_p - flipped * log_q
    return losses


def unpaired_losses(
    logratios: torch.Tensor, liked: torch.Tensor, kl: torch.Tensor | float, *, beta: float
) -> torch.Tensor:
    """Return the loss of each row, (B,), from log-probabilities minus those of the reference (B,), and whether answers are good (B,).

    Ethayarajh et al. 2024 (https://arxiv.org/abs/2402.01306, equation 7), without weights; `kl` is its reference point, in nats. With 0,
    it is APO-zero of rows that are no pairs (D'Oosterlinck et al. 2024, https://arxiv.org/abs/2408.06266).
    """
    gains = beta * (logratios - kl)
    return (-torch.where(liked, gains, -gains)).sigmoid()
