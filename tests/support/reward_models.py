"""Small reward models, as the objective `reward` leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForSequenceClassification

from params import Recipe
from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.stages import save_report
from tasks.tokenization.stage import tokenize
from tests.support import preferences, releases, tiny
from tests.support.pretrained import write_model
from tests.support.tiny_releases import CHAT


def write_classifier(folder: Path, labels: int = 1, model_type: str = "llama", **config: Any) -> Path:
    """Write a classifier of random weights that gives a text so many numbers; return the folder."""
    write_model(folder, model_type)
    made = AutoConfig.from_pretrained(folder, num_labels=labels)
    made.update(config)
    AutoModelForSequenceClassification.from_config(made).save_pretrained(folder)
    return folder


def made(root: Path, *, chat: bool = False, steps: int = 4, **objective: Any) -> tuple[Artifacts, Recipe]:
    """A project with a reward model in its run's folder; with `chat`, it has learned from messages."""
    base = write_model(root / "base", "llama", chat_template=CHAT if chat else "", max_position_embeddings=128)
    sections: dict[str, Any] = {
        "objective": {"name": "reward", "chat": chat, **objective},
        "model": {"pretrained": str(base)},
        "tokenization": {"tokenizer": {"kind": "pretrained", "path": str(base)}, "max_length": 96},
    }
    recipe = load(tiny.write(root / "params" / "tiny.yaml", tiny.recipe(**sections)))
    artifacts = Artifacts("tiny", root)
    splits = {split: preferences.pairs(count, i) for i, (split, count) in enumerate(preferences.SIZES.items())}
    if chat:
        for columns in splits.values():
            for name, texts in columns.items():
                role = "user" if name == "prompt" else "assistant"
                columns[name] = [[{"role": role, "content": text}] for text in texts]
    tiny.write_rows(artifacts, **splits)
    save_report(releases.SOURCE, artifacts.report("ingest"))
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    releases.learn(artifacts, recipe, steps)
    return artifacts, recipe
