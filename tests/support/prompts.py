"""The smallest run that is learned from completions: prompts that ask for a digit, and rewards for saying it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from params import Recipe
from params.foundation.artifacts import Artifacts
from params.sections.rows import TrainTokenizer
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny

GRPO: dict[str, Any] = {"name": "grpo", "num_generations": 4, "max_new_tokens": 4}
ITERATIVE: dict[str, Any] = {"name": "iterative_sft", "num_generations": 4, "max_new_tokens": 4}
REWARD = "tests.support.prompts:roundness"


def roundness(completions: list[str], rows: list[dict[str, Any]]) -> list[float]:
    """A reward that differs between random completions: the share of bytes that are even, and whether the answer is."""
    shares = [sum(b % 2 == 0 for b in c.encode()) / max(1, len(c.encode())) for c in completions]
    return [share + int(row["answer"]) % 2 for share, row in zip(shares, rows, strict=True)]


def recipe(objective: dict[str, Any], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The tiny recipe with this objective."""
    usual = {"training.best_metric": "reward", "model.config.attention_dropout": 0.0}
    return tiny.recipe(usual | (changes or {}), objective={"rewards": [REWARD], **objective})


def rows(count: int, seed: int) -> dict[str, list[str]]:
    """Prompts of different lengths, with the digit that they ask for."""
    chance = random.Random(seed)
    digits = [str(chance.randrange(10)) for _ in range(count)]
    return {
        "prompt": [f"{'please ' * chance.randrange(3)}say {digit}:" for digit in digits],
        "answer": digits,
        "solution": [f"it is {digit}" for digit in digits],
    }


def tokenized(root: Path, content: dict[str, Any]) -> tuple[Artifacts, Recipe]:
    """A project's folder with a recipe and its tokens, ready to train."""
    made = load(tiny.write(root / "params" / "tiny.yaml", content))
    artifacts = Artifacts("tiny", root)
    tiny.write_rows(artifacts, train=rows(80, 0), validation=rows(8, 1), test=rows(8, 2))
    tokenize(artifacts, tokenization=made.tokenization, objective=made.objective, launch=made.launch)
    return artifacts, made


def random_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A tiny Llama with random weights, and a tokenizer of its vocabulary."""
    tokenizer = train_tokenizer(["a text"], TrainTokenizer(kind="train", vocab_size=280))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=280, **sizes)), tokenizer
