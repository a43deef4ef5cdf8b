r"""Group relative policy optimisation: learn from what sets a completion apart from the others of the same prompt.

    {"prompt": "What is 3 + 4?", "answer": "7"}

Shao et al. 2024 (DeepSeekMath, https://arxiv.org/abs/2402.03300). Of G completions of a prompt with rewards r, each
token of completion i has the advantage (section 4.1.2; a small constant keeps equal rewards finite)

    A_i = (r_i - mean(r)) / (std(r) + 1e-4)

and with the ratio of its probability now to that at sampling, p = exp(log pi - log pi_old), the loss (equation 3)

    -min(p A_i, clip(p, 1 - epsilon, 1 + epsilon) A_i) + beta KL

where KL is estimated by pi_ref / pi - log(pi_ref / pi) - 1 (equation 4) from the start model, which is what training began
with, or the model without its adapters. One round of completions serves `steps_per_generation` optimizer steps, each with
prompts of its own; every prompt is learned from once. Probabilities are those at the temperature of sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeFloat, PositiveInt

from params import Problem
from params.schema import Fraction, Launch, Model, Training
from trainer.objectives.bases.prompts import GenerativeObjective
from trainer.objectives.bases.sampling import GenerationOptions

if TYPE_CHECKING:
    import torch

    from trainer.objectives.bases.rollout import Rollout, TrainingSample

_EPSILON = 1e-4


class Options(GenerationOptions):
    """Keys of the recipe's `objective` section.

    `training.global_batch_size` counts prompts per optimizer step, each with `num_generations` completions.
    """

    steps_per_generation: PositiveInt = 1
    """Optimizer steps that one round of completions serves: generation is quicker in large batches, and the completions
    of later steps come from a model that is a few steps old."""
    beta: NonNegativeFloat = 0.0
    """Weight of the divergence from the start model; 0 does without it, and without its copy in memory."""
    epsilon: Fraction = 0.2
    """How far the ratio of probabilities may fall below 1, and rise above it, before it counts no further."""
    epsilon_high: NonNegativeFloat | None = None
    """How far it may rise, if not as far as it may fall (Yu et al. 2025, https://arxiv.org/abs/2503.14476)."""
    scale_rewards: Literal["group", "none"] = "group"
    """Divide by the standard deviation of a prompt's rewards, or do not (Liu et al. 2025, https://arxiv.org/abs/2503.20783)."""
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    """What the loss is a mean over: tokens of a completion, then completions (`grpo`); all tokens of the global batch
    (`dapo`); or completions of `max_new_tokens` each, however long they are (`dr_grpo`)."""


class GRPO(GenerativeObjective[Options]):
    """Reinforcement learning from rewards that a function gives."""

    options_class = Options
    trainer_class = "trainer.loop.rollout_trainer:RolloutTrainer"

    @property
    def round_steps(self) -> int:
        return self.options.steps_per_generation

    @property
    def needs_old_logprobs(self) -> bool:
        return self.round_steps > 1  # else the model that learns is the one that sampled

    @property
    def needs_ref_logprobs(self) -> bool:
        return self.options.beta > 0

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.options.num_generations < 2:
            what = "a completion that has no other beside it is neither better nor worse: every advantage would be 0"
            yield Problem(("objective", "num_generations"), what, "use 2 or more; 8 is usual")

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """(..., G) rewards of prompts' completions to advantages."""
        apart = rewards - rewards.mean(-1, keepdim=True)
        if self.options.scale_rewards == "none":
            return apart
        return apart / (rewards.std(-1, keepdim=True) + _EPSILON)

    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        import torch

        from trainer.objectives.bases.rollout import TrainingSample

        advantages = self.advantages(torch.tensor(rollout.rewards)).tolist()
        return [
            TrainingSample(
                rollout.prompt,
                completion,
                advantages[i],
                old=rollout.old[i] if rollout.old else None,
                reference=rollout.reference[i] if rollout.reference else None,
            )
            for i, completion in enumerate(rollout.completions)
        ]

    def share(self, *, sequences: int, tokens: int) -> float:
        return {"grpo": sequences, "dapo": tokens, "dr_grpo": sequences * self.options.max_new_tokens}[
            self.options.loss_type
        ]

    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        from trainer.objectives.bases.generation import log_probabilities

        learned = batch["learned"]
        now = log_probabilities(logits, batch["input_ids"], learned, self.options.temperature)  # (B, T)
        losses, figures = self.token_losses(now, batch)
        if self.options.loss_type == "grpo":
            losses = losses / learned.sum(1, keepdim=True)
        return losses * learned, {name: figure * learned for name, figure in figures.items()}

    def token_losses(
        self, now: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """(B, T) log-probabilities to the loss of each token, whether it is clipped, and its divergence, (B, T)."""
        import torch

        options = self.options
        low, high = 1 - options.epsilon, 1 + (options.epsilon if options.epsilon_high is None else options.epsilon_high)
        advantages = batch["weights"][:, None]
        ratio = torch.exp(now - batch.get("old", now.detach()))
        losses = -torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
        clipped = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
        figures = {"clipped": clipped.float()}
        if options.beta:
            apart = batch["reference"] - now
            divergence = torch.exp(apart) - apart - 1
            losses = losses + options.beta * divergence
            figures["kl"] = divergence.detach()
        return losses, figures
