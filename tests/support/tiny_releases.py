"""A tiny model of every objective, really published to one Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from params import Recipe
from params.foundation.artifacts import Artifacts
from params.schema import AdapterForm
from tasks.tokenization.stage import tokenize
from tests.support import base_models, releases, tiny

CHAT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
_PROMPTS = {
    "prompt": "Who? {text} Answer:",
    "reference_columns": ["label"],
    "rewards": [{"name": "trainer.rewards:matches", "arguments": {"pattern": "cat"}}],
    "num_generations": 2,
    "max_new_tokens": 4,
}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "causal_lm": (10, {}),
    "sft": (10, {"objective": {"name": "sft", "prompt_column": "text", "completion_column": "label"}}),
    "conversations": (10, {"objective": {"name": "sft", "messages_column": "messages", "chat_template": CHAT}}),
    "sequence_classification": (60, tiny.CLASSES),
    "token_classification": (60, tiny.TAGS),
    "regression": (60, tiny.NUMBERS),
    "seq2seq": (10, {**tiny.TARGETS, "objective": {**tiny.TARGETS["objective"], "prefix": "who: "}}),
    "dpo": (
        0,
        {
            "objective": {
                "name": "dpo",
                "prompt_column": "text",
                "chosen_column": "label",
                "rejected_column": "text",
                "separator": " =>",
            }
        },
    ),
    "grpo": (0, {"objective": {"name": "grpo", **_PROMPTS}}),
    "embedding": (
        0,
        {
            "objective": {"name": "embedding", "anchor_column": "text", "positive_column": "label"},
            "model": tiny.CLASSES["model"],
        },
    ),
    "ranking": (
        20,
        {
            "objective": {
                "name": "ranking",
                "query_column": "label",
                "document_column": "text",
                "relevance_column": "number",
            },
            "model": tiny.CLASSES["model"],
        },
    ),
    "iterative_sft": (0, {"objective": {"name": "iterative_sft", **_PROMPTS}}),
}
"""How many steps each learns, and the sections of its recipe."""
SIZES = {"train": 60, "validation": 8, "test": 12}
"""Rows of each split."""


def publish_adapters(root: Path, kind: str, form: AdapterForm) -> Artifacts:
    """Publish adapters of a kind as tests/<kind>-<form>; `base_models` has their kinds, and has uploaded the base models."""
    changes = {"publish.repo_id": f"tests/{kind}-{form}", "publish.adapter": form}
    artifacts, recipe = releases.tokenized(root, base_models.recipe(kind, changes), SIZES)
    releases.learn(artifacts, recipe, KINDS[kind][0])
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    assert releases.publish(artifacts, recipe).status == "published"
    return artifacts


def publish(root: Path, kind: str, *, steps: int | None = None, private: bool = False) -> Artifacts:
    """Publish the model of a kind as tests/<kind>, to the Hub of HF_ENDPOINT or the local one of `root`."""
    artifacts, recipe = evaluated(root, kind, steps=steps, private=private)
    assert releases.publish(artifacts, recipe).status == "published"
    return artifacts


def evaluated(
    root: Path, kind: str, *, steps: int | None = None, private: bool = False, max_length: int | None = None
) -> tuple[Artifacts, Recipe]:
    """The model of a kind, ready to be published."""
    usual, sections = KINDS[kind]
    changes = {"publish.repo_id": f"tests/{kind}", "publish.private": private}
    if kind == "conversations":
        changes["tokenization.max_length"] = 64
    if max_length:
        changes["tokenization.max_length"] = max_length
    content, sizes = tiny.recipe(changes, **sections), SIZES
    if kind == "conversations":
        artifacts, _ = releases.tokenized(root, tiny.recipe(), sizes)
        recipe = tiny.load(tiny.write(artifacts.recipe_path, content))
        splits = {split: {"messages": conversations(count, split)} for split, count in sizes.items()}
        tiny.write_rows(artifacts, **splits)
        tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    else:
        artifacts, recipe = releases.tokenized(root, content, sizes)
    releases.learn(artifacts, recipe, usual if steps is None else steps)
    # Some learn nothing here, and a first release is compared with the untrained model if there is one.
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"compare_untrained": False})})
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    return artifacts, recipe


def conversations(count: int, split: str) -> list[list[dict[str, str]]]:
    texts = tiny.sentences(count, len(split))
    turns = [(("user", f"Who? {text}"), ("assistant", text.split()[1])) for text in texts]
    return [[{"role": role, "content": content} for role, content in both] for both in turns]
