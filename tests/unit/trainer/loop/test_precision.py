"""Number formats, gradient checkpointing, compiled models and determinism."""

from __future__ import annotations

import json
import os
from collections import Counter
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from params import RecipeError
from tests.support.in_process import At, job, losses, trained, trainer_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PLAIN = {"training.max_steps": 4, "training.eval_steps": 4}


def formats(trainer):
    """Count the output formats of the model's linear layers in training."""
    found = Counter()
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, _, out: found.update([out.dtype] if module.training else []))
    return found


def test_bf16_computes_in_bf16_and_keeps_weights_in_fp32(tmp_path):
    full = losses(trained(job(tmp_path / "full", PLAIN)))
    trainer = trainer_of(job(tmp_path / "bf16", PLAIN | {"training.precision": "bf16"}))
    found = formats(trainer)
    trainer.train()
    assert set(found) == {torch.bfloat16}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    (folder,) = (tmp_path / "bf16" / ".scratch" / "tiny" / "checkpoints").iterdir()
    saved = load_file(folder / "checkpoint-4" / "model.safetensors")
    assert {t.dtype for t in saved.values()} == {torch.float32}
    assert losses(trainer) == pytest.approx(full, rel=0.01)
    assert losses(trainer) != full


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.precision": "fp16"}, r"training.precision: fp16 .* needs a GPU.* use bf16, which CPUs can"),
        ({"training.arguments": {"use_liger_kernel": True}}, r"use_liger_kernel: Liger's kernels need a GPU.*; remove"),
        ({"training.arguments": {"tf32": True}}, r"tf32: .* needs a GPU.*; remove it, or train on a GPU"),
    ],
    ids=["fp16", "liger", "tf32"],
)
def test_gpu_settings_are_refused_without_a_gpu(tmp_path, changes, message):
    with pytest.raises(RecipeError, match=message):
        trainer_of(job(tmp_path, changes))


@needs_gpu
def test_fp16_scales_gradients(tmp_path):
    trainer = trainer_of(job(tmp_path, PLAIN | {"training.precision": "fp16"}))
    found = formats(trainer)
    trainer.train()
    assert set(found) == {torch.float16}
    assert trainer.accelerator.scaler.get_scale() > 1
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


@needs_gpu
def test_liger_kernels_replace_the_models_modules(tmp_path):
    pytest.importorskip("liger_kernel")
    plain = losses(trained(job(tmp_path / "plain", PLAIN)))
    trainer = trained(job(tmp_path / "liger", PLAIN | {"training.arguments": {"use_liger_kernel": True}}))
    assert any("Liger" in repr(module) for module in trainer.model.modules())
    assert losses(trainer) == pytest.approx(plain, rel=1e-2)


@needs_gpu
def test_tf32_is_enabled(tmp_path):
    trainer_of(job(tmp_path, {"training.arguments": {"tf32": True}}))
    assert (
        torch.backends.cuda.matmul.fp32_precision == "tf32"
    )  # the old attribute cannot be read after the new one was set


def layer_passes(tmp_path, changes):
    """How often each layer ran forward in one step of two micro-batches, and the losses."""
    trainer = trainer_of(job(tmp_path, PLAIN | {"training.max_steps": 1} | changes))
    passes = Counter()
    for i, layer in enumerate(trainer.model.model.layers):
        attention = layer.self_attn
        attention.register_forward_hook(lambda module, *_, i=i: passes.update([i] if module.training else []))
    trainer.train()
    return dict(passes), losses(trainer)


def test_gradient_checkpointing_recomputes_layers_with_the_same_loss(tmp_path):
    """The backward pass runs a layer again, with the same dropout masks."""
    plain = layer_passes(tmp_path / "plain", {})
    assert plain[0] == {0: 2, 1: 2}
    recomputed = layer_passes(tmp_path / "all", {"training.gradient_checkpointing": True})
    assert recomputed == ({0: 4, 1: 4}, plain[1])
    kwargs = {"training.arguments": {"activation_checkpointing_kwargs": {"every_n_layers": 2}}}
    some = layer_passes(tmp_path / "some", {"training.gradient_checkpointing": True} | kwargs)
    assert some == ({0: 4, 1: 2}, plain[1])


def test_full_determinism_refuses_nondeterministic_operations(tmp_path):
    refused = []

    def use(**_):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1), accumulate=False)
        refused.append(True)

    with mock.patch.dict(os.environ):
        try:
            trained(job(tmp_path, PLAIN | {"training.arguments": {"full_determinism": True}}), At("on_step_end", use))
        finally:
            torch.use_deterministic_algorithms(False)
    assert len(refused) == 4


@pytest.mark.slow
def test_compiled_model_keeps_weight_names_and_resumes(tmp_path):
    from torch._dynamo.utils import counters

    arguments = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    changes = PLAIN | {"training.arguments": arguments, "training.save_steps": 2}
    counters.clear()
    whole = trained(job(tmp_path / "whole", changes))
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    first = job(tmp_path / "parts", changes, stop_at_step=2)
    trained(first)
    saved = load_file(first.folder / "checkpoint-2" / "model.safetensors")
    assert not [name for name in saved if "_orig_mod" in name]
    update = {"checkpoint": first.folder / "checkpoint-2", "stop_at_step": None}
    rest = trained(first.model_copy(update=update))
    assert losses(rest) == losses(whole)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name
    best = json.loads(next(first.folder.glob("best-*/best.json")).read_text())
    assert best["step"] == 4
    plain = losses(trained(job(tmp_path / "plain", PLAIN)))
    assert losses(whole) == pytest.approx(plain, rel=1e-3)
