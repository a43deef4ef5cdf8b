"""A loss of rankings that looks at all documents of a query at once, equal to that of sentence-transformers."""

from __future__ import annotations

from typing import Final

from trainer.objectives.bases.lazy_imports import F, torch

_MU: Final = 10.0
"""The weight of NDCG-Loss2 beside that of LambdaRank, in section 7.3 of the paper."""


def lambda_loss(scores: torch.Tensor, relevance: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return LambdaLoss with NDCG-Loss2++ (Wang et al. 2018, https://doi.org/10.1145/3269206.3271784, equations 12 and 20).

    It is a mean over all pairs of documents of the same query of which one is more relevant, in bits; 0 if there are none.

    Args:
        scores: those of the model for G documents, (G,).
        relevance: their grades, from 0, (G,).
        queries: a number for the query of each document, (G,).
    """
    losses = [scores.new_zeros(0)]
    for query in torch.unique(queries):
        own = queries == query
        losses.append(_pair_losses(scores[own], relevance[own]))
    of_pairs = torch.cat(losses)
    return of_pairs.sum() / max(len(of_pairs), 1) + 0.0 * scores.sum()


def _pair_losses(scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
    """Return the losses of the pairs of N documents of one query whose first one is more relevant, (P,)."""
    scores, order = scores.sort(descending=True, stable=True)
    relevance = relevance[order].to(scores.dtype)
    ranks = torch.arange(1, len(scores) + 1, device=scores.device, dtype=scores.dtype)
    discounts = 1 / torch.log2(1 + ranks)
    best = ((2 ** relevance.sort(descending=True)[0] - 1) * discounts).sum().clamp(min=1e-10)
    gains = (2**relevance - 1) / best
    distances = (ranks[:, None] - ranks[None, :]).abs()
    of_distance = (1 / torch.log2(1 + distances.clamp(min=1)) - 1 / torch.log2(2 + distances)).abs()
    ndcg_weights = of_distance.masked_fill(distances == 0, 0.0)
    lambda_weights = (discounts[:, None] - discounts[None, :]).abs()
    weights = (_MU * ndcg_weights + lambda_weights) * (gains[:, None] - gains[None, :]).abs()
    losses = -weights * F.logsigmoid(scores[:, None] - scores[None, :]) / torch.log(torch.tensor(2.0))
    return losses[relevance[:, None] > relevance[None, :]]
