"""Trainings whose rewards a model gives: after a kill and on two processes they end as without, and the model is part of their key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from params import ModelError
from tests.support import in_process, prompts
from tests.support.pretrained import write_model
from tests.support.training import ElasticTraining, assert_same, metrics_log, plan_job, run_train_with_kills
from trainer import objectives
from trainer.objectives.bases.rewards import reward_models

BUFFERED = prompts.GRPO | {"steps_per_generation": 2, "beta": 0.1}
ROUNDS = prompts.ITERATIVE | {"steps_per_round": 2, "min_reward": None, "keep_best": 1}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of random weights, whose rewards differ clearly."""
    folder = write_model(tmp_path_factory.mktemp("rewards") / "model", "llama", max_position_embeddings=128)
    torch.manual_seed(0)
    network = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder, num_labels=1))
    network.score.weight.data.mul_(50)
    network.save_pretrained(folder)
    return folder


def with_model(objective: dict[str, Any], folder: Path) -> dict[str, Any]:
    return objective | {"rewards": [prompts.REWARD, {"model": str(folder)}], "reward_weights": [0.5, 1.0]}


SHORT = {"training.max_steps": 5, "training.save_steps": 3, "training.eval_steps": 5, "launch.micro_batch_size": 4}


@pytest.mark.parametrize(
    "objective", [pytest.param(ROUNDS, id="iterative_sft"), pytest.param(BUFFERED, id="grpo", marks=pytest.mark.slow)]
)
def test_killed_run_ends_with_the_same_bits(objective: dict[str, Any], answers: Path, tmp_path: Path) -> None:
    """It is killed in the middle of a round, and loads the reward model again."""
    golden, recipe = prompts.tokenized(tmp_path / "golden", prompts.recipe(with_model(objective, answers), SHORT))
    assert_same(golden, run_train_with_kills(golden, recipe, "checkpoint.renamed:1"))
    rewards = [line["reward"] for line in metrics_log(golden) if "loss" in line]
    assert len(set(rewards)) == len(rewards), "the model gives each round others"


class Rounds(ElasticTraining):
    """A training that a test can start repeatedly, on any number of processes."""

    def __init__(self, root: Path, objective: dict[str, Any]) -> None:
        self.artifacts, self.recipe = prompts.tokenized(root, prompts.recipe(objective, SHORT))
        self.folder = root / "run"


@pytest.mark.slow
@pytest.mark.parametrize("objective", [pytest.param(BUFFERED, id="grpo"), pytest.param(ROUNDS, id="iterative_sft")])
def test_two_processes_train_like_one(objective: dict[str, Any], answers: Path, tmp_path: Path) -> None:
    one, two = (Rounds(tmp_path / name, with_model(objective, answers)) for name in ("one", "two"))
    one.start()
    two.start(processes=2, until=3)
    two.start(processes=2)
    for name, tensor in load_file(one.checkpoint / "model.safetensors").items():
        assert torch.allclose(load_file(two.checkpoint / "model.safetensors")[name], tensor, atol=2e-5), name
    rewards = [[line["reward"] for line in run.history() if "loss" in line] for run in (one, two)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-5)


def test_a_model_is_loaded_once_before_the_first_step(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    plain = AutoModelForSequenceClassification.from_pretrained

    def counted(*arguments: Any, **named: Any) -> Any:
        loaded.append(arguments)
        return plain(*arguments, **named)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", counted)
    reward_models._load.cache_clear()
    artifacts, recipe = prompts.tokenized(tmp_path, prompts.recipe(with_model(ROUNDS, answers), SHORT))
    trainer = in_process.trainer_of(plan_job(artifacts, recipe))
    assert len(loaded) == 1
    trainer.train()
    objectives.build_objective(recipe.objective).rewards.load()  # as that of each model in an evaluation
    assert len(loaded) == 1
    assert [line for line in trainer.state.log_history if "eval_reward" in line]
    (network, *_) = reward_models._load(str(answers), None)
    assert not any(weight.grad is not None for weight in network.parameters())


def test_a_model_is_part_of_the_runs_key(answers: Path, tmp_path: Path) -> None:
    artifacts, recipe = prompts.tokenized(tmp_path, prompts.recipe(with_model(ROUNDS, answers), SHORT))
    before = plan_job(artifacts, recipe).folder
    weights, original = answers / "model.safetensors", (answers / "model.safetensors").read_bytes()
    changed = load_file(weights)
    changed["score.weight"] = changed["score.weight"] + 1
    save_file(changed, weights, {"format": "pt"})
    try:
        assert plan_job(artifacts, recipe).folder != before
    finally:
        weights.write_bytes(original)
    assert plan_job(artifacts, recipe).folder == before


def test_a_model_that_cannot_be_loaded_ends_a_training_before_its_first_step(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    for file in answers.iterdir():
        (tmp_path / "torn" / file.name).write_bytes(file.read_bytes()[: 500 if file.suffix == ".safetensors" else None])
    objective = with_model(ROUNDS, tmp_path / "torn")
    artifacts, recipe = prompts.tokenized(tmp_path / "project", prompts.recipe(objective, SHORT))
    with pytest.raises(ModelError, match=r"torn: model\.safetensors is no"):
        in_process.trainer_of(plan_job(artifacts, recipe))
