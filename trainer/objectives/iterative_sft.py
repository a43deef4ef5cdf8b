r"""Iterative fine-tuning: rounds of writing completions, keeping the good ones, and learning them.

    {"prompt": "What is 3 + 4?", "answer": "7"}

Every `steps_per_round` optimizer steps the model as it then is writes `num_generations` completions for each prompt of
those steps. What has reward enough is learned by its next-token loss, averaged over all such tokens of a global batch; a
prompt of which nothing is kept gives nothing to learn, or its reference completion. A step for which nothing at all is
kept has no gradient; only what the optimizer carries on from earlier steps moves the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveInt

from params import Problem
from params.schema import Launch, Model, Training
from trainer.objectives.bases.objective import Example, Kind, Row, State
from trainer.objectives.bases.prompts import GenerativeObjective
from trainer.objectives.bases.sampling import GenerationOptions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from trainer.objectives.bases.rollout import Rollout, TrainingSample


class Options(GenerationOptions):
    """Keys of the recipe's `objective` section.

    `training.global_batch_size` counts prompts per optimizer step, each with what is kept of its completions.
    """

    steps_per_round: PositiveInt = 10
    """Optimizer steps of a round."""
    keep_above: float | None = 0.5
    """Keep completions with at least this reward; null asks for none."""
    keep_best: PositiveInt | None = None
    """Keep at most so many of a prompt's completions, those with the highest rewards; of equal ones the first."""
    reference_completion_column: str | None = None
    """The column with a reference completion, which is learned where none of the model's own is kept."""


class IterativeSFT(GenerativeObjective[Options]):
    """Supervised learning of the model's own best completions."""

    options_class = Options
    trainer_class = "trainer.loop.rollout_trainer:RolloutTrainer"
    logs_rounds: ClassVar[bool] = True

    @property
    def round_steps(self) -> int:
        return self.options.steps_per_round

    @property
    def needs_old_logprobs(self) -> bool:
        return False

    @property
    def needs_ref_logprobs(self) -> bool:
        return False

    def columns(self) -> Mapping[str, Kind]:
        named: dict[str, Kind] = (
            {self.options.reference_completion_column: "string"} if self.options.reference_completion_column else {}
        )
        return {**super().columns(), **named}

    def conflicts(self, *, model: Model, training: Training, launch: Launch) -> Iterable[Problem]:
        yield from super().conflicts(model=model, training=training, launch=launch)
        if self.options.keep_above is None and self.options.keep_best is None:
            what = "every completion would be kept: the model would learn what it says anyway, good or bad"
            yield Problem(("objective", "keep_above"), what, "set keep_above to a reward, or keep_best to a number")

    def encode(self, row: Row, tokenizer: PreTrainedTokenizerBase, max_length: int, state: State) -> list[Example]:
        examples = super().encode(row, tokenizer, max_length, state)
        if self.options.reference_completion_column:
            text = str(row[self.options.reference_completion_column])
            ids = [*tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], tokenizer.eos_token_id]
            examples = [example | {"reference_completion": ids[: self.options.max_new_tokens]} for example in examples]
        return examples

    def kept(self, rewards: list[float]) -> list[int]:
        """Which of a prompt's completions are kept."""
        best = sorted(range(len(rewards)), key=lambda i: -rewards[i])[: self.options.keep_best]
        above = self.options.keep_above
        return sorted(i for i in best if above is None or rewards[i] >= above)

    def figures(self, rollout: Rollout) -> dict[str, float]:
        return {**super().figures(rollout), "kept": len(self.kept(rollout.rewards)) / len(rollout.rewards)}

    def training_samples(self, rollout: Rollout) -> list[TrainingSample]:
        from trainer.objectives.bases.rollout import TrainingSample

        kept = [rollout.completions[i] for i in self.kept(rollout.rewards)]
        if not kept and rollout.reference_completion:
            kept = [rollout.reference_completion]
        return [TrainingSample(rollout.prompt, completion, 1.0) for completion in kept]

    def share(self, *, sequences: int, tokens: int) -> float:
        return tokens

    def losses(
        self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        from trainer.objectives.bases.generation import log_probabilities

        return -log_probabilities(logits, batch["input_ids"], batch["learned"]) * batch["weights"][:, None], {}
