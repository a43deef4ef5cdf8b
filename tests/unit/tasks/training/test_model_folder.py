"""The folder of a trained model: what only training needs is undone, and it is the model that was trained."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from params import ModelError, Recipe
from params.foundation.artifacts import Artifacts
from params.schema import Model, ObjectiveChoice
from tasks.diagnostics.model_checks import find_generation_problem
from tasks.training.model_folder import check_same_metrics, complete_model_folder
from tests.support import releases, tiny
from tests.support.zoo.architectures import ARCHITECTURES
from tests.support.zoo.cells import train_in_process
from trainer.job import Job
from trainer.model.network import _load
from trainer.model.use_settings import restore_use_settings
from trainer.objectives import build_objective
from trainer.objectives.bases.network.standardization import restore_units


def trained_folder(base: Path, folder: Path) -> Path:
    """What training leaves of a base model: single precision, no cache."""
    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(1e-4)
    network.config.use_cache = False
    network.save_pretrained(folder, max_shard_size="20KB")
    return folder


@pytest.mark.parametrize("dtype", ["base", "fp32"])
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gpt2"])
def test_cache_and_number_format_are_those_of_the_base_model(name: str, dtype: Any, tmp_path: Path) -> None:
    base = ARCHITECTURES[name].write(tmp_path / "base")
    folder = trained_folder(base, tmp_path / "model")
    before = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    restore_use_settings(folder, Model(pretrained=str(base), published_dtype=dtype))
    config = json.loads((folder / "config.json").read_text())
    assert config["use_cache"] is True
    assert config["dtype"] == ("float32" if dtype == "fp32" else ARCHITECTURES[name].dtype)
    kind = getattr(torch, config["dtype"])
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    assert {weight.dtype for file in files for weight in load_file(file).values()} == {kind}
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    size = sum(weight.nbytes for file in files for weight in load_file(file).values())
    assert index["metadata"]["total_size"] == size
    for key, weight in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        assert torch.equal(weight, before[key].to(kind))


def test_a_weight_that_16_bits_cannot_hold_keeps_single_precision(tmp_path: Path) -> None:
    base = ARCHITECTURES["gpt_neox"].write(tmp_path / "base")
    folder = shutil.copytree(base, tmp_path / "model")
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    weights[min(weights)][0] = 1e6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    restore_use_settings(folder, Model(pretrained=str(base)))
    assert all(torch.equal(one, weights[name]) for name, one in load_file(folder / "model.safetensors").items())


def test_a_folder_of_several_files_that_16_bits_cannot_hold_gets_no_others(tmp_path: Path) -> None:
    base = ARCHITECTURES["gpt_neox"].write(tmp_path / "base")
    folder = trained_folder(base, tmp_path / "model")
    last = max(folder.glob("*.safetensors"))
    weights = load_file(last)
    weights[min(weights)][0] = 1e6
    save_file(weights, last, metadata={"format": "pt"})
    names = {path.name for path in folder.iterdir()}
    restore_use_settings(folder, Model(pretrained=str(base)))
    assert {path.name for path in folder.iterdir()} == names


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, Recipe]:
    """A classifier that learned from the first tokens of its rows."""
    content = tiny.recipe({"training.max_steps": 2, "tokenization.max_length": 12}, **tiny.CLASSES)
    artifacts, recipe = releases.tokenized(tmp_path_factory.mktemp("trained"), content)
    train_in_process(artifacts, recipe)
    return artifacts, recipe


def test_the_limit_of_training_is_not_that_of_the_model(trained: tuple[Artifacts, Recipe], tmp_path: Path) -> None:
    artifacts, recipe = trained
    assert AutoTokenizer.from_pretrained(artifacts.model).model_max_length == 512, "a new model's positions"
    settings = json.loads((artifacts.tokenizer / "tokenizer_config.json").read_text())
    other = Artifacts("tiny", shutil.copytree(artifacts.root, tmp_path / "other"))
    (other.tokenizer / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 77}))
    base = recipe.model.model_copy(update={"config": None, "pretrained": str(artifacts.model)})
    complete_model_folder(other.model, other, base)
    assert AutoTokenizer.from_pretrained(other.model).model_max_length == 77, "the base model's own"
    assert json.loads((other.model / "tokenizer.json").read_text())["truncation"] is None


@pytest.mark.parametrize("base_format", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("mean", "std", "kept"),
    [
        (1990.3, 1.2, {"bfloat16", "float16"}),
        (1990.3, 50.0, {"bfloat16"}),
        (3.2, 1.1, set()),
        (0.4, 0.2, set()),
        (40_000.0, 20_000.0, {"float16"}),  # up to 240,000, and 16 bits end at 65,504
    ],
    ids=["years", "centuries", "stars", "shares", "prices"],
)
def test_numbers_that_16_bits_cannot_tell_apart_are_published_in_single_precision(
    mean: float, std: float, kept: set[str], base_format: str, trained: tuple[Artifacts, Recipe], tmp_path: Path
) -> None:
    """`from_pretrained` at its defaults reads and computes in the format that config.json names: its answers are those that were learned."""
    artifacts = Artifacts("tiny", shutil.copytree(trained[0].root, tmp_path / "run"))
    objective = build_objective(ObjectiveChoice(name="regression", label_column="number"))
    state = {"numbers": ["number"], "mean": [mean], "std": [std]}
    config = AutoConfig.from_pretrained(artifacts.model, **objective.model_config(state))
    torch.manual_seed(0)
    network = AutoModelForSequenceClassification.from_config(config)
    network.to(getattr(torch, base_format)).save_pretrained(tmp_path / "base")
    network.float()
    objective.prepare_model(network.eval(), None, state, list(network.state_dict()))
    network.save_pretrained(artifacts.model)
    complete_model_folder(artifacts.model, artifacts, Model(pretrained=str(tmp_path / "base")))
    ids = {"input_ids": torch.arange(5, 29).reshape(4, 6)}
    released = AutoModelForSequenceClassification.from_pretrained(artifacts.model).eval()
    with torch.no_grad():
        distances = (released(**ids).logits.double() - network(**ids).logits).abs() / std
    assert distances.max() < 0.05
    assert released.dtype == (torch.float32 if base_format in kept else getattr(torch, base_format))


def test_a_head_without_a_bias_may_need_single_precision_too(tmp_path: Path) -> None:
    """It holds no mean, and its answers are as large: a mean and 1.5 deviations are 69,150 here, and 16 bits end at 65,504."""
    objective = build_objective(ObjectiveChoice(name="regression", label_column="number"))
    state = {"numbers": ["number"], "mean": [60_000.0], "std": [6_100.0]}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=64, pad_token_id=0, **sizes, **objective.model_config(state))
    network = AutoModelForSequenceClassification.from_config(config).eval()
    objective.prepare_model(network, None, state, list(network.state_dict()))
    network.save_pretrained(tmp_path)
    assert restore_units(tmp_path) == {"bfloat16", "float16"}


def test_a_saved_model_that_is_not_the_trained_one_is_refused(trained: tuple[Artifacts, Recipe]) -> None:
    artifacts, recipe = trained
    job = Job.of(recipe, artifacts)
    with pytest.raises(ModelError, match="the saved model is not the one that was trained") as caught:
        check_same_metrics(artifacts.model, job, {"eval_loss": 0.03})
    (found,) = re.findall(r"is ([\d.]+) as saved, and was 0.03 at the end of training", caught.value.what)
    check_same_metrics(artifacts.model, job, {"eval_loss": float(found)})
    with pytest.raises(ModelError):
        check_same_metrics(artifacts.model, job, {"eval_loss": float(found) + 0.002})


def test_generation_settings_without_effect_are_left_out_and_contradictions_are_found(tmp_path: Path) -> None:
    """transformers reads both, and would save no model that has them."""
    base = ARCHITECTURES["qwen2"].write(tmp_path / "base")
    path = base / "generation_config.json"
    own = json.loads(path.read_text())
    assert (own["do_sample"], own["temperature"]) == (False, 0.6)
    assert list(find_generation_problem(Model(pretrained=str(base)))) == []
    network, *_ = _load(str(base), AutoModelForCausalLM, revision=None)
    network.save_pretrained(tmp_path / "model")
    saved = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert {"temperature", "top_p"}.isdisjoint(saved)
    assert saved["eos_token_id"] == own["eos_token_id"]

    path.write_text(json.dumps(own | {"num_return_sequences": 3}))
    (problem,) = find_generation_problem(Model(pretrained=str(base)))
    assert "`num_return_sequences` different than 1" in problem.what
    path.write_text("[")
    (problem,) = find_generation_problem(Model(pretrained=str(base)))
    assert "cannot be read" in problem.what
