"""A tiny model of every objective, really published to one Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from params import Recipe
from params.foundation.artifacts import Artifacts
from params.schema import AdapterForm
from tasks.tokenization.stage import tokenize
from tests.support import base_models, releases, tiny

CHAT = (
    "{% for tool in tools or [] %}({{ tool.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
_PROMPTS = {
    "prompt": "Who? {text} Answer:",
    "reference_columns": ["label"],
    "rewards": [{"name": "trainer.rewards:matches", "arguments": {"pattern": "cat"}}],
    "num_generations": 2,
    "max_new_tokens": 4,
}
_ENCODER = {"model": tiny.CLASSES["model"]}
_BEST_F1, _BEST_ACCURACY = tiny.TAGS["training"], tiny.CLASSES["training"]
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "causal_lm": (10, {}),
    "sft": (10, {"objective": {"name": "sft", "prompt_column": "text", "completion_column": "label"}}),
    "conversations": (
        10,
        {
            "objective": {
                "name": "sft",
                "messages_column": "messages",
                "tools_column": "tools",
                "chat_template": CHAT,
            }
        },
    ),
    "sequence_classification": (60, tiny.CLASSES),
    "multi_label_classification": (60, tiny.LABEL_SETS),
    "token_classification": (60, tiny.TAGS),
    "question_answering": (40, {"objective": {"name": "question_answering"}, **_ENCODER, "training": _BEST_F1}),
    "multiple_choice": (40, {"objective": {"name": "multiple_choice"}, **_ENCODER, "training": _BEST_ACCURACY}),
    "masked_lm": (10, {"objective": {"name": "masked_lm"}, "model": tiny.CLASSES["model"]}),
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
    "reward": (
        5,
        {
            "objective": {
                "name": "reward",
                "prompt_column": "text",
                "chosen_column": "label",
                "rejected_column": "text",
                "separator": " =>",
            }
        },
    ),
    "kto": (
        0,
        {"objective": {"name": "kto", "prompt_column": "text", "completion_column": "label", "separator": " =>"}},
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
    if kind in OWN_ROWS:
        artifacts, _ = releases.tokenized(root, tiny.recipe(), sizes)
        recipe = tiny.load(tiny.write(artifacts.recipe_path, content))
        splits = {split: OWN_ROWS[kind](count, split) for split, count in sizes.items()}
        tiny.write_rows(artifacts, **splits)
        tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    else:
        artifacts, recipe = releases.tokenized(root, content, sizes)
    releases.learn(artifacts, recipe, usual if steps is None else steps)
    # Some learn nothing here, and a first release is compared with the untrained model if there is one.
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"compare_untrained": False})})
    assert releases.evaluate(artifacts, recipe).verdict == "publish"
    return artifacts, recipe


def conversations(count: int, split: str) -> dict[str, list[Any]]:
    texts = tiny.sentences(count, len(split))
    turns = [(("user", f"Who? {text}"), ("assistant", text.split()[1])) for text in texts]
    tools = [json.dumps([{"name": f"look_{i % 5}"}]) if i % 3 else None for i in range(count)]
    return {
        "messages": [[{"role": role, "content": content} for role, content in both] for both in turns],
        "tools": tools,
    }


def questions(count: int, split: str) -> dict[str, list[Any]]:
    """Who it is that a sentence is about, and what nobody is told."""
    texts = tiny.sentences(count, len(split))
    answers = [{"text": [text.split()[1]], "answer_start": [text.index(" ") + 1]} for text in texts]
    none = {"text": list[str](), "answer_start": list[int]()}
    asked = ["who?" if i % 3 else "why?" for i in range(count)]
    found = [answer if question == "who?" else none for question, answer in zip(asked, answers, strict=True)]
    return {"question": asked, "context": texts, "answers": found}


def choices(count: int, split: str) -> dict[str, list[Any]]:
    texts = tiny.sentences(count, len(split))
    every = [["cat", "dog", "friend", "king"][: 4 if "king" in text else 3] for text in texts]
    return {"context": texts, "choices": every, "label": [text.split()[1] for text in texts]}


def feedback(count: int, split: str) -> dict[str, list[Any]]:
    texts = tiny.sentences(count, len(split))
    liked = [i % 3 > 0 for i in range(count)]
    answers = [text.split()[1 if good else 2] for text, good in zip(texts, liked, strict=True)]
    return {"text": texts, "label": answers, "liked": liked}


def label_sets(count: int, split: str) -> dict[str, list[Any]]:
    texts = tiny.sentences(count, len(split))
    return {"text": texts, "labels": tiny.label_sets_of(texts)}


OWN_ROWS = {
    "conversations": conversations,
    "multi_label_classification": label_sets,
    "question_answering": questions,
    "multiple_choice": choices,
    "kto": feedback,
}
"""Rows of the kinds that read other columns."""
