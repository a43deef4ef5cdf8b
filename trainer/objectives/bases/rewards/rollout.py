"""Completions: how a model samples them, and how they become batches to train on.

The randomness of each sequence comes from a key of its own, one number per token. So the same model gives the same
completions whatever else is in the batch: on any number of processes and for any micro-batch, up to the rounding of
logits, which can change a draw that falls on the border between two tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from params.sections.base import Section
from trainer.objectives.bases.lazy_imports import F, PreTrainedModel, torch, transformers
from trainer.objectives.bases.rewards.reward_models import RewardSource
from trainer.objectives.bases.texts.padding import pad_to_tensor
from trainer.objectives.bases.texts.prompt_template import Template
from trainer.objectives.bases.texts.tokenizing import Tokenizer


class GenerativeObjectiveOptions(Section):
    """Recipe keys that all generative objectives share: prompts, rewards, and how completions are sampled.

    `training.global_batch_size` and `launch.micro_batch_size` count prompts, each with all its completions.
    """

    prompt: Template = "{prompt}"
    """The prompt, with column names in braces: `Question: {question}` (trainer.objectives.bases.texts.prompt_template)."""
    chat: bool = False
    """Render the prompt as a user's message by the tokenizer's chat template."""
    reference_columns: list[str] = Field(default=["answer"])
    """Columns that rewards get, in addition to `prompt` and `row_id`."""
    rewards: list[RewardSource] = Field(default=[])
    """Functions of (completions, rows) that return one number per completion, of which trainer.rewards has some; and reward models,
    `{model: owner/name@commit}` or `{model: folder}` (trainer.objectives.bases.rewards.reward_models)."""
    reward_weights: list[float] = Field(default=[])
    """The weight of each reward in their sum; by default 1."""
    num_generations: PositiveInt = 8
    """Completions to sample per prompt."""
    max_new_tokens: PositiveInt = 64
    """Maximum length of a completion in tokens. `tokenization.max_length` limits prompts, which lose their beginning."""
    temperature: PositiveFloat = 1.0
    """Logits are divided by it; below 1, likely tokens become likelier."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest tokens only; 0 samples from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sample from the smallest set of likeliest tokens with at least this total probability."""
    generation_batch_size: PositiveInt | None = None
    """Maximum number of completions that a process samples at once, to save memory; by default all of a round."""


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


class TrainingSample(NamedTuple):
    prompt: list[int]
    completion: list[int]
    weight: float
    """What the losses of its tokens are multiplied by."""
    old_logprobs: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None


def sample_completions(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    options: GenerativeObjectiveOptions,
    keys: Sequence[object] | None,
    on_token: Callable[[], None] = lambda: None,
) -> tuple[list[list[int]], list[bool]]:
    """Return one completion for each of n prompts, with its end-of-text token, and whether it terminated.

    The randomness of each prompt depends on its key alone, and `on_token` is called before each token; without keys, decoding is
    greedy. The model is in evaluation mode while it generates.
    """
    network: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # adapters stay active
    own, was_training = network.generation_config, model.training
    ends = _end_tokens(tokenizer, own.eos_token_id)
    config = transformers.GenerationConfig(
        do_sample=False,  # `_Draw` leaves a single token to choose
        max_new_tokens=options.max_new_tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=tokenizer.pad_token_id,
    )
    size = options.generation_batch_size or len(prompts)
    completions: list[list[int]] = []
    model.eval()
    network.generation_config = config  # `generate` takes from its own what an argument leaves unset
    try:
        for start in range(0, len(prompts), size):
            batch = [list(reversed(prompt)) for prompt in prompts[start : start + size]]
            ids = pad_to_tensor(batch, int(config.pad_token_id)).flip(1)  # padded on the left
            processors = transformers.LogitsProcessorList()
            if keys is not None:
                processors += _warpers(options)
                processors.append(_Draw(keys[start : start + size], options.max_new_tokens, ids.shape[1], on_token))
            out = network.generate(  # without gradients
                input_ids=ids.to(network.device),
                attention_mask=pad_to_tensor([[1] * len(prompt) for prompt in batch], 0).flip(1).to(network.device),
                generation_config=config,
                logits_processor=processors,
            )
            for completion in out[:, ids.shape[1] :].tolist():
                end = next((i + 1 for i, token in enumerate(completion) if token in ends), None)
                completions.append(completion[:end])  # what follows is padding
    finally:
        network.generation_config = own
    model.train(was_training)
    return completions, [bool(ids) and ids[-1] in ends for ids in completions]


def _end_tokens(tokenizer: Tokenizer, configured: list[int] | int | None) -> set[int]:
    """Return the tokens that end a completion: that of the tokenizer, and those of the model's settings."""
    of_model = configured if isinstance(configured, list) else [configured]
    return {int(token) for token in (tokenizer.eos_token_id, *of_model) if token is not None}


def _warpers(options: GenerativeObjectiveOptions) -> list[Any]:
    """Return what changes the distribution that a token is drawn from."""
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(float(options.temperature))]
    if options.top_k:
        warpers.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        warpers.append(TopPLogitsWarper(options.top_p))
    return warpers


class _Draw:
    """Leaves one token per sequence: the one at whose share of the cumulative distribution the sequence's number falls."""

    def __init__(self, keys: Sequence[object], count: int, prompt_length: int, on_token: Callable[[], None]) -> None:
        digests = [hashlib.blake2b(repr(key).encode(), digest_size=7).digest() for key in keys]
        generators = [torch.Generator().manual_seed(int.from_bytes(digest, "big")) for digest in digests]
        self._uniforms = torch.stack([torch.rand(count, generator=g, dtype=torch.float64) for g in generators])
        self._prompt_length = prompt_length
        self._on_token = on_token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(B, T) tokens and (B, V) scores to (B, V) scores."""
        self._on_token()
        number = self._uniforms[:, input_ids.shape[1] - self._prompt_length, None].to(scores.device)  # (B, 1)
        cumulative = scores.double().softmax(-1).cumsum(-1)
        token = torch.searchsorted(cumulative, number * cumulative[:, -1:], right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def collate_training_samples(samples: Sequence[TrainingSample], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return a batch of B samples, padded to T tokens on the right.

    `input_ids`, `attention_mask` and `completion_mask` (B, T), the last one true at completion tokens; `weights` (B,); and,
    where all samples have them, `old_logprobs` and `ref_logprobs` (B, T), 0 outside of completions.
    """
    sequences = [[*sample.prompt, *sample.completion] for sample in samples]
    completion_mask = pad_to_tensor(
        [[0] * len(sample.prompt) + [1] * len(sample.completion) for sample in samples], 0
    ).bool()
    batch = {
        "input_ids": pad_to_tensor(sequences, pad_token_id),
        "attention_mask": pad_to_tensor([[1] * len(sequence) for sequence in sequences], 0),
        "completion_mask": completion_mask,
        "weights": torch.tensor([sample.weight for sample in samples]),
    }
    for name in ("old_logprobs", "ref_logprobs"):
        values = [getattr(sample, name) for sample in samples]
        if all(logprobs is not None for logprobs in values):
            batch[name] = torch.zeros(completion_mask.shape).masked_scatter(completion_mask, torch.cat(values))
    return batch


def completion_token_logprobs(
    logits: torch.Tensor, input_ids: torch.Tensor, completion_mask: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-probability of each completion token given those before it, (B, T); 0 elsewhere.

    From logits (B, T, V) divided by the temperature, as in sampling, tokens (B, T), and a mask that is false at every first
    token (B, T).
    """
    selected = logits[:, :-1][completion_mask[:, 1:]].float() / temperature  # (n, V)
    values = -F.cross_entropy(selected, input_ids[:, 1:][completion_mask[:, 1:]], reduction="none")
    return torch.zeros(completion_mask.shape, device=logits.device).masked_scatter(completion_mask, values)
