"""What the objectives share that give each label a probability: padding, losses per label, figures per token and byte."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from params.schema import Direction, Training
from trainer.objectives.bases.objective import Example, Objective, OptionsT, Scores, State

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

IGNORED = -100
"""A label that nothing is learned from."""


class Likelihood(Objective[OptionsT]):
    """An objective whose model turns a batch into logits, which give each label a probability."""

    @abstractmethod
    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood in nats of each label of a batch, in the shape of `labels`; NaN where none counts."""

    @abstractmethod
    def score(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Reduce a batch of logits to float64 figures, one row per sequence: (B, K), or the first of them; see `judge`."""

    def measure(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor:
        written = self.written(model, batch, tokenizer)
        return self.judge(logits_of(model, batch), written, batch["labels"], tokenizer)

    def written(
        self, model: PreTrainedModel, batch: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
    ) -> torch.Tensor | None:
        """Tokens (B, T) that the model writes by itself, where figures are computed of these, too."""
        return None

    def judge(
        self,
        logits: torch.Tensor,
        written: torch.Tensor | None,
        labels: torch.Tensor,
        tokenizer: PreTrainedTokenizerBase,
    ) -> torch.Tensor:
        """All figures of a batch, (B, K): those of `score`, and of what was written."""
        return self.score(logits, labels)


class TokenLikelihood(Likelihood[OptionsT]):
    """A likelihood whose figures are means over tokens and, for the evaluate stage, over the bytes that they stand for."""

    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "perplexity": "min",
        "token_accuracy": "max",
    }
    held_out_metrics: ClassVar[Mapping[str, Direction]] = {"bits_per_byte": "min"}
    main_metric = "bits_per_byte"
    per_token = frozenset(metrics)
    score_names = ("nll", "tokens", "correct")
    example_figures = ("bytes",)

    def totals(self, scores: Scores, state: State) -> NDArray[np.float64]:
        """Negative log-likelihood in nats, tokens, correct tokens, and bytes of the text that they stand for, (N, 4)."""
        return token_totals(scores)

    def compute(self, totals: NDArray[np.float64], state: State) -> dict[str, NDArray[np.float64]]:
        return token_figures(totals)


def token_totals(scores: Scores) -> NDArray[np.float64]:
    """Negative log-likelihood, tokens, correct tokens, and bytes where they are known, (N, 4)."""
    import numpy as np

    nothing = np.zeros_like(scores["nll"])
    return np.stack([scores["nll"], scores["tokens"], scores["correct"], scores.get("bytes", nothing)], axis=1)


def token_figures(totals: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Loss in nats per token, perplexity = exp(loss), share of tokens predicted exactly; where bytes are known, bits of a byte.

    Bits per byte are the negative log-likelihood in bits over the bytes (UTF-8) of the text whose tokens were predicted. They
    compare between tokenizers, which a figure per token does not.
    """
    import numpy as np

    nll, tokens, correct, size = np.moveaxis(totals, -1, 0)
    loss = nll / tokens
    figures = {"loss": loss, "perplexity": np.exp(np.minimum(loss, 700.0)), "token_accuracy": correct / tokens}
    return figures | ({"bits_per_byte": nll / math.log(2) / size} if np.any(size) else {})


def relabelled(model: PreTrainedModel, labels: Sequence[str]) -> PreTrainedModel:
    """A classifier whose logits (..., C) stand for `labels`, whatever labels it learned, in whatever order.

    A label that it never learned gets the probability of a blind guess, 1 / C. Labels that only the model knows come after the
    others: to choose one of them is wrong.
    """
    import torch

    learned = [str(model.config.id2label[i]) for i in range(model.config.num_labels)]
    if learned == list(labels):
        return model
    only_its_own = [i for i, label in enumerate(learned) if label not in labels]
    places = [learned.index(label) if label in learned else -1 for label in labels] + only_its_own
    guess = math.log(sum(place >= 0 for place in places))  # so that it is 1 / C once the guesses are among the rest

    def rearrange(_: Any, __: Any, outputs: Any) -> Any:
        logits = outputs.logits
        blind = torch.logsumexp(logits, -1, keepdim=True) - guess  # (..., 1)
        outputs.logits = torch.cat([logits, blind], -1)[..., places]  # the place -1 is the guess
        return outputs

    model.register_forward_hook(rearrange)
    return model


def logits_of(model: PreTrainedModel, batch: Mapping[str, Any]) -> torch.Tensor:
    """The logits of a batch; the model is not asked for a loss."""
    logits: torch.Tensor = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return logits


def pad(sequences: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Sequences of different lengths as one (B, T) tensor, filled up with `value` on the right."""
    import torch

    padded = torch.full((len(sequences), max(map(len, sequences))), value)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = torch.as_tensor(sequence)
    return padded


def pad_batch(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask` and `labels` of a batch; labels are (B, T) or, one for a sequence, (B,)."""
    import torch

    ids, labels = [e["input_ids"] for e in examples], [e["labels"] for e in examples]
    return {
        "input_ids": pad(ids, tokenizer.pad_token_id),
        "attention_mask": pad([[1] * len(row) for row in ids], 0),
        "labels": pad(labels, IGNORED) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def bytes_of(labels: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """Bytes (UTF-8) of the text that labels stand for, special tokens aside."""
    text: str = tokenizer.decode([label for label in labels if label != IGNORED], skip_special_tokens=True)
    return len(text.encode())


def label_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Losses in nats of (B, T) labels by (B, T, V) logits of the same places; NaN where a label is ignored."""
    import torch
    import torch.nn.functional as F

    losses = torch.full(labels.shape, torch.nan, device=logits.device)
    for row, row_logits, row_labels in zip(losses, logits, labels, strict=True):
        seen = row_labels != IGNORED  # (T,), one row at a time: the float copy of logits stays small
        row[seen] = F.cross_entropy(row_logits[seen].float(), row_labels[seen], reduction="none")
    return losses


def label_loss(training: Training) -> Callable[..., Any]:
    """The mean loss over the labels of a global batch, smoothed if the recipe says so, as Trainer's `compute_loss_func`.

    Many models average over the micro-batch instead, which Trainer holds for a share of the global batch: the gradient
    would be as many times too large as there are micro-batches.
    """
    smoothing = float(training.arguments.get("label_smoothing_factor") or 0.0)
    return lambda outputs, labels, num_items_in_batch=None: mean_loss(
        outputs.logits, labels, num_items_in_batch, smoothing=smoothing
    )


def mean_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    items: torch.Tensor | int | None,
    *,
    smoothing: float,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy in nats, summed over a micro-batch and divided by the labels of its global batch.

    Args:
        logits: (B, C) or (B, T, C).
        labels: (B,) or (B, T), of the same places.
        items: labels in the global batch; without, those of this one.
        smoothing: share of the target distribution that is spread evenly over all classes.
        weights: (C,), how much each class counts.
    """
    import torch.nn.functional as F

    summed = F.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        weight=weights,
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return summed / ((labels != IGNORED).sum() if items is None else items)


def label_names(labels: Sequence[str]) -> dict[str, Any]:
    """Configuration keys of a head that chooses among labels."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def next_token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As `label_losses`, where the logits of a place are for the token after it; the first token has no loss."""
    import torch

    losses = torch.full(labels.shape, torch.nan, device=logits.device)
    losses[:, 1:] = label_losses(logits[:, :-1], labels[:, 1:])
    return losses


def token_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed negative log-likelihood, tokens and correct tokens of each sequence, (B, 3).

    Args:
        logits: (B, T, V).
        labels: (B, T), of the same places as the logits.
    """
    import torch

    seen = labels != IGNORED  # (B, T)
    nll = label_losses(logits, labels).double().masked_fill(~seen, 0.0).sum(1)
    correct = (logits.argmax(-1) == labels) & seen
    return torch.stack([nll, seen.sum(1).double(), correct.sum(1).double()], dim=1)
