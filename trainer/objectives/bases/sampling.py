"""Sampling of completions.

The randomness of each sequence comes from a key of its own, one number per token. So the same model gives the same
completions whatever else is in the batch: on any number of processes and for any micro-batch, up to the rounding of
logits, which can change a draw that falls on the border between two tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainer.objectives.bases.padding import pad

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.generation_options import GenerationOptions


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokenizer: PreTrainedTokenizerBase,
    options: GenerationOptions,
    keys: Sequence[object] | None,
    on_token: Callable[[], None] = lambda: None,
) -> tuple[list[list[int]], list[bool]]:
    """Return one completion for each of n prompts, with its end-of-text token, and whether it terminated.

    The randomness of each prompt depends on its key alone; without keys, decoding is greedy. `on_token` is called before
    each token. The model is in evaluation mode while it generates.
    """
    ends = end_tokens(model, tokenizer)
    size = options.generation_batch_size or len(prompts)
    completions: list[list[int]] = []
    was_training = model.training
    model.eval()
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        uniforms = None if keys is None else _uniforms(keys[start : start + size], options.max_new_tokens)
        processors = _processors(options, uniforms, prompt_length=max(map(len, batch)), on_token=on_token)
        config = GenerationConfig(
            do_sample=False,  # the processors leave a single token to choose
            max_new_tokens=options.max_new_tokens,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.pad_token_id,
        )
        completions += [_up_to_end(ids, ends) for ids in _generate(model, batch, config, processors)]
    model.train(was_training)
    return completions, [bool(ids) and ids[-1] in ends for ids in completions]


def decode_completions(completions: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return completions as text, without special tokens."""
    texts: list[str] = tokenizer.batch_decode([list(ids) for ids in completions], skip_special_tokens=True)
    return texts


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the tokens that end a completion: the tokenizer's, and those of the model's generation config."""
    configured = _base_model(model).generation_config.eos_token_id
    found = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])}
    return {int(token) for token in found if token is not None}


class _InverseTransform(LogitsProcessor):
    """Leaves one token per sequence: the one at whose share of the cumulative distribution the sequence's number falls."""

    def __init__(self, uniforms: torch.Tensor, prompt_length: int) -> None:
        self._uniforms = uniforms
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(B, T) tokens and (B, V) scores to (B, V) scores."""
        number = self._uniforms[:, input_ids.shape[1] - self._prompt_length, None].to(scores.device)  # (B, 1)
        cumulative = scores.double().softmax(-1).cumsum(-1)
        token = torch.searchsorted(cumulative, number * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


class _TokenCallback(LogitsProcessor):
    """Calls a function before each token."""

    def __init__(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores unchanged."""
        self._on_token()
        return scores


def _uniforms(keys: Sequence[object], count: int) -> torch.Tensor:
    """Return `count` numbers in [0, 1) for each key."""
    rows = []
    for key in keys:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        rows.append(torch.rand(count, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _processors(
    options: GenerationOptions, uniforms: torch.Tensor | None, *, prompt_length: int, on_token: Callable[[], None]
) -> LogitsProcessorList:
    processors = LogitsProcessorList([_TokenCallback(on_token)])
    if uniforms is not None:
        processors.append(TemperatureLogitsWarper(float(options.temperature)))
        if options.top_k:
            processors.append(TopKLogitsWarper(options.top_k))
        if options.top_p < 1.0:
            processors.append(TopPLogitsWarper(options.top_p))
        processors.append(_InverseTransform(uniforms, prompt_length))
    return processors


@torch.no_grad()
def _generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig, processors: LogitsProcessorList
) -> list[list[int]]:
    device = next(model.parameters()).device
    reversed_prompts = [list(reversed(prompt)) for prompt in prompts]
    ids = pad(reversed_prompts, int(config.pad_token_id)).flip(1).to(device)  # padded on the left
    mask = pad([[1] * len(prompt) for prompt in prompts], 0).flip(1).to(device)
    with _generation_config(_base_model(model), config) as network:
        out = network.generate(
            input_ids=ids, attention_mask=mask, generation_config=config, logits_processor=processors
        )
    completions: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return completions


@contextmanager
def _generation_config(network: PreTrainedModel, config: GenerationConfig) -> Iterator[Any]:
    """Replace the network's own generation config, from which `generate` would take what `config` leaves unset."""
    own, network.generation_config = network.generation_config, config
    try:
        yield network
    finally:
        network.generation_config = own


def _base_model(model: Any) -> Any:
    """Return the transformers model inside a peft model; its adapters stay active."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _up_to_end(ids: list[int], ends: set[int]) -> list[int]:
    """Return the tokens up to the first end-of-text token; what follows is padding."""
    for i, token in enumerate(ids):
        if token in ends:
            return ids[: i + 1]
    return ids
