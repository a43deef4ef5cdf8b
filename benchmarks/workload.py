"""The same training for EvergreenTrainer and for transformers.Trainer, for benchmarks that compare them.

Both train the same model on the same sequences with the same arguments.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils import logging as transformers_logging

from params.schema import ObjectiveChoice
from trainer import OPENMP_SPINS, objectives
from trainer.data.order import RowTraits
from trainer.loop.metrics import EvaluationMetrics
from trainer.loop.trainer import EvergreenTrainer
from trainer.runtime.heartbeat import Heartbeat
from trainer.runtime.imports import hide_packages
from trainer.runtime.memory import keep_freed_memory

Kind = Literal["ours", "plain"]
VOCABULARY, LABELS = 8192, 77
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


class StepClock(TrainerCallback):
    """Notes when each optimizer step ends, on the wall and in seconds of this process's processors."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())


def in_own_processes(module: str, kind: Kind, *arguments: str, processes: int = 1) -> dict[str, float]:
    """Return what a module prints as JSON in new processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    command = [sys.executable, *launch, "-m", module, kind, *arguments]
    waits = {"GOMP_SPINCOUNT": OPENMP_SPINS} if kind == "ours" else {}
    variables = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | waits
    done = subprocess.run(
        command, env=variables, check=False, capture_output=True, text=True
    )  # libraries write warnings
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def set_up(kind: Kind) -> None:
    """Set a process up as a worker does after its imports; a plain script does nothing.

    In both, lomo_optim counts as not installed: accelerate reads its metadata twice a step, 0.6 ms that few users pay.
    """
    hide_packages("lomo_optim")
    if kind == "ours":
        keep_freed_memory()
        gc.freeze()


def sequences(count: int, length: int) -> Dataset:
    """Return sequences of random tokens, for a language model."""
    chance = random.Random(0)
    rows = [[chance.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]
    return Dataset.from_dict({"row_id": list(range(count)), "input_ids": rows, "labels": rows})


def texts(lengths: Sequence[int]) -> Dataset:
    """Return random tokens of these lengths with a random label each, for a classifier."""
    chance = random.Random(0)
    rows = [[chance.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    labels = [chance.randrange(LABELS) for _ in rows]
    return Dataset.from_dict({"row_id": list(range(len(rows))), "input_ids": rows, "labels": labels})


def language_model(hidden: int, layers: int) -> PreTrainedModel:
    """Return a Llama with random weights."""
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
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return made


def classifier(hidden: int, layers: int, seed: int = 0) -> PreTrainedModel:
    """Return a BERT with random weights; 384 and 6 are the shape of all-MiniLM-L6."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "bert",
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_labels=LABELS,
    )
    made: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return made


def trainer(
    kind: Kind,
    folder: Path,
    data: Dataset,
    model: PreTrainedModel,
    *,
    group_by_length: bool = False,
    objective: ObjectiveChoice | None = None,
    **arguments: Any,
) -> Any:
    """Return a trainer for `data` that writes to `folder`; `arguments` are those of TrainingArguments.

    The plain one is what a script would have: the collator of transformers, and its defaults.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_classifier = isinstance(data[0]["labels"], int)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), pad_token="<pad>")
    arguments = {
        "output_dir": str(folder),
        "learning_rate": 1e-4,
        "logging_steps": 10,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
        **arguments,
    }
    if kind == "plain":
        made: Any = Plain(
            model=model,
            args=TrainingArguments(save_strategy="steps", **arguments),
            train_dataset=data,
            data_collator=DataCollatorWithPadding(tokenizer) if is_classifier else default_data_collator,
        )
    else:
        name = "sequence_classification" if is_classifier else "causal_lm"
        columns = {"text_column": "text", "label_column": "label"} if is_classifier else {}
        method = objectives.build_objective(objective or ObjectiveChoice.model_validate({"name": name, **columns}))
        state = {"labels": [str(i) for i in range(LABELS)]} if is_classifier else {}
        arguments |= {"logging_nan_inf_filter": False, "remove_unused_columns": False, "dataloader_pin_memory": False}
        made = Ours(
            model=model,
            args=TrainingArguments(
                save_strategy="no", metric_for_best_model="loss", greater_is_better=False, **arguments
            ),
            train_dataset=data,
            objective=method,
            metrics=EvaluationMetrics(method, state=state, tokenizer=tokenizer, metrics=None),
            keep_checkpoints=2,
            traits=RowTraits(lengths=[len(row) for row in data["input_ids"]] if group_by_length else None),
            identity={"benchmark": "yes"},
            heartbeat=Heartbeat(folder, 0),
            stop_requested=lambda: False,
            eval_dataset=data,
            processing_class=tokenizer,
        )
    made.stalls_s, made.first_step_s = [], 0.0
    made.remove_callback(PrinterCallback)
    return made
