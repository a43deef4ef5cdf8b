"""Better and worse answers: 20 steps beside TRL's RewardTrainer, DPOTrainer and KTOTrainer, whose reference is the model at the start.

The KL term of KTO's loss is estimated from each prompt with the answer of the row before it in the batch. Ours is that of the global batch, TRL's that
of one device; so there the device's batch is the global one, and nothing accumulates. By default ours weighs good and bad answers by how many the train
split has, within the bounds of the paper that TRL's documentation tells its users to set (https://arxiv.org/abs/2402.01306, equation 8); so TRL
gets that weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.support import preferences
from tests.support.reference_trainers import GLOBAL_BATCH, LLAMA, LONG, STEPS, Case, Ours, by_name, check

PLAIN = {"max_length": None, "gradient_checkpointing": False, "bf16": False}


def reward_trainer(ours: Ours, folder: Path) -> Any:
    from trl import RewardConfig, RewardTrainer

    def tokens(row: dict[str, Any], answer: str) -> list[int]:
        return [*ours.tokenizer(f"{row['text']} =>{row[answer]}")["input_ids"], ours.tokenizer.eos_token_id]

    rows = [{"chosen_ids": tokens(row, "label"), "rejected_ids": tokens(row, "text")} for row in ours.rows]
    return RewardTrainer(
        model=ours.model(AutoModelForSequenceClassification),
        args=ours.arguments(folder, RewardConfig, **PLAIN),
        train_dataset=Dataset.from_list(rows),
        processing_class=ours.tokenizer,
    )


def dpo_trainer(ours: Ours, folder: Path) -> Any:
    from trl import DPOConfig, DPOTrainer

    rows = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in ours.rows]
    return DPOTrainer(
        model=ours.model(AutoModelForCausalLM),
        ref_model=ours.model(AutoModelForCausalLM),
        args=ours.arguments(folder, DPOConfig, **PLAIN),
        train_dataset=Dataset.from_list(rows),
        processing_class=ours.tokenizer,
    )


def kto_trainer(ours: Ours, folder: Path) -> Any:
    from trl import KTOConfig, KTOTrainer

    liked = sum(row["liked"] for row in ours.train_rows)
    others = len(ours.train_rows) - liked
    assert liked > others
    rows = [{"prompt": row["prompt"], "completion": row["completion"], "label": row["liked"]} for row in ours.rows]
    return KTOTrainer(
        model=ours.model(AutoModelForCausalLM),
        ref_model=ours.model(AutoModelForCausalLM),
        args=ours.arguments(
            folder, KTOConfig, batch=GLOBAL_BATCH, desirable_weight=1.0, undesirable_weight=liked / others, **PLAIN
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=ours.tokenizer,
    )


def pairs(count: int, split: str) -> dict[str, list[str]]:
    return preferences.pairs(count, len(split))


def feedback(count: int, split: str) -> dict[str, list[Any]]:
    return preferences.feedback(count, len(split))


REWARD = {"prompt_column": "text", "chosen_column": "label", "rejected_column": "text", "separator": " =>"}
CASES = {
    "reward": Case({"name": "reward", **REWARD}, "llama", LLAMA, reward_trainer, LONG),
    "dpo": Case({"name": "dpo"}, "llama", LLAMA, dpo_trainer, LONG, pairs),
    "kto": Case({"name": "kto"}, "llama", LLAMA, kto_trainer, LONG, feedback),
}


@pytest.mark.filterwarnings("ignore")  # TRL warns of experimental features and renamed arguments
@by_name(CASES)
def test_twenty_steps_are_those_of_trl(case: Case, tmp_path: Path) -> None:
    _, theirs = check(case, tmp_path)
    if case.objective["name"] == "kto":
        estimates = [one["kl"] for one in theirs.state.log_history if "kl" in one]
        assert len(estimates) == STEPS
        assert sum(one > 0.01 for one in estimates) > STEPS // 2, "the KL term matters"
