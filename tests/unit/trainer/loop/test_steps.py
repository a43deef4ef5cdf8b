"""An optimizer step: schedule, betas, clipping, weight decay, label smoothing and NEFTune."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from params import DivergedError
from params.schema import Launch, Training
from tests.support import tiny
from tests.support.in_process import At, job, losses, trained, trainer_of
from trainer.loop.arguments import find_launch_conflicts

ONE = {
    "training.max_steps": 1,
    "training.eval_steps": 1,
    "training.warmup_steps": 0,
    "training.lr_scheduler": "constant",
}
RATE = 1e-2


def rates(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


def test_learning_rate_follows_the_schedule(tmp_path):
    cosine = trained(job(tmp_path / "cosine", {"training.lr_scheduler": "cosine"}))
    warm = [0.0, 0.5]
    falling = [0.5 * (1 + math.cos(math.pi * i / 10)) for i in range(10)]
    assert rates(cosine) == pytest.approx([RATE * share for share in warm + falling])
    changes = {"training.lr_scheduler": "cosine_with_min_lr"}
    floor = trained(
        job(tmp_path / "floor", changes | {"training.arguments": {"lr_scheduler_kwargs": {"min_lr": 4e-3}}})
    )
    assert rates(floor) == pytest.approx([RATE * s for s in warm] + [4e-3 + 6e-3 * share for share in falling])


def test_adam_betas_and_epsilon_are_applied(tmp_path):
    """After one step the moments are (1 - beta1) g and (1 - beta2) g^2; with a huge epsilon no weight moves."""
    arguments = {"adam_beta1": 0.6, "adam_beta2": 0.8, "adam_epsilon": 1e6}
    trainer = trainer_of(job(tmp_path, ONE | {"training.arguments": arguments}))
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    moments = [s for s in trainer.optimizer.state.values() if s["exp_avg"].abs().max() > 0]
    assert moments
    for state in moments:
        gradient = state["exp_avg"] / (1 - 0.6)
        torch.testing.assert_close(state["exp_avg_sq"], (1 - 0.8) * gradient**2, rtol=1e-4, atol=1e-12)
    for name, value in trainer.model.state_dict().items():
        assert (value - before[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_gradient_clipping(tmp_path, max_norm):
    norms = []

    def measure(model, **_):
        norms.append(math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters())))

    trainer = trained(job(tmp_path, ONE | {"training.max_grad_norm": max_norm}), At("on_pre_optimizer_step", measure))
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert logged[0] > 0.5, "the logged norm is the one before clipping"
    assert norms == pytest.approx([max_norm or logged[0]], rel=1e-3)


def test_a_loss_that_is_not_finite_ends_the_training_at_its_step_although_the_gradient_is(tmp_path, monkeypatch):
    """All processes take the branch that the gradient decides, and none saves what the optimizer made of it."""
    trainer = trainer_of(
        job(tmp_path, {"training.save_steps": 1}), At("on_optimizer_step", lambda **_: steps.append(1))
    )
    compute, steps = trainer.compute_loss, []
    monkeypatch.setattr(
        trainer, "compute_loss", lambda *a, **k: compute(*a, **k) + (math.nan if len(steps) == 2 else 0)
    )
    with pytest.raises(
        DivergedError, match=r"(?s)the loss is nan at step 3, rows .*the last checkpoint is checkpoint-2"
    ):
        trainer.train()
    assert len(steps) == 3


def test_weight_decay_excludes_norms(tmp_path):
    plain = trained(job(tmp_path / "plain", ONE)).model.state_dict()
    trainer = trainer_of(job(tmp_path / "decay", ONE | {"training.weight_decay": 0.5}))
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    for name, value in trainer.model.state_dict().items():
        decay = 0.0 if "norm" in name else 0.5
        torch.testing.assert_close(value, plain[name] - RATE * decay * before[name], rtol=1e-4, atol=1e-6)


SOFT = ONE | {"model.config.attention_dropout": 0.0, "training.arguments": {"label_smoothing_factor": 0.2}}


@pytest.mark.parametrize("objective", ["causal_lm", "sequence_classification"])
def test_label_smoothing_applies_to_training_only(tmp_path, objective):
    sections = tiny.CLASSES if objective == "sequence_classification" else {}
    changes = {**SOFT}
    if sections:
        del changes["model.config.attention_dropout"]
        changes |= {"model.config.attention_probs_dropout_prob": 0.0, "model.config.hidden_dropout_prob": 0.0}
    trainer = trainer_of(job(tmp_path / "soft", changes, **sections))
    model, batches = copy.deepcopy(trainer.model), []
    compute_loss = trainer.compute_loss

    def record_batch(model, inputs, **kwargs):
        batches.extend([dict(inputs)] if model.training else [])
        return compute_loss(model, inputs, **kwargs)

    trainer.compute_loss = record_batch
    trainer.train()
    assert len(batches) == 2
    total, count = 0.0, 0
    for batch in batches:
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model.train()(**batch).logits
        if labels.dim() == 2:
            logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        valid = labels != -100
        total += float(F.cross_entropy(logits[valid], labels[valid], label_smoothing=0.2, reduction="sum"))
        count += int(valid.sum())
    assert losses(trainer)[1] == pytest.approx(total / count, rel=1e-5)
    plain = trained(
        job(tmp_path / "plain", {k: v for k, v in changes.items() if k != "training.arguments"}, **sections)
    )
    first = [
        e["eval_loss"] for t in (trainer, plain) for e in t.state.log_history if "eval_loss" in e and e["step"] == 0
    ]
    assert first[0] == first[1]
    assert losses(plain)[1] != pytest.approx(losses(trainer)[1], rel=1e-5)


def test_label_smoothing_with_a_custom_loss_is_refused():
    fields = {"arguments": {"label_smoothing_factor": 0.1}, "loss": {"name": "trainer.losses:cross_entropy"}}
    training = Training.model_validate(tiny.RECIPE["training"] | fields)
    (found,) = find_launch_conflicts(training, Launch(micro_batch_size=4))
    assert "does nothing: training.loss replaces the loss" in found.what


def test_neftune_adds_noise_in_training_only(tmp_path):
    """Uniform noise of at most alpha / sqrt(tokens x width), https://arxiv.org/abs/2310.05914."""
    alpha, seen = 4.0, {True: [], False: []}

    def add_hook(model, **_):
        def compare(module, ids, out):
            noise = (out - F.embedding(ids[0], module.weight)).detach().abs().max()
            seen[module.training].append(float(noise) * math.sqrt(out.size(1) * out.size(2)) / alpha)

        model.get_input_embeddings().register_forward_hook(compare)

    trainer = trained(
        job(tmp_path, ONE | {"training.arguments": {"neftune_noise_alpha": alpha}}), At("on_train_begin", add_hook)
    )
    assert len(seen[True]) == 2
    assert all(0.9 < noise <= 1.0 + 1e-4 for noise in seen[True])
    assert set(seen[False]) == {0.0}
    trainer.model.train()(input_ids=torch.tensor([[1, 2, 3]]))
    assert seen[True][-1] == 0.0, "no noise after training"


def test_device_cache_is_emptied_every_n_steps(tmp_path, monkeypatch):
    emptied = []
    monkeypatch.setattr("transformers.trainer.clear_device_cache", lambda: emptied.append(trainer.state.global_step))
    trainer = trainer_of(job(tmp_path, {"training.arguments": {"torch_empty_cache_steps": 5}}))
    trainer.train()
    assert emptied == [0, 0, 5, 5, 10, 10], "in both micro-batches of the step"
