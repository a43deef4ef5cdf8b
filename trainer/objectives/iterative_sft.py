r"""Iterative fine-tuning: rounds of generating completions, selecting the good ones, and training on them.

    {"prompt": "What is 3 + 4?", "answer": "7"}

Every `steps_per_round` optimizer steps, the current model generates `num_generations` completions for each prompt of the next
steps. Those with a high reward are trained on by their next-token loss, averaged over all their tokens in a global batch. A
prompt without a selected completion is skipped, or trained on with its reference completion. A step without any selected
completion has no gradient; the optimizer's momentum still moves the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from pydantic import PositiveInt

from params import Problem
from params.defaults import ObjectiveDefaults
from params.schema import Launch, Model, Training
from trainer.objectives.bases.lazy_imports import torch
from trainer.objectives.bases.objective import ColumnKind, EncodedRow, ObjectiveState, Row
from trainer.objectives.bases.rewards.generative import GenerativeObjective
from trainer.objectives.bases.rewards.rollout import (
    GenerativeObjectiveOptions,
    Rollout,
    TrainingSample,
    completion_token_logprobs,
)
from trainer.objectives.bases.texts.continuations import tokenize_continuations
from trainer.objectives.bases.texts.tokenizing import Tokenizer, strip_repeated_special_tokens


class Options(GenerativeObjectiveOptions):
    """Keys of the recipe's `objective` section.

    `training.global_batch_size` counts prompts per optimizer step, each with its selected completions.
    """

    steps_per_round: PositiveInt = 10
    """Optimizer steps per round of completions."""
    min_reward: float | None = 0.5
    """Select completions with at least this reward; null sets no minimum."""
    keep_best: PositiveInt | None = None
    """Select at most this many of a prompt's completions, those with the highest rewards; among equals the first."""
    reference_completion_column: str | None = None
    """The column with a reference completion, for prompts without a selected completion."""


class IterativeSFT(GenerativeObjective[Options]):
    """Supervised fine-tuning on the model's own best completions."""

    options_class = Options
    defaults = ObjectiveDefaults(1e-5, epochs=1.0, global_batch_size=16, micro_batch_size=4, best_metric="reward")
    logs_rounds: ClassVar[bool] = True

    @property
    def steps_per_round(self) -> int:
        return self.options.steps_per_round

    def columns(self) -> Mapping[str, ColumnKind]:
        columns, reference = dict(super().columns()), self.options.reference_completion_column
        return columns | {reference: "string"} if reference else columns

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.options.min_reward is None and self.options.keep_best is None:
            what = "is null without keep_best: every completion would be selected, good or bad"
            yield Problem(("objective", "min_reward"), what, "set min_reward to a reward, or keep_best to a number")

    def encode(
        self, rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, state: ObjectiveState
    ) -> list[EncodedRow]:
        encoded = super().encode(rows, tokenizer, max_length, state)
        if self.options.reference_completion_column:
            texts = [str(row[self.options.reference_completion_column]) for row in rows]
            texts = strip_repeated_special_tokens(texts, tokenizer, ends=True)
            prompts = self.prompt_texts(rows, tokenizer)
            completions = tokenize_continuations(
                prompts,
                self.tokenize_prompts(prompts, tokenizer),
                texts,
                tokenizer,
                add_special_tokens=not self.options.chat,
            )
            for (examples, _), ids in zip(encoded, completions, strict=True):
                for example in examples:
                    completion = [*ids, tokenizer.eos_token_id]
                    example["reference_completion"] = completion[: self.options.max_new_tokens]
        return encoded

    def select_completions(self, rewards: list[float]) -> list[int]:
        """Return the indices of a prompt's completions to train on, from their rewards."""
        best = sorted(range(len(rewards)), key=lambda i: -rewards[i])[: self.options.keep_best]
        above = self.options.min_reward
        return sorted(i for i in best if above is None or rewards[i] >= above)

    def rollout_metrics(self, rollout: Rollout) -> dict[str, float]:
        selected = len(self.select_completions(rollout.rewards)) / len(rollout.rewards)
        return {**super().rollout_metrics(rollout), "selected": selected}

    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        selected = [rollout.completions[i] for i in self.select_completions(rollout.rewards)]
        if not selected and rollout.reference_completion:
            selected = [rollout.reference_completion]
        return [TrainingSample(rollout.prompt, completion, 1.0) for completion in selected]

    def loss_denominator(self, *, sequences: int, tokens: int) -> float:
        return tokens

    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logprobs = completion_token_logprobs(logits, batch["input_ids"], batch["completion_mask"])
        return -logprobs * batch["weights"][:, None], {}
