"""Replay and the pull back to the start, in trainings: exact on resume and on several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from params import RecipeError
from params.foundation.artifacts import Artifacts
from tasks.stage_run import stage_arguments_from_recipe
from tasks.tokenization.stage import tokenize
from tasks.training.stage import train
from tests.support import in_process, releases, tiny, tiny_releases
from tests.support.starts import pin
from tests.support.training import ElasticTraining
from trainer.conflicts import find_continual_conflicts
from trainer.data.tokens import read_split, read_tokenizer
from trainer.job import Job
from trainer.loop.replay import steps_of
from trainer.loop.stay_close import StartWeights
from trainer.objectives import build_objective

KNOWN = range(0, 240, 3)
GOING_ON = {"model.start": "champion", "training.replay": {"known": 0.25}}


class Started(ElasticTraining):
    """A training that starts from a published model, which has learned from every third row."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, {})
        releases.learn(self.artifacts, self.recipe, 2)
        pin(self.artifacts, self.artifacts.model, KNOWN)
        content = tiny.changed(tiny.recipe(), {**_changes_of(self.recipe), **GOING_ON})
        self.recipe = tiny.load(tiny.write(self.artifacts.recipe_path, content))


def _changes_of(recipe: Any) -> dict[str, Any]:
    kept = {"training": ("max_steps", "save_steps"), "launch": ("micro_batch_size", "dataloader_workers")}
    found = {
        f"{section}.{key}": getattr(getattr(recipe, section), key) for section, keys in kept.items() for key in keys
    }
    return {**found, "objective.packing": False, "model.config.attention_dropout": 0.0}


def test_replay_is_exact_on_resume_and_on_other_processes(tmp_path: Path) -> None:
    whole, elastic = Started(tmp_path / "whole"), Started(tmp_path / "elastic")
    whole.start()
    elastic.start(until=3)
    elastic.start(until=6)
    elastic.start()
    for name in ("model.safetensors", "optimizer.pt", "position.json"):
        assert (whole.checkpoint / name).read_bytes() == (elastic.checkpoint / name).read_bytes(), name
    expected = whole.steps()
    for at in expected.values():
        assert sum(row in KNOWN for row in at["rows"]) == 2
        assert len(set(at["rows"])) == 8
    two = Started(tmp_path / "two")
    two.start(processes=2)
    assert {step: at["rows"] for step, at in two.steps().items()} == {step: at["rows"] for step, at in expected.items()}
    for name, tensor in load_file(whole.checkpoint / "model.safetensors").items():
        assert torch.allclose(load_file(two.checkpoint / "model.safetensors")[name], tensor, atol=1e-5), name


def test_packed_sequences_hold_known_or_new_rows(tmp_path: Path) -> None:
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe())
    releases.learn(artifacts, recipe, 1)
    pin(artifacts, artifacts.model, KNOWN)
    recipe = tiny.load(tiny.write(artifacts.recipe_path, tiny.recipe(GOING_ON)))
    tokenize(artifacts, **stage_arguments_from_recipe("tokenize", recipe))
    texts = tiny.sentences(240)
    read, tokenizer = read_split(artifacts.tokens, "train"), read_tokenizer(artifacts.tokens)
    known, new = ({f"number {i}." for i in range(240) if (i in KNOWN) is kind} for kind in (True, False))
    found = 0
    for sequence, row in zip((read[i] for i in range(len(read))), read.row_ids(), strict=True):
        text = tokenizer.decode(sequence["input_ids"])
        ends = {f"number {part.split('.')[0]}." for part in text.split("number ")[1:] if "." in part}
        found += len(ends)
        assert ends <= (known if row in KNOWN else new), text
    assert found > len(texts) / 2


def test_penalty_is_that_of_the_formula() -> None:
    """Gradients of the loss with the penalty written out, and added once."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    pulled = StartWeights(model, 0.3, {"1.weight", "1.bias"})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    loss = model(torch.randn(5, 3)).square().mean()
    first = [*model.parameters()][:2]
    penalty = 0.15 * sum((now - then).square().sum() for now, then in zip(first, start, strict=False))
    expected = torch.autograd.grad(loss + penalty, [*model.parameters()], retain_graph=True)
    loss.backward()
    pulled.add_to_gradients()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], [*expected])


def test_weights_stay_close_and_the_split_of_a_global_batch_does_not_matter(tmp_path: Path) -> None:
    usual = {"objective.packing": False, "model.config.attention_dropout": 0.0, "training.max_steps": 4}
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe(usual), in_process.FEW)
    releases.learn(artifacts, recipe, 2)
    start = load_file(pin(artifacts, artifacts.model) / "model.safetensors")

    def distance(pull: float | None, micro_batch: int) -> float:
        """How far the weights move."""
        own = {"model.start": "champion", "training.stay_close": pull, "launch.micro_batch_size": micro_batch}
        made = tiny.load(tiny.write(artifacts.recipe_path, tiny.recipe({**usual, **own})))
        now = in_process.trained(Job.of(made, artifacts)).model.state_dict()
        return float(sum((now[name] - one).square().sum().item() for name, one in start.items())) ** 0.5

    free, pulled = distance(None, 8), distance(10.0, 8)
    assert 0 < pulled < free / 1.5
    assert distance(10.0, 2) == pytest.approx(pulled, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training.replay": {}}, "the training does not start from it"),
        (
            {"training.replay": {}, "model.start": "champion", "training.global_batch_size": 1},
            "both a new and a known row",
        ),
        ({"training.resume": "a/checkpoint-3", "model.start": "best"}, "a checkpoint belongs to one start"),
        ({"training.stay_close": 0.1}, "starts from random weights"),
        (
            {"training.stay_close": 0.1, "model.start": "best", "training.optimizer": "lomo"},
            "before their whole gradient",
        ),
        ({"training.stay_close": 0.1, "model.start": "best", "model.lora": {}}, "the weights of the start do not move"),
        (
            {"training.stay_close": 0.1, "model.start": "best", "launch.accelerate_config": "fsdp.yaml"},
            "no process has the whole weights",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    recipe = tiny.load(tiny.write(tmp_path / "params" / "tiny.yaml", tiny.recipe(changes)))
    parts = (build_objective(recipe.objective), recipe.model, recipe.training, recipe.launch)
    (problem,) = find_continual_conflicts(*parts)
    assert told in problem.what


@pytest.mark.parametrize(("kind", "is_refused"), [("dpo", True), ("kto", True), ("grpo", False), ("reward", False)])
def test_two_starts_are_not_compared_by_metrics_that_depend_on_the_start(
    tmp_path: Path, kind: str, is_refused: bool
) -> None:
    content = tiny.recipe({"model.start": "best"}, **tiny_releases.KINDS[kind][1])
    recipe = tiny.load(tiny.write(tmp_path / "params" / "tiny.yaml", content))
    if is_refused:
        with pytest.raises(RecipeError, match="those of two starts say nothing of each other"):
            train(Artifacts("tiny", tmp_path), **stage_arguments_from_recipe("train", recipe))
    else:
        parts = (build_objective(recipe.objective), recipe.model, recipe.training, recipe.launch)
        assert not [*find_continual_conflicts(*parts)]


def test_replay_and_streaming_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="`streaming` reads them in order"):
        tiny.load(tiny.write(tmp_path / "tiny.yaml", tiny.recipe({"training.replay": {}, "training.streaming": True})))


def test_steps_follow_from_the_new_rows(tmp_path: Path) -> None:
    artifacts, recipe = tiny.tokenized(tmp_path, tiny.recipe({"objective.packing": False}))
    releases.learn(artifacts, recipe, 0)
    pin(artifacts, artifacts.model, range(200))  # 40 of 240 rows are new
    changes = {"objective.packing": False, "training.max_steps": ..., "training.epochs": 3.0}
    recipe = tiny.load(tiny.write(artifacts.recipe_path, tiny.changed(tiny.recipe(GOING_ON), changes)))
    assert steps_of(Job.of(recipe, artifacts)) == 3 * (40 // 6)
    pin(artifacts, artifacts.model, range(240))  # none is
    assert steps_of(Job.of(recipe, artifacts)) == 3 * (240 // 8)
