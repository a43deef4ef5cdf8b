"""Trainings of answers in a context, by windows, and of choices: stopped, killed and on two processes."""

from __future__ import annotations

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
from tests.support.tiny_releases import KINDS, OWN_ROWS
from tests.support.training import assert_same, curve, plan_job, run_train, run_train_with_kills
from trainer.checkpoints.sealed import list_checkpoints
from trainer.data import tokens

NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}
TWO = {"launch.num_processes": 2, "launch.micro_batch_size": 2}
SIZES = {"train": 64, "validation": 8, "test": 8}
CHANGES = {
    "question_answering": {"tokenization.max_length": 20, "objective.stride": 2},
    "multiple_choice": dict[str, Any](),
}

both = pytest.mark.parametrize("kind", CHANGES)


def tokenized(root: Path, kind: str, changes: dict[str, Any]) -> tuple[Artifacts, Recipe]:
    """A project's folder with a recipe and the tokens of its rows."""
    few = {"training.max_steps": 6, "training.eval_steps": 3}
    made = tiny.recipe(few | CHANGES[kind] | changes, **KINDS[kind][1])
    artifacts, recipe = Artifacts("tiny", root), load(tiny.write(root / "params/tiny.yaml", made))
    tiny.write_rows(artifacts, **{split: OWN_ROWS[kind](count, split) for split, count in SIZES.items()})
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return artifacts, recipe


@both
def test_stopped_run_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """With dropout, which a BERT has by default."""
    golden, recipe = tokenized(tmp_path / "golden", kind, {})
    if kind == "question_answering":
        assert len(tokens.read_split(golden.tokens, "train")) > SIZES["train"], "some contexts have several windows"
    folder = Path(in_process.trained(plan_job(golden, recipe)).args.output_dir)
    job = plan_job(*tokenized(tmp_path / "stopped", kind, {}), stop_at_step=3)
    in_process.trained(job)
    (newest, *_) = list_checkpoints(job.folder)
    assert newest.name == "checkpoint-3"
    in_process.trained(job.model_copy(update={"checkpoint": newest, "stop_at_step": None}))
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "config.json"):
        one, other = ((found / "checkpoint-6" / name).read_bytes() for found in (folder, job.folder))
        assert one == other, name


@pytest.mark.slow
@both
def test_two_killed_processes_end_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    golden, recipe = tokenized(tmp_path / "golden", kind, TWO)
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)


@pytest.mark.slow
@both
def test_two_processes_take_the_steps_of_one(kind: str, tmp_path: Path) -> None:
    """Also of rows with three choices beside such with four, and of other micro-batches."""
    found, weights = [], []
    for number, size in ((1, 8), (2, 2)):
        launch = {"launch.num_processes": number, "launch.micro_batch_size": size, "training.optimizer": "sgd"}
        artifacts, recipe = tokenized(tmp_path / str(number), kind, NO_DROPOUT | launch)
        run_train(artifacts, recipe)
        found.append([row["loss"] for row in curve(artifacts, "train")])
        weights.append(load_file(artifacts.checkpoint / "model.safetensors"))
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=2e-6)
