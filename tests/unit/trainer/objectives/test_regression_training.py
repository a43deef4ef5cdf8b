"""Trainings of numbers of pairs: stopped, killed and on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from tests.support import in_process, tiny
from tests.support.training import assert_same, curve, run_train, run_train_with_kills
from trainer.checkpoints.sealed import list_checkpoints
from trainer.data import tokens

NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}


def test_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    """With dropout, which a BERT has by default."""
    changes = {"training.max_steps": 6, "training.eval_steps": 3}
    golden = Path(in_process.trained(in_process.job(tmp_path / "golden", changes, **tiny.NUMBERS)).args.output_dir)
    job = in_process.job(tmp_path / "stopped", changes, stop_at_step=3, **tiny.NUMBERS)
    in_process.trained(job)
    (newest, *_) = list_checkpoints(job.folder)
    assert newest.name == "checkpoint-3"
    in_process.trained(job.model_copy(update={"checkpoint": newest, "stop_at_step": None}))
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "config.json"):
        one, other = ((folder / "checkpoint-6" / name).read_bytes() for folder in (golden, job.folder))
        assert one == other, name


@pytest.mark.slow
def test_a_killed_run_ends_like_one_that_was_left_alone_and_answers_in_units(tmp_path: Path) -> None:
    two = {"launch.num_processes": 2, "launch.micro_batch_size": 2}
    golden, recipe = tiny.tokenized(tmp_path / "golden", tiny.recipe(two, **tiny.NUMBERS))
    killed = run_train_with_kills(golden, recipe, "checkpoint.renamed:2")
    assert_same(golden, killed)
    learned, released = (load_file(folder / "model.safetensors") for folder in (golden.checkpoint, golden.model))
    state = json.loads((golden.tokens / "objective.json").read_text())
    assert "target_std" in json.loads((golden.checkpoint / "config.json").read_text())
    assert "target_std" not in json.loads((golden.model / "config.json").read_text())
    if learned["bert.pooler.dense.bias"].equal(released["bert.pooler.dense.bias"]):  # the last step is the best
        expected = learned["classifier.bias"] * state["std"][0] + state["mean"][0]
        torch.testing.assert_close(released["classifier.bias"], expected)
    model = AutoModelForSequenceClassification.from_pretrained(golden.model).eval()
    examples = tokens.read_split(golden.tokens, "test")
    with torch.no_grad():
        answers = [model(torch.tensor([examples[i]["input_ids"]])).logits.item() for i in range(20)]
    assert 100 < sum(answers) / 20 < 600, "the rows have 200.5 to 500.5"


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    found, weights = [], []
    for number in (1, 2):
        sizes = {"launch.num_processes": number, "launch.micro_batch_size": 2}
        artifacts, recipe = tiny.tokenized(tmp_path / str(number), tiny.recipe(NO_DROPOUT | sizes, **tiny.NUMBERS))
        run_train(artifacts, recipe)
        found.append([row["loss"] for row in curve(artifacts, "train")])
        weights.append(load_file(artifacts.checkpoint / "model.safetensors"))
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=2e-5)
