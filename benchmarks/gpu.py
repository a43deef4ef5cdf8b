"""LoRA of an 8-billion-parameter shape on one GPU: tokens per second padded, packed and compiled, and peak memory.

    python -m benchmarks.gpu            needs a GPU with 80 GiB
    python -m benchmarks.gpu tiny       a tiny shape, on any machine: only to see that it runs

The weights are random and in bf16; only the adapters are trained, with activation checkpoints. The texts have 200 to 4,000
tokens, and a batch at most four sequences of 4,096. Tokens per second are those of texts, without padding. The other
measurements of a GPU: `pytest -k gpu`, `python -m benchmarks.evaluation_memory`, `evergreen verify-resume <recipe>`.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.tables import environment
from benchmarks.workload import StepClock, trainer
from params.schema import ObjectiveChoice
from trainer.objectives.bases.texts import packing

SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
STEPS, WARM_UP, BATCH = 12, 4, 4


def model(shape: str) -> PreTrainedModel:
    """Return a Llama with random bf16 weights and adapters on all of its linear layers."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SHAPES[shape])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    adapted: PreTrainedModel = get_peft_model(
        made, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    return adapted


def texts(length: int, vocabulary: int, *, packed: bool) -> tuple[Dataset, float]:
    """Return sequences for all steps, and the mean number of tokens in a step."""
    chance = random.Random(0)
    examples: list[dict[str, Any]] = []
    for i in range(4 * STEPS * BATCH):
        ids = [chance.randrange(10, vocabulary) for _ in range(chance.randrange(length // 20, length))]
        examples.append({"row_id": i, "input_ids": ids, "labels": ids})
    rows = [*packing.pack_examples(examples, length)] if packed else examples
    rows = rows[: STEPS * BATCH]
    return Dataset.from_list(rows), sum(len(row["input_ids"]) for row in rows) / STEPS


def measure(shape: str, *, packed: bool, compiled: bool) -> str:
    """Train for a few steps; return what it took."""
    length = 4096 if shape == "8b" else 128
    data, tokens = texts(length, SHAPES[shape]["vocab_size"], packed=packed)
    clock = StepClock()
    arguments: dict[str, Any] = {"bf16": torch.cuda.is_available(), "torch_compile": compiled}
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            "ours",
            Path(folder),
            data,
            model(shape),
            objective=ObjectiveChoice.model_validate({"name": "sft", "packing": packed}),
            max_steps=STEPS,
            activation_checkpointing=True,
            per_device_train_batch_size=BATCH,
            **arguments,
        )
        made.add_callback(clock)
        made.train()
    steps = [b - a for a, b in zip(clock.wall_s[WARM_UP:], clock.wall_s[WARM_UP + 1 :], strict=False)]
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if torch.cuda.is_available() else ""
    return f"{tokens / statistics.median(steps):,.0f} tokens/s{memory}"


def main() -> None:
    shape = "tiny" if "tiny" in sys.argv[1:] else "8b"
    if shape == "8b" and not torch.cuda.is_available():
        sys.exit("this needs a GPU; `python -m benchmarks.gpu tiny` runs anywhere")
    print(environment(), torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU", flush=True)
    for packed in (False, True):
        for compiled in (False, True):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            name = f"{'packed' if packed else 'padded'}{', compiled' if compiled else ''}"
            print(f"{name}: {measure(shape, packed=packed, compiled=compiled)}", flush=True)


if __name__ == "__main__":
    main()
