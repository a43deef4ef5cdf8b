"""Seconds per optimizer step of GRPO if one generation serves one, four or eight steps, in alternating runs.

    python -m benchmarks.rollouts [rounds]

The work: a small language model, four prompts per step with four completions of 64 tokens each, no evaluation, and only a
last save, which is not timed. The model has random weights and no end-of-text token, so every completion has full length.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainingArguments

from benchmarks.tables import environment
from benchmarks.workload import sequences
from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics
from trainer.loop.rollout_trainer import RolloutTrainer
from trainer.runtime.heartbeat import Heartbeat

STEPS = 16
STEPS_PER_GENERATION = (1, 4, 8)
PROMPTS, VOCABULARY = 4, 512


class Rollouts(RolloutTrainer):
    """A RolloutTrainer that measures its times."""

    passes: int
    generation_s: float
    begin_s: float
    end_s: float

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Note when the first batch is read."""
        self.begin_s = self.begin_s or time.perf_counter()
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _begin_round(self, step: int) -> None:
        start = time.perf_counter()
        super()._begin_round(step)
        self.passes += 1
        self.generation_s += time.perf_counter() - start

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.end_s = time.perf_counter()
        super()._save_checkpoint(*args, **kwargs)


def train(steps_per_generation: int) -> Rollouts:
    """Train, and return the trainer with its times."""
    options = {"num_generations": 4, "max_new_tokens": 64, "rewards": ["benchmarks.rollouts:length"]}
    choice = {"name": "grpo", "reference_columns": [], "steps_per_generation": steps_per_generation, **options}
    objective = objectives.build_objective(ObjectiveChoice.model_validate(choice))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), pad_token="<pad>")
    prompts = [[i % VOCABULARY for i in ids] for ids in sequences(PROMPTS * STEPS, 16)["input_ids"]]
    rows = {
        "row_id": list(range(len(prompts))),
        "input_ids": prompts,
        "labels": prompts,
        "reward_row": ["{}"] * len(prompts),
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=None,
        bos_token_id=None,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        args = TrainingArguments(
            output_dir=name,
            max_steps=STEPS,
            per_device_train_batch_size=PROMPTS,
            save_strategy="no",
            save_steps=10**9,
            logging_steps=STEPS,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        made = Rollouts(
            objective=objective,
            metrics=EvaluationMetrics(objective, state={}, tokenizer=tokenizer, metrics=None),
            keep_checkpoints=1,
            identity={"benchmark": "yes"},
            heartbeat=Heartbeat(folder, 0),
            stop_requested=lambda: False,
            model=AutoModelForCausalLM.from_config(config),
            args=args,
            train_dataset=Dataset.from_dict(rows),
            eval_dataset=None,
            processing_class=tokenizer,
        )
        made.passes, made.generation_s, made.begin_s = 0, 0.0, 0.0
        made.remove_callback(PrinterCallback)
        made.train()
    return made


def length(completions: list[str], rows: list[Any]) -> list[float]:
    """Reward completions alternately with 0 and 1."""
    return [float(i % 2) for i, _ in enumerate(zip(completions, rows, strict=True))]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(environment(), flush=True)
    per_step: dict[int, list[float]] = {steps: [] for steps in STEPS_PER_GENERATION}
    for number in range(rounds):
        for steps in STEPS_PER_GENERATION if number % 2 else reversed(STEPS_PER_GENERATION):
            made = train(steps)
            per_step[steps].append((made.end_s - made.begin_s) / STEPS)
            share = made.generation_s / (made.end_s - made.begin_s)
            print(
                f"round {number + 1}, {steps} steps per generation: {per_step[steps][-1]:.3f} s per step, "
                f"{made.passes} generations, {100 * share:.0f}% of the time in them",
                flush=True,
            )
    medians = {steps: statistics.median(found) for steps, found in per_step.items()}
    for steps in STEPS_PER_GENERATION[1:]:
        print(f"{steps} steps per generation take {medians[steps] / medians[1]:.2f} of the time per step of 1")


if __name__ == "__main__":
    main()
