"""The model card of an iterative training: what the trainer itself knows, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from trainer.iterative.trainer import IterativeSFTTrainer


def card(trainer: IterativeSFTTrainer, *, name: str, dataset: str | None, tags: Sequence[str]) -> str:
    """The text of README.md.

    Args:
        trainer: the training.
        name: what the model is called.
        dataset: the Hub's name of the data, if it has one.
        tags: tags beside `iterative-sft`.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    base = str(getattr(model.config, "_name_or_path", "") or "")
    if Path(base).exists():  # a folder of this machine means nothing to who reads the card
        base = ""
    seq2seq = trainer.rows.encoder_decoder
    head: dict[str, Any] = {
        "library_name": "peft" if hasattr(model, "peft_config") else "transformers",
        "pipeline_tag": "text2text-generation" if seq2seq else "text-generation",
        "tags": sorted({"iterative-sft", *tags}),
    }
    if base:
        head["base_model"] = base
    if dataset:
        head["datasets"] = [dataset]
    written = io.StringIO()
    YAML(typ="safe").dump(head, written)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    args = trainer.args
    facts = {
        "base model": f"`{base}`" if base else None,
        "data": f"`{dataset}`" if dataset else None,
        "optimizer steps": trainer.state.global_step,
        "rows a step": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "optimizer": f"{args.optim.value}, learning rate {args.learning_rate:g}",
        "last logged loss, nats per token": f"{losses[-1]:.4f}" if losses else None,
        "libraries": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value is not None)
    return (
        f"---\n{written.getvalue()}---\n\n# {name}\n\n"
        "Trained by supervised steps between which its script chose the rows of the next one.\n\n"
        f"| | |\n| --- | --- |\n{rows}\n"
    )
