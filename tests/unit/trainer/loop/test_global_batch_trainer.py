"""A loss of the whole global batch: its value and its gradient do not depend on the micro-batches, and are those of one batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from params.foundation.artifacts import Artifacts
from tasks.recipes.loading import load
from tasks.tokenization.stage import tokenize
from tests.support import in_process, new_objectives, tiny
from tests.support.training import plan_job
from trainer import job
from trainer.data.order import GlobalBatchShard
from trainer.loop.global_batch_trainer import GlobalBatchTrainer

SECTIONS = {"objective": {"name": "contrast"}, "model": tiny.CLASSES["model"]}
CHANGES = {
    "training.max_steps": 3,
    "training.eval_steps": 3,
    "training.save_steps": 3,
    "training.best_metric": "cosine",
}
NO_DROPOUT = {"model.config.hidden_dropout_prob": 0.0, "model.config.attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def _new_objectives(monkeypatch):
    monkeypatch.setattr(job, "run_identity", lambda *_: {})  # of files in trainer/objectives/
    with new_objectives.known():
        yield


def trainer_of(root, micro_batch, changes):
    content = tiny.recipe(CHANGES | changes | {"launch.micro_batch_size": micro_batch}, **SECTIONS)
    recipe, artifacts = load(tiny.write(root / "params" / "tiny.yaml", content)), Artifacts("tiny", root)
    splits = {}
    for seed, split in enumerate(("train", "validation", "test")):
        texts = tiny.sentences(32 if split == "train" else 8, seed)
        splits[split] = {"first": texts, "second": [f"{text.split()[1]} {i}" for i, text in enumerate(texts)]}
    tiny.write_rows(artifacts, **splits)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    return in_process.trainer_of(plan_job(artifacts, recipe))


def steps(trainer):
    trainer.train()
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]


def test_loss_and_gradient_are_those_of_one_batch_however_it_is_split(tmp_path):
    whole = trainer_of(tmp_path / "8", 8, NO_DROPOUT)
    expected = []
    compute = whole.compute_loss

    def at_once(model, inputs, **kwargs):
        loss = whole.objective.global_loss(whole.objective.embed(model, inputs), None)
        gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        norm = torch.stack([gradient.norm() for gradient in gradients if gradient is not None]).norm()
        expected.append((float(loss.detach()), float(norm)))
        return compute(model, inputs, **kwargs)

    whole.compute_loss = at_once
    found = [steps(whole), *(steps(trainer_of(tmp_path / str(size), size, NO_DROPOUT)) for size in (4, 1))]
    assert len(expected) == 3
    for parts in found:
        for one, other in zip(parts, expected, strict=True):
            assert one == pytest.approx(other, rel=2e-4)


def test_second_pass_has_the_dropout_of_the_first(tmp_path):
    trainer = trainer_of(tmp_path, 4, {"training.max_steps": 1})
    embed, found = trainer.objective.embed, []

    def noted(model, batch):
        found.append(embed(model, batch))
        return found.pop() if not model.training else found[-1]  # evaluations are none of this test's

    trainer.objective.embed = noted
    trainer.train()
    assert [one.requires_grad for one in found] == [False, False, True, True]
    for first, second in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(first, second.detach(), rtol=0, atol=0)
    assert not torch.equal(found[0], found[1])


def test_rows_of_all_processes_are_in_the_order_of_the_global_batch():
    shards = [GlobalBatchShard(micro_batch=2, accumulation=3, processes=2, process=process) for process in range(2)]
    own = [torch.tensor([[*shard.places(number)] for number in range(3)]) for shard in shards]
    gathered = SimpleNamespace(accelerator=SimpleNamespace(gather=lambda _: torch.stack(own)))
    for places in own:
        assert GlobalBatchTrainer._in_order(gathered, places).tolist() == list(range(12))
