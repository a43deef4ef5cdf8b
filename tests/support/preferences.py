"""Made pairs of completions that a small model learns to tell apart, and a training on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from params import Recipe
from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tests.support import tiny
from tests.support.training import plan_job
from trainer.job import Job

SIZES = {"train": 48, "validation": 12, "test": 12}


def pairs(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Questions about a number; the chosen answer is polite, the rejected one is not."""
    chance = random.Random(seed)
    numbers = [chance.randint(10, 99) for _ in range(count)]
    return {
        "prompt": [f"What comes after {number}{' please' * chance.randint(0, 2)}?" for number in numbers],
        "chosen": [f" It is {number + 1}, thank you{' again' * chance.randint(0, 2)}." for number in numbers],
        "rejected": [f" Go away with {number}{', away' * chance.randint(0, 2)}!" for number in numbers],
    }


def feedback(count: int, seed: int = 0) -> dict[str, list[Any]]:
    """Single answers of such pairs: two in three are polite, and liked."""
    found, chance = pairs(count, seed), random.Random(seed)
    liked = [chance.random() < 2 / 3 for _ in range(count)]
    both = zip(found["chosen"], found["rejected"], liked, strict=True)
    return {"prompt": found["prompt"], "completion": [a if good else b for a, b, good in both], "liked": liked}


def tokenized(root: Path, changes: dict[str, Any] | None = None, objective: str = "dpo") -> tuple[Artifacts, Recipe]:
    """A project's folder with a recipe and the tokens of pairs."""
    content = tiny.recipe({"tokenization.max_length": 64, **(changes or {})}, objective={"name": objective})
    recipe = load(tiny.write(root / "params" / "tiny.yaml", content))
    artifacts = Artifacts("tiny", root)
    made = feedback if objective == "kto" else pairs
    tiny.write_rows(artifacts, **{split: made(count, i) for i, (split, count) in enumerate(SIZES.items())})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe


def job(
    root: Path, changes: dict[str, Any] | None = None, objective: str = "dpo", *, stop_at_step: int | None = None
) -> Job:
    """The training of such a recipe."""
    artifacts, recipe = tokenized(root, changes, objective)
    return plan_job(artifacts, recipe, stop_at_step=stop_at_step)
