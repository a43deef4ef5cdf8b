"""A training that resumes with another number of processes takes the same steps; with the same number, the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from params import DivergedError, RecipeError
from tests.support import tiny
from tests.support.project import STAGES, Project
from tests.support.training import ElasticTraining
from trainer.checkpoints.sealed import list_checkpoints
from trainer.data.tokens import read_split

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MASKED = {
    "objective": {"name": "masked_lm", "packing": False},
    "model": {"config": tiny.CLASSES["model"]["config"] | NO_DROPOUT},
}


@pytest.mark.parametrize("changes", [{}, pytest.param(MASKED, marks=pytest.mark.slow)], ids=["next tokens", "masks"])
def test_two_then_one_then_two_processes_take_the_steps_of_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = ElasticTraining(tmp_path / "whole", changes)
    whole.start()
    elastic = ElasticTraining(tmp_path / "elastic", changes)
    elastic.start(processes=2, until=4)
    elastic.start(processes=1, until=7)
    elastic.start(processes=2)
    expected, found = whole.steps(), elastic.steps()
    assert sorted(found) == sorted(expected) == list(range(1, 11))
    for step, at in expected.items():
        assert found[step]["rows"] == at["rows"], step
        assert len(set(at["rows"])) == 8
        assert found[step]["learning_rate"] == at["learning_rate"], step
        assert found[step]["loss"] == pytest.approx(at["loss"], rel=1e-5), step
    for name, tensor in load_file(whole.checkpoint / "model.safetensors").items():
        assert torch.allclose(load_file(elastic.checkpoint / "model.safetensors")[name], tensor, atol=1e-5), name


@pytest.mark.slow
def test_a_stop_at_an_evaluation_makes_up_for_it_at_the_next_start(tmp_path: Path) -> None:
    """The stop does not wait for the evaluation; the next start runs it, and the bits are the same."""
    dropout = {"model.config.attention_dropout": 0.1}
    whole, stopped = ElasticTraining(tmp_path / "whole", dropout), ElasticTraining(tmp_path / "stopped", dropout)
    whole.start()
    stopped.start(until=4)
    assert json.loads((stopped.checkpoint / "position.json").read_text())["lacks_evaluation"]
    stopped.start()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        assert (stopped.checkpoint / name).read_bytes() == (whole.checkpoint / name).read_bytes(), name
    curves = [[(e["step"], e["eval_loss"]) for e in t.history() if "eval_loss" in e] for t in (whole, stopped)]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == [0, 4, 8, 10]


@pytest.mark.slow
def test_processes_that_cannot_share_the_batch_are_refused_with_those_that_can(tmp_path: Path) -> None:
    training = ElasticTraining(tmp_path, {})
    with pytest.raises(RecipeError) as caught:
        training.start(processes=3)
    assert "3 processes cannot share training.global_batch_size 8 evenly" in caught.value.what
    assert caught.value.fix == "use one of [1, 2, 4, 8] processes, or another global batch"


@pytest.mark.slow
def test_a_checkpoint_comes_after_so_many_minutes(tmp_path: Path) -> None:
    changes = {"training.save_steps": 1000, "training.save_minutes": 1e-4, "training.keep_checkpoints": 100}
    training = ElasticTraining(tmp_path, changes)
    training.start(processes=2, until=5)
    steps = {int(p.name.removeprefix("checkpoint-")) for p in list_checkpoints(training.folder)}
    assert steps >= {3, 4, 5}, "every step takes longer than 6 ms, the first ones may save at once"


def test_a_gradient_that_is_not_finite_ends_the_training_before_the_weights_change(tmp_path: Path) -> None:
    training = ElasticTraining(tmp_path, {"training.learning_rate": 1e30, "training.max_grad_norm": 0.0})
    with pytest.raises(DivergedError, match=r"is (nan|inf) at step \d+, rows \[\d+, ") as caught:
        training.start(processes=2)
    kept = list_checkpoints(training.folder)
    assert ("the last checkpoint is " + kept[0].name if kept else "there is no checkpoint") in caught.value.fix
    for checkpoint in kept:
        assert all(t.isfinite().all() for t in load_file(checkpoint / "model.safetensors").values())


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_told_with_step_and_rows(tmp_path: Path) -> None:
    """The embedding of one token is NaN: the first rows that have it are named, and nothing is learned from them."""
    changes = {"launch.micro_batch_size": 1, "model.config.tie_word_embeddings": False, "training.save_steps": 1}
    healthy = ElasticTraining(tmp_path / "healthy", changes)
    healthy.start(until=6)
    rows = {row["row_id"]: row["input_ids"] for row in read_split(healthy.artifacts.tokens, "train")}
    seen = {step: {row: set(rows[row]) for row in at["rows"]} for step, at in healthy.steps().items()}
    early = set().union(*(ids for step in (1, 2) for ids in seen[step].values()))
    token = min(set().union(*(ids for step in (3, 4, 5) for ids in seen[step].values())) - early)
    step = min(s for s in seen if any(token in ids for ids in seen[s].values()))
    affected = sorted(row for row, ids in seen[step].items() if token in ids)

    weights = load_file(list_checkpoints(healthy.folder)[-1] / "model.safetensors")
    base = tmp_path / "base"
    shutil.copytree(healthy.checkpoint, base)
    weights["model.embed_tokens.weight"][token] = torch.nan
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    ill = ElasticTraining(tmp_path / "ill", changes | {"model": {"pretrained": str(base)}})
    with pytest.raises(DivergedError) as caught:
        ill.start(processes=2)
    assert caught.value.what.startswith(f"the loss is nan at step {step}, rows {affected}")
    assert f"the last checkpoint is checkpoint-{step - 1}" in caught.value.fix


@pytest.mark.slow  # the test of next tokens shows it in short
def test_two_processes_take_the_steps_of_one_from_texts_to_texts(tmp_path: Path) -> None:
    changes = {
        "model.config": tiny.TARGETS["model"]["config"] | {"dropout_rate": 0.0},
        "objective": tiny.TARGETS["objective"],
    }
    trainings = []
    for processes in (1, 2):
        training = ElasticTraining(tmp_path / str(processes), changes)
        training.start(processes=processes)
        trainings.append(training.steps())
    assert len(trainings[0]) == 10
    for step, at in trainings[0].items():
        assert trainings[1][step]["rows"] == at["rows"]
        assert trainings[1][step]["loss"] == pytest.approx(at["loss"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_give_the_same_metrics_as_one(project: Project) -> None:
    metrics = []
    for number in (1, 2):
        project.edit("params/tiny.yaml", "num_processes: 1", f"num_processes: {number}")
        project.stages("params/tiny.yaml", STAGES[:5] if number == 1 else STAGES[3:5])
        metrics.append(project.json("runs/tiny/evaluation/metrics.json")["model"])
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, rel=1e-3), name
