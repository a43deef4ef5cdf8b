r"""Group relative policy optimization: learn from how a completion's reward differs from others of the same prompt.

    {"prompt": "What is 3 + 4?", "answer": "7"}

Shao et al. 2024 (DeepSeekMath, https://arxiv.org/abs/2402.03300). For G completions of a prompt with rewards r, each
token of completion i has the advantage (section 4.1.2; the constant keeps it finite where all rewards are equal)

    A_i = (r_i - mean(r)) / (std(r) + 1e-4)

and, with p = exp(log pi - log pi_old), the ratio of its probability now to that at sampling, the loss (equation 3)

    -min(p A_i, clip(p, 1 - epsilon, 1 + epsilon) A_i) + beta KL

where KL is estimated by pi_ref / pi - log(pi_ref / pi) - 1 (equation 4). DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556) multiplies
it by p, and TRL does so by default (`use_bias_correction_kl`); here it is as in the first paper. The reference is the model as it was
before training, or with adapters the model without them. One round of completions serves `steps_per_generation` optimizer steps, each with
its own prompts; every completion is trained on once. Probabilities are those at the sampling temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from params import Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from params.sections.base import Fraction
from trainer.objectives.bases.lazy_imports import torch
from trainer.objectives.bases.rewards.generative import GenerativeObjective
from trainer.objectives.bases.rewards.rollout import (
    GenerativeObjectiveOptions,
    Rollout,
    TrainingSample,
    completion_token_logprobs,
)

_EPSILON = 1e-4


class Options(GenerativeObjectiveOptions):
    """Keys of the recipe's `objective` section.

    `training.global_batch_size` counts prompts per optimizer step, each with `num_generations` completions.
    """

    steps_per_generation: PositiveInt = 1
    """Optimizer steps per round of completions. Generation is faster in large batches, but the completions of later
    steps come from a model that is a few steps old."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the reference model; 0 needs no reference model in memory."""
    epsilon: Fraction = 0.2
    """The ratio of probabilities is clipped to 1 - epsilon and 1 + epsilon."""
    epsilon_high: NonNegativeFloat | None = None
    """The upper limit is 1 + epsilon_high, by default 1 + epsilon (Yu et al. 2025, https://arxiv.org/abs/2503.14476)."""
    scale_rewards: Literal["group", "none"] = "group"
    """Whether to divide by the standard deviation of a prompt's rewards (Liu et al. 2025, https://arxiv.org/abs/2503.20783)."""
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    """What the loss is a mean over: the tokens of a completion, then completions (`grpo`); all tokens of the global batch
    (`dapo`); or `max_new_tokens` tokens per completion, whatever its length (`dr_grpo`)."""


class GRPO(GenerativeObjective[Options]):
    """Reinforcement learning from rewards that functions compute."""

    options_class = Options
    defaults = ObjectiveDefaults(1e-6, epochs=1.0, global_batch_size=16, micro_batch_size=4, best_metric="reward")

    @property
    def steps_per_round(self) -> int:
        return self.options.steps_per_generation

    @property
    def needs_old_logprobs(self) -> bool:
        return self.steps_per_round > 1  # otherwise the model has not changed since it sampled

    @property
    def needs_ref_logprobs(self) -> bool:
        return self.options.beta > 0

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.options.num_generations < 2:
            what = "is 1: a single completion has nothing to compare with, so every advantage would be 0"
            yield Problem(("objective", "num_generations"), what, "use 2 or more; 8 is usual")

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return the advantages (..., G) of each prompt's completions from their rewards (..., G)."""
        centered = rewards - rewards.mean(-1, keepdim=True)
        if self.options.scale_rewards == "none":
            return centered
        return centered / (rewards.std(-1, keepdim=True) + _EPSILON)

    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        advantages = self.advantages(torch.tensor(rollout.rewards)).tolist()
        unknown = [None] * len(advantages)
        old, ref = rollout.old_logprobs or unknown, rollout.ref_logprobs or unknown
        samples = zip(rollout.completions, advantages, old, ref, strict=True)
        return [TrainingSample(rollout.prompt, *sample) for sample in samples]

    def loss_denominator(self, *, sequences: int, tokens: int) -> float:
        by_type = {"grpo": sequences, "dapo": tokens, "dr_grpo": sequences * self.options.max_new_tokens}
        return by_type[self.options.loss_type]

    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        mask = batch["completion_mask"]
        logprobs = completion_token_logprobs(logits, batch["input_ids"], mask, self.options.temperature)  # (B, T)
        losses, metrics = self.token_losses(logprobs, batch)
        if self.options.loss_type == "grpo":
            losses = losses / mask.sum(1, keepdim=True)
        return losses * mask, {name: values * mask for name, values in metrics.items()}

    def token_losses(
        self, logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of each token from its log-probability, whether it is clipped, and its KL, each (B, T)."""
        options = self.options
        low, high = 1 - options.epsilon, 1 + (options.epsilon if options.epsilon_high is None else options.epsilon_high)
        advantages = batch["weights"][:, None]
        ratio = torch.exp(logprobs - batch.get("old_logprobs", logprobs.detach()))
        losses = -torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
        clipped = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
        metrics = {"clip_ratio": clipped.float()}
        if options.beta:
            logratio = batch["ref_logprobs"] - logprobs
            kl = torch.exp(logratio) - logratio - 1
            losses = losses + options.beta * kl
            metrics["kl"] = kl.detach()
        return losses, metrics
