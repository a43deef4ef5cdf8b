"""Losses of embeddings that compare all rows of a global batch, equal to those of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.objectives.bases.lazy_imports import F, torch


def multiple_negatives_loss(
    vectors: torch.Tensor, texts: torch.Tensor, *, scale: float, both_directions: bool
) -> torch.Tensor:
    """Return the multiple negatives ranking loss of G rows, in nats (Henderson et al. 2017, https://arxiv.org/abs/1705.00652, section 4.4).

    Each anchor has to tell its positive from all other positives and all negatives, by the cosine times `scale`. With
    `both_directions`, each positive has to tell its anchor from the others, too, and the loss is the mean of the two. What is a
    positive of the same anchor in another row is no negative.

    Args:
        vectors: anchor, positive and negatives of each row, (G, 2 + N, D).
        texts: a number for each text, (G, 2 + N): the same one for the same text, and a negative one for a row's missing text.
        scale: 1 / temperature.
        both_directions: see above.
    """
    anchors, others = F.normalize(vectors[:, 0], dim=-1), F.normalize(vectors[:, 1:], dim=-1)
    cosines = anchors @ others.transpose(0, 1).flatten(0, 1).T  # (G, G * (1 + N)), all positives first
    own = torch.arange(len(vectors), device=vectors.device)
    is_other = ~_is_positive(texts) & (texts[:, 1:].T.flatten() >= 0)
    is_other[own, own] = True
    logits = (cosines * scale).masked_fill(~is_other, float("-inf"))
    loss = F.cross_entropy(logits, own)
    return (loss + F.cross_entropy(logits[:, : len(own)].T, own)) / 2 if both_directions else loss


def _is_positive(texts: torch.Tensor) -> torch.Tensor:
    """Return whether each positive or negative is a positive of each anchor, in whichever row, (G, G * (1 + N))."""
    anchors = torch.unique(texts[:, 0], return_inverse=True)[1]
    others = torch.unique(texts[:, 1:].T.flatten(), return_inverse=True)[1]
    pairs = torch.zeros(int(anchors.max()) + 1, int(others.max()) + 1, dtype=torch.bool, device=texts.device)
    pairs[anchors, others[: len(texts)]] = True
    return pairs[anchors][:, others]


def cosent_loss(vectors: torch.Tensor, scores: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return the CoSENT loss of G pairs (Huang et al. 2024, https://doi.org/10.1109/TASLP.2024.3402087, equation 6).

    It is log(1 + the sum of exp(scale * (cos_i - cos_j)) over all i, j where pair i has a lower score than pair j).

    Args:
        vectors: of both texts, (G, 2, D).
        scores: how alike the texts are, (G,).
        scale: 1 / temperature.
    """
    cosines = F.cosine_similarity(vectors[:, 0], vectors[:, 1]) * scale
    differences = cosines[:, None] - cosines[None, :]
    wrong = differences[scores[:, None] < scores[None, :]]
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)


def supervised_contrastive_loss(vectors: torch.Tensor, classes: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Return the supervised contrastive loss of G texts, in nats (Khosla et al. 2020, https://arxiv.org/abs/2004.11362, equation 2).

    Each text has to tell the texts of its class from all others; one that is alone in its class in this batch does not count.

    Args:
        vectors: (G, D).
        classes: a number for the class of each text, (G,).
        scale: 1 / temperature.
    """
    normal = F.normalize(vectors, dim=-1)
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    logs = (normal @ normal.T * scale).masked_fill(itself, float("-inf")).log_softmax(1)
    alike = (classes[:, None] == classes[None, :]) & ~itself
    counts = alike.sum(1)
    of_rows = logs.masked_fill(~alike, 0.0).sum(1) / counts.clamp(min=1)
    return -of_rows.sum() / (counts > 0).sum().clamp(min=1)


def over_dimensions(vectors: torch.Tensor, dimensions: Sequence[int]) -> list[torch.Tensor]:
    """Return the first so many numbers of the vectors, (..., d), for each of some dimensions; all of them if none is given.

    A loss summed over them is that of Kusupati et al. 2022 (https://arxiv.org/abs/2205.13147, equation 1).
    """
    return [vectors[..., :size] for size in dimensions] or [vectors]
