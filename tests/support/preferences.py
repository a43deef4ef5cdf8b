"""Made pairs of completions that a small model learns to tell apart, and a training on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from params import Recipe
from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tests.support import in_process, tiny
from tests.support.training import metrics_log, plan_job, run_train
from trainer.checkpoints.sealed import list_checkpoints
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


def assert_weights_do_not_depend_on_micro_batches_and_processes(
    root: Path, changes: dict[str, Any], objective: str, *, of_two: int
) -> None:
    """Four rows at once, one by one, and in micro-batches of `of_two` in two processes give the same losses and weights."""
    found = {}
    for name, size in {"4 at once": 4, "4 of 1": 1}.items():
        trainer = in_process.trained(job(root / name, {**changes, "launch.micro_batch_size": size}, objective))
        found[name] = trainer.state.log_history, list_checkpoints(Path(trainer.args.output_dir))[0]
    two = {"launch.micro_batch_size": of_two, "launch.num_processes": 2}
    artifacts, recipe = tokenized(root / "two", changes | two, objective)
    run_train(artifacts, recipe)
    found["two processes"] = metrics_log(artifacts), artifacts.checkpoint
    results = {
        name: (
            [(entry["loss"], entry["grad_norm"]) for entry in log if "loss" in entry],
            load_file(folder / "model.safetensors"),
        )
        for name, (log, folder) in found.items()
    }
    golden, weights = results.pop("4 at once")
    assert golden[0][0] != golden[-1][0]
    for name, (losses, others) in results.items():
        for key, weight in weights.items():
            torch.testing.assert_close(others[key], weight, rtol=0, atol=1e-6, msg=f"{name}: {key}")
        for one, other in zip(golden, losses, strict=True):
            assert other == pytest.approx(one, rel=1e-5), name


def assert_stopped_run_ends_with_the_same_bits(root: Path, changes: dict[str, Any], objective: str) -> None:
    """A run that stops after two of its four steps and resumes ends as one that does not stop."""
    changes = {"training.max_steps": 4, "training.eval_steps": 2, **changes}
    golden = Path(in_process.trained(job(root / "golden", changes, objective)).args.output_dir)
    stopped = job(root / "stopped", changes, objective, stop_at_step=2)
    in_process.trained(stopped)
    newest = list_checkpoints(stopped.folder)[0]
    assert newest.name == "checkpoint-2"
    in_process.trained(stopped.model_copy(update={"checkpoint": newest, "stop_at_step": None}))
    weights = "adapter_model.safetensors" if "model.lora" in changes else "model.safetensors"
    for name in (weights, "optimizer.pt"):
        one, other = ((folder / "checkpoint-4" / name).read_bytes() for folder in (golden, stopped.folder))
        assert one == other, name
