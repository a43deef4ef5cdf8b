"""The loss of next tokens is ours, whatever the model's own is: shifted, a sum over the global batch, auxiliary terms a mean of micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from params.schema import ObjectiveChoice
from trainer import objectives
from trainer.objectives.bases.loss import MicroBatchShare

BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
BART |= {"dropout": 0.0, "attention_dropout": 0.0}
LLAMA = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA |= {"num_key_value_heads": 2}
ROUTED = {**LLAMA, "output_router_logits": True, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
BERT = {**{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}, "is_decoder": True}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
UNSHIFTED = ("bart", "pegasus", "mbart", "marian", "blenderbot", "plbart", "mvp", "bigbird_pegasus", "trocr")
"""Decoders whose own loss compares a token with itself, as a mean over the micro-batch."""
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS: dict[str, dict[str, Any]] = {**dict.fromkeys(UNSHIFTED, BART), "gpt2": GPT2, "llama": LLAMA, "bert": BERT}
EXPERTS = {"mixtral": ROUTED, "qwen3_moe": ROUTED | {"moe_intermediate_size": 16, "head_dim": 8}}
SIZES = (9, 4, 12, 6)
"""Tokens of the rows."""


def decoder(name: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    made = AutoConfig.for_model(name, vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2, **config)
    return AutoModelForCausalLM.from_config(made).train()


def batch() -> dict[str, torch.Tensor]:
    """Rows of several lengths, whose first tokens are a prompt without a loss."""
    ids, labels = torch.zeros(len(SIZES), max(SIZES), dtype=torch.long), torch.full((len(SIZES), max(SIZES)), -100)
    draw = torch.Generator().manual_seed(3)
    for row, size in enumerate(SIZES):
        ids[row, :size] = torch.randint(3, 50, (size,), generator=draw)
        labels[row, row:size] = ids[row, row:size]
    mask = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


class Fused(torch.nn.Module):
    """A decoder that computes its logits and their loss by one kernel, as Liger's do: asked for a loss, it keeps no logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module = model

    def forward(self, labels: Any = None, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        outputs = self.module(**inputs)
        if labels is None:
            return outputs
        logits, told = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = functional.cross_entropy(logits, told, reduction="sum") / num_items_in_batch
        auxiliary = getattr(outputs, "aux_loss", None)
        outputs.loss = loss if auxiliary is None else loss + self.module.router_aux_loss_coef * auxiliary
        outputs.logits = None
        return outputs


def learned(
    model: Any, size: int, processes: int = 1, smoothing: float = 0.0, *, is_fused: bool = False
) -> tuple[float, torch.Tensor]:
    """The loss of the batch and its gradient, in micro-batches of `size` rows, shared by processes whose gradients are averaged."""
    objective, whole, count = objectives.build_objective(ObjectiveChoice(name="sft")), batch(), len(SIZES) // size
    share = MicroBatchShare(
        objective.loss_items(whole).float(), count // processes, processes, smoothing, is_fused=is_fused
    )
    model.zero_grad()
    total = 0.0
    for start in range(0, len(SIZES), size):
        part = {name: value[start : start + size] for name, value in whole.items()}
        loss = objective.batch_loss(model, part, share).loss / processes
        loss.backward()
        total += loss.item()
    return total, torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


def expected(model: Any, smoothing: float = 0.0) -> tuple[float, torch.Tensor]:
    """The mean over predicted tokens, by torch's own cross-entropy of shifted labels."""
    whole = batch()
    logits = model(input_ids=whole["input_ids"], attention_mask=whole["attention_mask"]).logits[:, :-1]
    labels = whole["labels"][:, 1:]
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    model.zero_grad()
    loss.backward()
    return loss.item(), torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


@pytest.mark.parametrize(("name", "smoothing"), [*((name, 0.0) for name in MODELS), ("llama", 0.1), ("bart", 0.1)])
def test_loss_and_gradient_are_those_of_shifted_labels(name: str, smoothing: float) -> None:
    model = decoder(name, MODELS[name])
    loss, gradient = expected(model, smoothing)
    for size, processes in ((4, 1), (2, 1), (1, 1), (1, 2)):
        own_loss, own_gradient = learned(model, size, processes, smoothing)
        assert own_loss == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(own_gradient, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", EXPERTS)
def test_the_auxiliary_loss_is_a_mean_over_micro_batches_and_processes(name: str) -> None:
    model = decoder(name, EXPERTS[name] | {"router_aux_loss_coef": 2.0})
    whole = batch()
    loss, _ = expected(model)
    for size, processes in ((4, 1), (2, 1), (1, 1), (1, 2)):
        parts = [
            {key: whole[key][start : start + size] for key in ("input_ids", "attention_mask")}
            for start in range(0, len(SIZES), size)
        ]
        auxiliary = torch.stack([model(**part).aux_loss for part in parts]).mean().item()
        assert auxiliary > 0.5
        assert learned(model, size, processes)[0] == pytest.approx(loss + 2.0 * auxiliary, rel=1e-5)
    model.config.output_router_logits = False
    assert learned(model, 2)[0] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", EXPERTS)
def test_the_weight_of_the_auxiliary_loss_is_found_in_a_wrapped_model(name: str) -> None:
    model = decoder(name, EXPERTS[name] | {"router_aux_loss_coef": 2.0})
    loss, gradient = learned(model, 2)
    wrapped_loss, wrapped_gradient = learned(torch.nn.DataParallel(model), 2)
    assert wrapped_loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(wrapped_gradient, gradient)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ["llama", *EXPERTS])
def test_a_kernel_without_logits_gives_the_same_loss(name: str, smoothing: float) -> None:
    """It smooths no labels, so then it is not asked for a loss."""
    model = decoder(name, EXPERTS[name] | {"router_aux_loss_coef": 2.0} if name in EXPERTS else MODELS[name])
    for size, processes in ((4, 1), (2, 1), (1, 2)):
        loss, gradient = learned(model, size, processes, smoothing)
        fused_loss, fused_gradient = learned(Fused(model), size, processes, smoothing, is_fused=True)
        assert fused_loss == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(fused_gradient, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bits_are_those_of_a_models_own_loss_that_shifts(name: str) -> None:
    model, whole = decoder(name, MODELS[name]), batch()
    model.loss_type = "ForCausalLM"
    _, own = learned(model, len(SIZES))
    items = (whole["labels"][:, 1:] != -100).sum()
    model.zero_grad()
    model(**whole, num_items_in_batch=items).loss.backward()
    theirs = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    assert torch.equal(own, theirs)
