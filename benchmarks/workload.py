"""The same training for EvergreenTrainer and for transformers.Trainer, for benchmarks that compare them.

Both train the same model on the same sequences with the same arguments.
"""

from __future__ import annotations

import platform
import random
import time
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging as transformers_logging

from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.loop.metrics import EvaluationMetrics
from trainer.loop.trainer import EvergreenTrainer
from trainer.runtime.heartbeat import Heartbeat

Kind = Literal["ours", "plain"]
VOCABULARY = 8192
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


class Timed:
    """A mixin for a Trainer that notes how long each save blocks the loop, and when the first step and last save begin."""

    stalls_s: list[float]
    first_step_s: float
    last_save_s: float

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        start = self.last_save_s = time.perf_counter()
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]
        self.stalls_s.append(time.perf_counter() - start)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Note when the first step begins."""
        self.first_step_s = self.first_step_s or time.perf_counter()
        return super().training_step(*args, **kwargs)  # type: ignore[misc]


class Ours(Timed, EvergreenTrainer):
    """An EvergreenTrainer that measures its times."""


class Plain(Timed, Trainer):
    """A transformers.Trainer that measures its times."""


def sequences(count: int, length: int) -> Dataset:
    """Return sequences of random tokens."""
    chance = random.Random(0)
    rows = [[chance.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]
    return Dataset.from_dict({"row_id": list(range(count)), "input_ids": rows, "labels": rows})


def trainer(kind: Kind, folder: Path, data: Dataset, *, hidden: int, layers: int, **arguments: Any) -> Any:
    """Return a trainer for `data` that writes to `folder`; `arguments` are those of TrainingArguments."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    args = TrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-4,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
        save_strategy="no" if kind == "ours" else "steps",
        metric_for_best_model="loss",
        greater_is_better=False,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **arguments,
    )
    objective = objectives.build(ObjectiveChoice.model_validate({"name": "causal_lm"}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), pad_token="<pad>")
    shared = {"model": AutoModelForCausalLM.from_config(config), "args": args, "train_dataset": data}
    if kind == "plain":
        made: Any = Plain(**shared, data_collator=lambda rows: objective.collate(rows, tokenizer))
    else:
        made = Ours(
            **shared,
            objective=objective,
            metrics=EvaluationMetrics(objective, state={}, tokenizer=tokenizer, metrics=None),
            keep_checkpoints=2,
            identity={"benchmark": "yes"},
            heartbeat=Heartbeat(folder, 0),
            stop_requested=lambda: False,
            eval_dataset=data,
            processing_class=tokenizer,
        )
    made.stalls_s, made.first_step_s = [], 0.0
    made.remove_callback(PrinterCallback)
    return made


def environment() -> str:
    """Describe the machine and the versions in one line."""
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
