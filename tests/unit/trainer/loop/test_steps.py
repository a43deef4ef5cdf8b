"""What an optimizer step is made of: schedule, betas, clipping, decay, smoothed labels, noise."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from params.schema import Launch, Training
from tests.support import tiny
from tests.support.in_process import At, job, losses, trained, trainer_of
from trainer.loop.arguments import conflicts

ONE = {
    "training.max_steps": 1,
    "training.eval_steps": 1,
    "training.warmup_steps": 0,
    "training.lr_scheduler": "constant",
}
RATE = 1e-2


def rates(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


def test_the_learning_rate_follows_the_schedule_and_its_arguments(tmp_path):
    cosine = trained(job(tmp_path / "cosine", {"training.lr_scheduler": "cosine"}))
    warm = [0.0, 0.5]
    falling = [0.5 * (1 + math.cos(math.pi * i / 10)) for i in range(10)]
    assert rates(cosine) == pytest.approx([RATE * share for share in warm + falling])
    changes = {"training.lr_scheduler": "cosine_with_min_lr"}
    floor = trained(
        job(tmp_path / "floor", changes | {"training.arguments": {"lr_scheduler_kwargs": {"min_lr": 4e-3}}})
    )
    assert rates(floor) == pytest.approx([RATE * s for s in warm] + [4e-3 + 6e-3 * share for share in falling])


def test_betas_and_epsilon_are_those_of_the_step(tmp_path):
    """After one step the moments are (1 - beta1) g and (1 - beta2) g^2; so large an epsilon lets nothing move."""
    given = {"adam_beta1": 0.6, "adam_beta2": 0.8, "adam_epsilon": 1e6}
    trainer = trainer_of(job(tmp_path, ONE | {"training.arguments": given}))
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    moments = [s for s in trainer.optimizer.state.values() if s["exp_avg"].abs().max() > 0]
    assert moments
    for state in moments:
        gradient = state["exp_avg"] / (1 - 0.6)
        torch.testing.assert_close(state["exp_avg_sq"], (1 - 0.8) * gradient**2, rtol=1e-4, atol=1e-12)
    for name, value in trainer.model.state_dict().items():
        assert (value - before[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize("most", [0.0, 0.05])
def test_gradients_are_clipped_to_a_norm_or_left_alone(tmp_path, most):
    norms = []

    def measure(model, **_):
        norms.append(math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters())))

    trainer = trained(job(tmp_path, ONE | {"training.max_grad_norm": most}), At("on_pre_optimizer_step", measure))
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert logged[0] > 0.5, "the norm before clipping is logged, whether it is clipped or not"
    assert norms == pytest.approx([most or logged[0]], rel=1e-3)


def test_weights_decay_and_norms_do_not(tmp_path):
    plain = trained(job(tmp_path / "plain", ONE)).model.state_dict()
    trainer = trainer_of(job(tmp_path / "decay", ONE | {"training.weight_decay": 0.5}))
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    for name, value in trainer.model.state_dict().items():
        decay = 0.0 if "norm" in name else 0.5
        torch.testing.assert_close(value, plain[name] - RATE * decay * before[name], rtol=1e-4, atol=1e-6)


SOFT = ONE | {"model.config.attention_dropout": 0.0, "training.arguments": {"label_smoothing_factor": 0.2}}


@pytest.mark.parametrize("objective", ["causal_lm", "sequence_classification"])
def test_smoothed_labels_are_learned_and_figures_are_of_the_true_ones(tmp_path, objective):
    sections = tiny.CLASSES if objective == "sequence_classification" else {}
    changes = {**SOFT}
    if sections:
        del changes["model.config.attention_dropout"]
        changes |= {"model.config.attention_probs_dropout_prob": 0.0, "model.config.hidden_dropout_prob": 0.0}
    trainer = trainer_of(job(tmp_path / "soft", changes, **sections))
    model, batches = copy.deepcopy(trainer.model), []
    own = trainer.compute_loss

    def keep(model, inputs, **kwargs):
        batches.extend([dict(inputs)] if model.training else [])
        return own(model, inputs, **kwargs)

    trainer.compute_loss = keep
    trainer.train()
    assert len(batches) == 2
    total, count = 0.0, 0
    for batch in batches:
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model.train()(**batch).logits
        if labels.dim() == 2:
            logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        kept = labels != -100
        total += float(F.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2, reduction="sum"))
        count += int(kept.sum())
    assert losses(trainer)[1] == pytest.approx(total / count, rel=1e-5)
    plain = trained(
        job(tmp_path / "plain", {k: v for k, v in changes.items() if k != "training.arguments"}, **sections)
    )
    first = [
        e["eval_loss"] for t in (trainer, plain) for e in t.state.log_history if "eval_loss" in e and e["step"] == 0
    ]
    assert first[0] == first[1]
    assert losses(plain)[1] != pytest.approx(losses(trainer)[1], rel=1e-3)


def test_smoothed_labels_beside_a_loss_of_ones_own_are_refused():
    given = {"arguments": {"label_smoothing_factor": 0.1}, "loss": {"name": "trainer.losses:cross_entropy"}}
    training = Training.model_validate(tiny.RECIPE["training"] | given)
    (found,) = conflicts(training, Launch(micro_batch_size=4))
    assert "does nothing: training.loss replaces the loss" in found.what


def test_neftune_adds_noise_to_embeddings_in_training_only(tmp_path):
    """Uniform noise of at most alpha / sqrt(tokens x width), https://arxiv.org/abs/2310.05914."""
    alpha, seen = 4.0, {True: [], False: []}

    def listen(model, **_):
        def compare(module, ids, out):
            noise = (out - F.embedding(ids[0], module.weight)).detach().abs().max()
            seen[module.training].append(float(noise) * math.sqrt(out.size(1) * out.size(2)) / alpha)

        model.get_input_embeddings().register_forward_hook(compare)

    trainer = trained(
        job(tmp_path, ONE | {"training.arguments": {"neftune_noise_alpha": alpha}}), At("on_train_begin", listen)
    )
    assert len(seen[True]) == 2
    assert all(0.9 < noise <= 1.0 + 1e-4 for noise in seen[True])
    assert set(seen[False]) == {0.0}
    trainer.model.train()(input_ids=torch.tensor([[1, 2, 3]]))
    assert seen[True][-1] == 0.0, "it is gone when training is over"


def test_the_devices_cache_is_emptied_every_so_many_steps(tmp_path, monkeypatch):
    emptied = []
    monkeypatch.setattr("transformers.trainer.clear_device_cache", lambda: emptied.append(trainer.state.global_step))
    trainer = trainer_of(job(tmp_path, {"training.arguments": {"torch_empty_cache_steps": 5}}))
    trainer.train()
    assert emptied == [0, 0, 5, 5, 10, 10], "at both micro-batches of the step"
