"""Models of next tokens read backwards only: encoders become decoders, and one forward pass proves it of every model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from params import ModelError
from params.schema import Model, ObjectiveChoice
from tests.support import in_process
from tests.support.zoo.architectures import ARCHITECTURES
from tests.support.zoo.tokenizers_of_kinds import KINDS
from trainer import IterativeSFTTrainer, objectives
from trainer.model.causality import check_reads_backwards, find_what_reads_ahead
from trainer.model.network import build_model_to_train, load_trained_model, write_merged_and_adapter

ENCODERS = ("bert", "roberta", "electra", "camembert", "ernie", "roformer")
QUICK = ("gpt2", "opt", "llama", "gemma3_text", "mixtral", "mamba", "bloom")


def parts(tokenizer: Any, name: str = "causal_lm") -> dict[str, Any]:
    objective = objectives.build_objective(ObjectiveChoice(name=name))
    return {"objective": objective, "state": {}, "tokenizer": tokenizer, "seed": 1}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("bert", "roberta") else pytest.mark.slow) for kind in ENCODERS]
)
def test_an_encoder_becomes_a_decoder(kind: str, tmp_path: Path) -> None:
    """Whether it is new or trained, in full or by an adapter; its release is one, too."""
    one, tokenizer = ARCHITECTURES[kind], KINDS[ARCHITECTURES[kind].tokenizer]()
    folder = one.write(tmp_path / "base", encoder_class="AutoModelForMaskedLM")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert find_what_reads_ahead(base)
    with pytest.raises(ModelError, match=rf"this {kind} model cannot learn next tokens: other tokens behind"):
        check_reads_backwards(base)
    found = build_model_to_train(Model(pretrained=str(folder)), **parts(tokenizer, "dpo"))
    new = build_model_to_train(Model(config={"model_type": kind, **one.config}), **parts(tokenizer))
    for network in (found, new):
        assert not find_what_reads_ahead(network)
    found.save_pretrained(tmp_path / "release")
    assert not find_what_reads_ahead(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "release"))
    if kind == "bert":
        model = Model.model_validate({"pretrained": str(folder), "lora": {"r": 2}})
        adapted = build_model_to_train(model, **parts(tokenizer))
        assert not find_what_reads_ahead(adapted)
        adapted.save_pretrained(tmp_path / "trained")
        forms = tmp_path / "merged", tmp_path / "adapter"
        write_merged_and_adapter(tmp_path / "trained", *forms, model, **parts(tokenizer))
        for form in forms:
            network = load_trained_model(form, transformers.AutoModelForCausalLM)
            assert not find_what_reads_ahead(network), form.name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name, one in ARCHITECTURES.items()
        if one.kind == "decoder"
    ],
)
def test_no_later_token_moves_an_earlier_logit(name: str) -> None:
    one, tokenizer = ARCHITECTURES[name], KINDS[ARCHITECTURES[name].tokenizer]()
    network = build_model_to_train(Model(config={"model_type": name, **one.config}), **parts(tokenizer)).train()
    state = torch.get_rng_state()
    assert not find_what_reads_ahead(network)
    assert network.training
    assert torch.equal(state, torch.get_rng_state()), "what is drawn in training stays the same"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_a_later_token_moves_is_found_in_coarse_weights_too(dtype: torch.dtype) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    for is_decoder in (True, False):
        network = transformers.BertLMHeadModel(
            transformers.BertConfig(vocab_size=200, initializer_range=0.5, is_decoder=is_decoder, **sizes)
        )
        assert bool(find_what_reads_ahead(network.to(dtype))) != is_decoder


def test_a_training_of_a_model_that_reads_ahead_does_not_begin(tmp_path: Path) -> None:
    config = {"model_type": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    with pytest.raises(ModelError, match="this xlnet model cannot learn next tokens"):
        in_process.trainer_of(in_process.job(tmp_path, {"model.config": config}))


def test_a_script_cannot_train_a_model_that_reads_ahead(tmp_path: Path) -> None:
    one, tokenizer = ARCHITECTURES["roberta"], KINDS["roberta"]()
    base = transformers.AutoModelForCausalLM.from_pretrained(one.write(tmp_path, encoder_class="AutoModelForMaskedLM"))
    with pytest.raises(ValueError, match="this roberta cannot learn next tokens"):
        IterativeSFTTrainer(base, processing_class=tokenizer)
