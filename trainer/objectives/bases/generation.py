"""Completions of prompts: how they are sampled, what is known of them, and how likely a model finds their tokens.

A sequence's randomness is drawn from a key of its own, one number for each of its tokens. So the same model gives the
same completions whatever else is in the batch: on any number of processes and for any micro-batch, up to the rounding
of logits, which can turn a draw that lies on the border between two tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainer.objectives.bases.likelihood import pad
from trainer.objectives.bases.rollout import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.sampling import GenerationOptions


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    sampling: GenerationOptions,
    keys: Sequence[object] | None,
    on_token: Callable[[], None] = lambda: None,
) -> tuple[list[list[int]], list[bool]]:
    """One completion of each of n prompts, with its end-of-text token; and whether it ended by itself.

    Args:
        model: a causal language model; put into evaluation mode for as long as this takes.
        prompts: tokens.
        tokenizer: that of the model.
        sampling: temperature, top_k, top_p, length.
        keys: of each prompt, what its randomness depends on; None takes the likeliest token always.
        on_token: called before each token.
    """
    ends = end_tokens(model, tokenizer)
    size = sampling.generation_batch_size or len(prompts)
    completions: list[list[int]] = []
    was_training = model.training
    model.eval()
    for start in range(0, len(prompts), size):
        part = prompts[start : start + size]
        drawn = None if keys is None else _uniforms(keys[start : start + size], sampling.max_new_tokens)
        processors = _processors(sampling, drawn, start=max(map(len, part)), on_token=on_token)
        plain = GenerationConfig(
            do_sample=False,  # the processors leave one token to choose
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.pad_token_id,
        )
        completions += [_upto_end(row, ends) for row in _generated(model, part, plain, processors)]
    model.train(was_training)
    return completions, [bool(ids) and ids[-1] in ends for ids in completions]


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The tokens at which a completion ends: the tokenizer's, and those of the model's generation settings."""
    named = _base(model).generation_config.eos_token_id
    found = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return {int(token) for token in found if token is not None}


def training_batch(training_samples: Sequence[TrainingSample], pad_token_id: int) -> dict[str, torch.Tensor]:
    """A batch of B training_samples, padded to T tokens on the right.

    `input_ids`, `attention_mask` and `learned` (B, T), the last one true at completion tokens; `weights` (B,); where the
    training_samples have them, `old` and `reference` log-probabilities (B, T), 0 where nothing is learned.
    """
    sequences = [[*training_sample.prompt, *training_sample.completion] for training_sample in training_samples]
    learned = [
        [0] * len(training_sample.prompt) + [1] * len(training_sample.completion)
        for training_sample in training_samples
    ]
    batch = {
        "input_ids": pad(sequences, pad_token_id),
        "attention_mask": pad([[1] * len(sequence) for sequence in sequences], 0),
        "learned": pad(learned, 0).bool(),
        "weights": torch.tensor([training_sample.weight for training_sample in training_samples]),
    }
    for name in ("old", "reference"):
        known = [getattr(training_sample, name) for training_sample in training_samples]
        if all(values is not None for values in known):
            places = torch.zeros(batch["learned"].shape)
            batch[name] = places.masked_scatter(batch["learned"], torch.cat(known))
    return batch


def log_probabilities(
    logits: torch.Tensor, input_ids: torch.Tensor, learned: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of each token that is learned, given those before it; 0 elsewhere.

    Args:
        logits: (B, T, V).
        input_ids: (B, T).
        learned: (B, T) booleans, false at every first token.
        temperature: by which logits are divided, as at sampling.
    """
    picked = logits[:, :-1][learned[:, 1:]].float() / temperature  # (n, V)
    values = -F.cross_entropy(picked, input_ids[:, 1:][learned[:, 1:]], reduction="none")
    return torch.zeros(learned.shape, device=logits.device).masked_scatter(learned, values)


class _Drawn(LogitsProcessor):
    """Leaves one token of each sequence: the one that its number falls on when probabilities are laid side by side."""

    def __init__(self, uniforms: torch.Tensor, start: int) -> None:
        self._uniforms = uniforms
        self._start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(B, T) tokens and (B, V) scores to (B, V) scores."""
        number = self._uniforms[:, input_ids.shape[1] - self._start, None].to(scores.device)  # (B, 1)
        upto = scores.double().softmax(-1).cumsum(-1)
        token = torch.searchsorted(upto, number * upto[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


class _Told(LogitsProcessor):
    """Says that the next token is under way."""

    def __init__(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores as they are."""
        self._on_token()
        return scores


def _uniforms(keys: Sequence[object], count: int) -> torch.Tensor:
    rows = []
    for key in keys:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        rows.append(torch.rand(count, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _processors(
    sampling: GenerationOptions, uniforms: torch.Tensor | None, *, start: int, on_token: Callable[[], None]
) -> LogitsProcessorList:
    """What comes between logits and the next token; `start` is where completions begin."""
    found = LogitsProcessorList([_Told(on_token)])
    if uniforms is not None:
        found.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            found.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            found.append(TopPLogitsWarper(sampling.top_p))
        found.append(_Drawn(uniforms, start))
    return found


@torch.no_grad()
def _generated(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], plain: GenerationConfig, processors: LogitsProcessorList
) -> list[list[int]]:
    device = next(model.parameters()).device
    backwards = [list(reversed(prompt)) for prompt in prompts]
    ids = pad(backwards, int(plain.pad_token_id)).flip(1).to(device)  # padded on the left: prompts end together
    mask = pad([[1] * len(prompt) for prompt in prompts], 0).flip(1).to(device)
    with _settings(_base(model), plain) as network:
        out = network.generate(input_ids=ids, attention_mask=mask, generation_config=plain, logits_processor=processors)
    found: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return found


@contextmanager
def _settings(network: PreTrainedModel, plain: GenerationConfig) -> Iterator[Any]:
    """`network` with `plain` as its generation settings: what they leave open would be taken from its own."""
    own, network.generation_config = network.generation_config, plain
    try:
        yield network
    finally:
        network.generation_config = own


def _base(model: Any) -> Any:
    """The transformers model, in which adapters act too."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _upto_end(ids: list[int], ends: set[int]) -> list[int]:
    """The tokens up to the first that ends a text; what follows it is padding."""
    for i, token in enumerate(ids):
        if token in ends:
            return ids[: i + 1]
    return ids
