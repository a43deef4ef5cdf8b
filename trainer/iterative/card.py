"""The model card of an iterative training."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from ruamel.yaml import YAML
from transformers import TrainerState, TrainingArguments


def model_card(
    model: Any, args: TrainingArguments, state: TrainerState, *, name: str, dataset: str | None, tags: Sequence[str]
) -> str:
    """Return the text of README.md; `dataset` is the Hub's name of the data, `tags` are added to `iterative-sft`."""
    base = str(getattr(model.config, "_name_or_path", "") or "")
    if Path(base).exists():  # a local folder means nothing to readers
        base = ""
    metadata: dict[str, Any] = {
        "library_name": "peft" if hasattr(model, "peft_config") else "transformers",
        "pipeline_tag": "text2text-generation" if model.config.is_encoder_decoder else "text-generation",
        "tags": sorted({"iterative-sft", *tags}),
    }
    if base:
        metadata["base_model"] = base
    if dataset:
        metadata["datasets"] = [dataset]
    front_matter = io.StringIO()
    YAML(typ="safe").dump(metadata, front_matter)
    losses = [line["loss"] for line in state.log_history if "loss" in line]
    facts = {
        "base model": f"`{base}`" if base else None,
        "data": f"`{dataset}`" if dataset else None,
        "optimizer steps": state.global_step,
        "rows per step": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "optimizer": f"{args.optim.value}, learning rate {args.learning_rate:g}",
        "last logged loss, nats per token": f"{losses[-1]:.4f}" if losses else None,
        "libraries": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value is not None)
    return (
        f"---\n{front_matter.getvalue()}---\n\n# {name}\n\n"
        "Fine-tuned with IterativeSFTTrainer: a script chose the rows of each step.\n\n"
        f"| | |\n| --- | --- |\n{rows}\n"
    )
