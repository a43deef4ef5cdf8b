"""Learning from the model's own completions: 20 steps beside TRL's GRPOTrainer and SFTTrainer, which get ours.

Ours samples completions of several tokens, as its model changes. TRL learns from the same completions: GRPOTrainer gets them by `rollout_func`, and
computes itself the tokens of prompts, rewards, advantages, and the log-probabilities at sampling and under the reference. As both have the same weights
at each step, the completions are those of its own model, too. TRL has no trainer for rounds of choosing completions and learning the chosen ones any
more, and what such a round learns is a supervised fine-tuning: SFTTrainer gets each prompt with the completion of the highest reward.

TRL spreads the completions of a round over its steps by chance, where ours learns from those of its own prompts at each step; so TRL is kept from it.
By default TRL multiplies the divergence from the reference by the ratio of probabilities, as DeepSeek-V3.2 does it (https://arxiv.org/abs/2512.02556).
Ours is that of the objective's paper (https://arxiv.org/abs/2402.03300, equations 3 and 4), TRL's without `use_bias_correction_kl`. Where `dapo` is
a mean over tokens, TRL takes those of a whole round and ours those of a step; so there each step is a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM

from tests.support import prompts
from tests.support.reference_trainers import GLOBAL_BATCH, LLAMA, LONG, MICRO_BATCH, Case, Ours, by_name, check

COUNT, TOKENS, EPSILON = 4, 12, 0.05
"""Completions of a prompt, most tokens of each, and how far the ratio of probabilities may go."""
SHARP = {"config": {**LLAMA["config"], "initializer_range": 0.2}}
"""So that the model likes some tokens, such as the end, more than others."""


def grpo_trainer(loss_type: str, steps: int, beta: float) -> Any:
    """With so many steps a round, and a divergence from the reference that weighs `beta`."""

    def refer(ours: Ours, folder: Path) -> Any:
        from trl import GRPOConfig, GRPOTrainer

        class InOrder(GRPOTrainer):  # type: ignore[misc]
            def train(self, *args: Any, **kwargs: Any) -> Any:
                with mock.patch("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda batch: batch):
                    return super().train(*args, **kwargs)

        left = iter(ours.rollouts)

        def completions_of_ours(texts: list[str], trainer: Any) -> dict[str, Any]:
            rollouts = [next(left) for _ in texts[::COUNT]]
            assert texts == [rollout.row["prompt"] for rollout in rollouts for _ in range(COUNT)]
            completions = [ids for rollout in rollouts for ids in rollout.completions]
            return {"prompt_ids": ours.tokenizer(texts)["input_ids"], "completion_ids": completions, "logprobs": None}

        accumulated = GLOBAL_BATCH // MICRO_BATCH
        arguments = ours.arguments(
            folder,
            GRPOConfig,
            batch=MICRO_BATCH * COUNT,
            gradient_accumulation_steps=accumulated,
            steps_per_generation=accumulated * steps,
            num_generations=COUNT,
            max_completion_length=TOKENS,
            loss_type=loss_type,
            beta=beta,
            epsilon=EPSILON,
            use_bias_correction_kl=False,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            bf16=False,
        )
        return InOrder(
            model=ours.saved(folder, AutoModelForCausalLM),
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list([{name: row[name] for name in ("prompt", "answer")} for row in ours.rows]),
            processing_class=ours.tokenizer,
            rollout_func=completions_of_ours,
        )

    return refer


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return prompts.roundness(completions, [{"answer": one} for one in answer])


def sft_trainer(ours: Ours, folder: Path) -> Any:
    from trl import SFTConfig, SFTTrainer

    rows = []
    for rollout in ours.rollouts:
        prompt = ours.tokenizer(rollout.row["prompt"])["input_ids"]
        best = rollout.completions[rollout.rewards.index(max(rollout.rewards))]
        mask = [0] * len(prompt) + [1] * len(best)
        rows.append({"input_ids": prompt + best, "completion_mask": mask})
    assert len({sum(row["completion_mask"]) for row in rows}) > 1, "completions have different numbers of tokens"
    return SFTTrainer(
        model=ours.model(AutoModelForCausalLM),
        args=ours.arguments(
            folder, SFTConfig, max_length=None, completion_only_loss=True, gradient_checkpointing=False, bf16=False
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=ours.tokenizer,
    )


def questions(count: int, split: str) -> dict[str, list[str]]:
    return prompts.rows(count, len(split))


SAMPLES = {"num_generations": COUNT, "max_new_tokens": TOKENS, "rewards": [prompts.REWARD]}
ROUNDS = {"name": "grpo", **SAMPLES, "steps_per_generation": 2, "beta": 0.2, "epsilon": EPSILON}
EACH_STEP = {"name": "grpo", **SAMPLES, "loss_type": "dapo", "epsilon": EPSILON}
BEST = {"name": "iterative_sft", **SAMPLES, "min_reward": None, "keep_best": 1, "steps_per_round": 2}
CHANGES = {**LONG, "training.learning_rate": 5e-3, "training.best_metric": "reward"}
CASES = {
    "grpo": Case(ROUNDS, "llama", SHARP, grpo_trainer("grpo", 2, 0.2), CHANGES, questions),
    "dapo": Case(EACH_STEP, "llama", SHARP, grpo_trainer("dapo", 1, 0.0), CHANGES, questions),
    "iterative_sft": Case(BEST, "llama", SHARP, sft_trainer, CHANGES, questions),
}


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@by_name(CASES)
def test_twenty_steps_are_those_of_trl(case: Case, tmp_path: Path) -> None:
    ours, theirs = check(case, tmp_path)
    assert len({len(ids) for rollout in ours.rollouts for ids in rollout.completions}) > 2, "some end, others are cut"
    if "beta" in case.objective:
        for name, least in {"clip_ratio/region_mean": 0.1, "kl": 0.1}.items():
            assert max(one.get(name, 0.0) for one in theirs.state.log_history) > least, f"{name} matters"
