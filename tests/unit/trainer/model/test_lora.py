"""LoRA adapters: only they are trained and saved; then they are merged, and written by themselves. Also on quantized models."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from params import ModelError
from params.foundation.installation import install_extra
from params.schema import Launch, Lora, Model, ObjectiveChoice
from tests.support import tiny
from tests.support.in_process import job, losses, trained, trainer_of
from tests.support.pretrained import write_model
from tests.support.training import curve, run_train
from trainer import objectives
from trainer.checkpoints.sealed import find_best_weights
from trainer.data import tokens
from trainer.model import network

LORA = {"r": 4, "alpha": 8}
SFT = {"name": "sft", "prompt_column": "text", "completion_column": "label", "packing": True}
STEPS = {"tokenization.max_length": 96, "training.max_steps": 6, "training.save_steps": 3, "training.eval_steps": 3}


def adapter_job(root, changes=None, **sections):
    """A job that trains adapters to give the second word of a sentence."""
    sections = {"objective": SFT} | sections
    return job(root, STEPS | {"training.global_batch_size": 4, "model.lora": LORA} | (changes or {}), **sections)


def untrained(job):
    return network.build_untrained_model(job.model, **parts(job))


def parts(job):
    """What builds a model, apart from the recipe's `model` section."""
    return {
        "objective": objectives.build_objective(job.objective),
        "state": tokens.read_objective_state(job.tokens),
        "tokenizer": tokens.read_tokenizer(job.tokens),
        "seed": job.seed,
    }


def written(trained, root, job):
    """The trained model in `root`/published, its adapters by themselves in `root`/adapter; its number of parameters."""
    return network.write_merged_and_adapter(trained, root / "published", root / "adapter", job.model, **parts(job))


CLASSES = tiny.CLASSES | {"training": tiny.RECIPE["training"]}


@pytest.mark.parametrize(
    ("sections", "auto_class", "head"),
    [
        ({"objective": SFT}, AutoModelForCausalLM, ()),
        (CLASSES, AutoModelForSequenceClassification, ("classifier.weight", "classifier.bias")),
    ],
    ids=["sft", "a head for classes"],
)
def test_adapters_are_trained_saved_and_merged_for_publishing(tmp_path, sections, auto_class, head):
    planned = adapter_job(tmp_path, {"training.learning_rate": 1e-2}, **sections)
    trainer = trained(planned)
    base, model = untrained(planned).state_dict(), trainer.model.eval()
    found = losses(trainer)
    assert found[max(found)] < found[1]

    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trainable
    assert all("lora_" in name or "modules_to_save" in name for name in trainable)
    frozen = {
        name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".original_module", ""): weight
        for name, weight in model.state_dict().items()
        if name not in trainable
    }
    assert frozen.keys() == base.keys()
    assert all(torch.equal(weight, base[name]) for name, weight in frozen.items()), "the base model is unchanged"

    best = find_best_weights(planned.folder, planned.direction)
    assert best.step == trainer.state.best_global_step
    whole = sum(weight.nbytes for weight in base.values())
    for folder in (best.folder, planned.folder / "checkpoint-6"):
        saved = load_file(folder / "adapter_model.safetensors")
        assert len(saved) == len(trainable)
        assert not list(folder.glob("model*.safetensors"))
        if not head:
            assert sum(weight.nbytes for weight in saved.values()) < whole / 4
    assert best.step == 6, "the loss falls, so the weights in memory are the best"

    parameters = written(best.folder, tmp_path, planned)
    published = auto_class.from_pretrained(tmp_path / "published", use_safetensors=True).eval()
    assert {path.name for path in (tmp_path / "published").iterdir()} <= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    assert parameters == sum(weight.numel() for weight in published.parameters())
    assert published.state_dict().keys() == base.keys(), "no adapter weights remain"
    objective = objectives.build_objective(planned.objective)
    rows = tokens.read_split(planned.tokens, "test")
    batch = objective.collate([rows[i] for i in range(4)], tokens.read_tokenizer(planned.tokens))
    batch.pop("labels")
    with torch.inference_mode():
        logits = published(**batch).logits
        torch.testing.assert_close(logits, model(**batch).logits, rtol=1e-4, atol=1e-5)
        assert (logits - untrained(planned).eval()(**batch).logits).abs().max() > 1e-2
    for name in head:
        assert not torch.equal(published.state_dict()[name], base[name]), "a new head is trained fully"


def test_adapters_by_themselves_name_their_base_model(tmp_path):
    """They and their base model are the merged model, and are written with the same bytes each time."""
    write_model(tmp_path / "base", "bert")
    planned = adapter_job(
        tmp_path, model={"pretrained": str(tmp_path / "base")}, **{k: CLASSES[k] for k in ("objective", "training")}
    )
    trained(planned)
    best = find_best_weights(planned.folder, planned.direction)
    written(best.folder, tmp_path, planned)
    adapter = tmp_path / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (planned.model.pretrained, None)
    assert config["target_modules"] == sorted(config["target_modules"])
    assert {"bert.pooler.dense", "classifier"} <= set(config["modules_to_save"]), "the base model has neither"
    together = network.load_trained_model(adapter, AutoModelForSequenceClassification)
    merged = network.load_trained_model(tmp_path / "published", AutoModelForSequenceClassification)
    assert together.config.id2label == merged.config.id2label
    weights = merged.state_dict()
    assert together.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in together.state_dict().items())
    first = {path.name: path.read_bytes() for path in adapter.iterdir()}
    for name in ("published", "adapter"):
        shutil.rmtree(tmp_path / name)
    written(best.folder, tmp_path, planned)
    assert {path.name: path.read_bytes() for path in adapter.iterdir()} == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "names no base model\n  fix: add `base_model_name_or_path`"),
        ("[]", "cannot be read"),
        ('{"peft_type": "LORA", "base_model_name_or_path": "no/such/model"}', "no/such/model: cannot be loaded"),
    ],
)
def test_adapters_that_cannot_be_loaded_are_named(tmp_path, content, message):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        network.load_trained_model(tmp_path, AutoModelForCausalLM)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_configuration_that_asks_for_another_library_is_an_error(tmp_path, key):
    base = write_model(tmp_path / "base", "llama")
    config = json.loads((base / "config.json").read_text()) | {key: "flash_attention_2"}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"base: cannot be loaded: (?s:.*)asks for no more libraries"):
        network.load_trained_model(base, AutoModelForCausalLM)


def test_adapters_without_the_head_of_the_objective_are_refused(tmp_path):
    planned = adapter_job(tmp_path, model={"pretrained": str(write_model(tmp_path / "base", "llama"))})
    trained(planned)
    best = find_best_weights(planned.folder, planned.direction)
    written(best.folder, tmp_path, planned)
    with pytest.raises(ModelError, match=r"neither the adapter nor its base model, .*, has score\.weight"):
        network.load_trained_model(tmp_path / "adapter", AutoModelForSequenceClassification)


@pytest.mark.slow
def test_two_processes_train_adapters_like_one(tmp_path):
    changes = STEPS | {"model.lora": LORA, "training.global_batch_size": 4, "model.config.attention_dropout": 0.0}
    found = []
    for number in (1, 2):
        sizes = {"launch.num_processes": number, "launch.micro_batch_size": 2}
        artifacts, recipe = tiny.tokenized(tmp_path / str(number), tiny.recipe(changes | sizes, objective=SFT))
        report = run_train(artifacts, recipe)
        found.append([row["loss"] for row in curve(artifacts, "train")])
        assert report.parameters == sum(w.numel() for w in load_file(artifacts.model / "model.safetensors").values())
        assert (artifacts.checkpoint / "adapter_model.safetensors").exists()
        assert not (artifacts.model / "adapter_config.json").exists()
    assert len(found[0]) == 6
    assert found[1] == pytest.approx(found[0], abs=1e-5)


def test_gradient_checkpointing_does_not_change_adapter_losses(tmp_path):
    plain = trained(adapter_job(tmp_path / "plain"))
    found = trained(adapter_job(tmp_path / "again", {"training.gradient_checkpointing": True}))
    assert found.model.is_activation_checkpointing
    assert losses(found) == pytest.approx(losses(plain), rel=1e-5)


def test_unknown_target_modules_error_lists_the_layers(tmp_path):
    with pytest.raises(ModelError, match=r"(?s)has no layer query.*the model's layers: .*q_proj"):
        trainer_of(adapter_job(tmp_path, {"model.lora": {"target_modules": ["query"]}}))


# Quantized base models

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason=install_extra("quantization")
)


def quantized_job(root, bits, changes=None, **more):
    """An adapter job on a quantized base model in a folder."""
    torch.manual_seed(5)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = root / "base"
    LlamaForCausalLM(LlamaConfig(vocab_size=300, num_key_value_heads=2, **size)).save_pretrained(base)
    section = {"pretrained": str(base), "quantization": {"bits": bits, **more}}
    return adapter_job(root, {"training.learning_rate": 1e-2} | (changes or {}), model=section)


@needs_bitsandbytes
@pytest.mark.parametrize(("bits", "more"), [(4, {"compute_dtype": "fp32"}), (4, {"double_quant": False}), (8, {})])
def test_adapters_of_a_quantized_model_are_merged_into_the_full_model(tmp_path, bits, more):
    planned = quantized_job(tmp_path, bits, **more)
    trainer = trained(planned)
    found = losses(trainer)
    assert found[6] < found[1] - 0.1
    layer = trainer.model.base_model.model.model.layers[0].self_attn.q_proj.base_layer
    assert type(layer).__name__ == {4: "Linear4bit", 8: "Linear8bitLt"}[bits]
    assert layer.weight.dtype in (torch.uint8, torch.int8)
    assert layer.weight.nbytes == 64 * 64 * bits // 8

    best = find_best_weights(planned.folder, planned.direction)
    written(best.folder, tmp_path, planned)
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "published")
    weights, base = published.state_dict(), untrained(planned).state_dict()
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    saved = load_file(best.folder / "adapter_model.safetensors")
    place = "model.layers.0.self_attn.q_proj"
    a, b = (saved[f"base_model.model.{place}.lora_{letter}.weight"] for letter in "AB")
    torch.testing.assert_close(weights[f"{place}.weight"], base[f"{place}.weight"] + 2 * b @ a)
    assert torch.equal(weights["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


@needs_bitsandbytes
def test_resumed_run_on_a_quantized_model_ends_with_the_same_bits(tmp_path):
    planned = quantized_job(tmp_path, 4, {"model.lora": LORA | {"dropout": 0.1}})
    trained(planned)
    golden = shutil.move(planned.folder, tmp_path / "golden")
    shutil.copytree(golden / "checkpoint-3", planned.folder / "checkpoint-3")
    trained(planned.model_copy(update={"checkpoint": planned.folder / "checkpoint-3"}))
    for name in ("adapter_model.safetensors", "optimizer.pt", "rng_state.pth"):
        assert (planned.folder / "checkpoint-6" / name).read_bytes() == (golden / "checkpoint-6" / name).read_bytes()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_resumed_run_goes_on_with_the_rows_of_added_tokens(tmp_path, tied):
    base = write_model(tmp_path / "base", "llama", vocab_size=320, tie_word_embeddings=tied)
    tokenizer = {"kind": "pretrained", "path": str(base), "added_tokens": ["<|to|>"]}
    sections = {
        "objective": SFT | {"separator": "<|to|>"},
        "model": {"pretrained": str(base), "lora": LORA},
        "tokenization": {"tokenizer": tokenizer, "max_length": 96},
    }
    planned = adapter_job(tmp_path, **sections)
    trained(planned)
    golden = shutil.move(planned.folder, tmp_path / "golden")
    names = load_file(golden / "checkpoint-6" / "adapter_model.safetensors").keys()
    assert sum("token_adapter" in name or "trainable_tokens" in name for name in names) == (1 if tied else 2)
    shutil.copytree(golden / "checkpoint-3", planned.folder / "checkpoint-3")
    trained(planned.model_copy(update={"checkpoint": planned.folder / "checkpoint-3"}))
    for name in ("adapter_model.safetensors", "optimizer.pt", "rng_state.pth"):
        assert (planned.folder / "checkpoint-6" / name).read_bytes() == (golden / "checkpoint-6" / name).read_bytes()


# Conflicts that `check` reports


def test_conflicts_of_adapters_and_quantization(monkeypatch):
    def found(launch=None, **model):
        sections = Model.model_validate(model), Launch.model_validate({"micro_batch_size": 1} | (launch or {}))
        return [f"{'.'.join(p.key)}: {p.what}; {p.fix}" for p in network.find_model_conflicts(*sections)]

    config, few = {"model_type": "llama"}, {"bits": 4}
    assert found(pretrained="a/b", lora={}, quantization=few) == []
    assert found(config=config, lora={}) == []
    (problem,) = found(pretrained="a/b", quantization=few)
    assert problem.startswith("model.quantization: quantized weights have no gradients, so only biases")
    assert "add `lora: {}`" in problem
    (problem,) = found(config=config, lora={}, quantization=few)
    assert "set model.pretrained" in problem
    (problem,) = found({"accelerate_config": "params/accelerate/fsdp2.yaml"}, config=config, lora={})
    assert "adapters are not supported with FSDP or DeepSpeed" in problem
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = found(pretrained="a/b", lora={}, quantization=few)
    assert problem.endswith(install_extra("quantization"))


@pytest.mark.parametrize("name", ["masked_lm", "multiple_choice", "question_answering"])
def test_adapters_of_every_head_are_saved_so_that_they_can_be_merged(name, tmp_path):
    """peft would name a class to import where it is told no task, and such adapters are never loaded."""
    base = write_model(tmp_path / "base", "bert")
    objective = objectives.build_objective(ObjectiveChoice(name=name))
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = Model(pretrained=str(base), lora=Lora(r=2, target_modules=["query", "value"]))
    own = {"objective": objective, "state": {}, "tokenizer": tokenizer, "seed": 3}
    adapted = network.build_model_to_train(model, **own)
    head = {"multiple_choice": "classifier", "question_answering": "qa_outputs"}.get(name, "")  # the base fills masks
    trained = [own for own, weight in adapted.named_parameters() if weight.requires_grad and "lora" not in own]
    assert any(head in own for own in trained) is bool(head), "a new head is trained in full"
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.1)
    adapted.save_pretrained(tmp_path / "trained")
    network.write_merged_and_adapter(tmp_path / "trained", tmp_path / "merged", tmp_path / "adapter", model, **own)
    ids = (
        {"input_ids": torch.tensor([[5, 6, 7]])}
        if name != "multiple_choice"
        else {"input_ids": torch.ones(1, 1, 3).long()}
    )
    merged = network.load_trained_model(tmp_path / "merged", objective.model_class()).eval()
    if merged.config.model_type == "bert":
        ids["token_type_ids"] = torch.ones_like(ids["input_ids"])  # which peft's model for QUESTION_ANS leaves out
    with torch.inference_mode():
        torch.testing.assert_close(merged(**ids)[0], adapted.eval()(**ids)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "layer"), [("BertConfig", "cls.predictions"), ("RobertaConfig", "lm_head")])
def test_a_new_head_of_nested_layers_is_refused(kind, layer, tmp_path):
    """peft failed with a KeyError when it saved the first checkpoint."""
    config = {"vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    AutoModel.from_config(getattr(transformers, kind)(**config, intermediate_size=8)).save_pretrained(tmp_path)
    write_model(tmp_path / "other", "bert")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "other")
    own = {"objective": objectives.build_objective(ObjectiveChoice(name="masked_lm")), "state": {}, "seed": 3}
    model = Model(pretrained=str(tmp_path), lora=Lora(r=2, target_modules=["query", "value"]))
    with pytest.raises(ModelError, match=f"lacks weights of {layer} and of layers inside of it"):
        network.build_model_to_train(model, tokenizer=tokenizer, **own)
