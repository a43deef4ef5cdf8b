"""What a model is, from its configuration and the headers of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModel

from params import ModelError
from tasks.scaffold.model_facts import read_model_facts
from tests.support.pretrained import POINTER, write_model


@pytest.mark.parametrize(("model_type", "kind"), [("bert", "encoder"), ("llama", "decoder"), ("t5", "encoder-decoder")])
def test_a_folder(model_type: str, kind: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", model_type)
    facts = read_model_facts(str(folder))
    assert (facts.model_type, facts.kind, facts.revision) == (model_type, kind, None)
    weights = AutoModel.from_pretrained(folder).num_parameters()
    assert facts.parameters >= weights > 0.5 * facts.parameters
    assert facts.positions == {"bert": 512, "llama": 2048, "t5": None}[model_type]
    assert not facts.has_chat_template
    write_model(tmp_path / "chat", model_type, chat_template="{{ messages }}")
    assert read_model_facts(str(tmp_path / "chat")).has_chat_template


def test_the_tokenizers_limit_and_robertas_offset_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 100}))
    assert read_model_facts(str(folder)).positions == 100
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 10**30}))
    config = json.loads((folder / "config.json").read_text())
    roberta = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config | roberta))
    assert read_model_facts(str(folder)).positions == 512


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("config.json", "{}", "no config.json with a `model_type`"),
        ("model.safetensors", None, "no weights as safetensors"),
        ("model.safetensors", "nothing", "is no safetensors file"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", POINTER, "tokenizer.json is a git-lfs pointer"),
        ("model.safetensors", POINTER, "model.safetensors is a git-lfs pointer"),
    ],
)
def test_what_is_no_model_is_an_error(file: str, content: str | None, what: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(ModelError, match=what):
        read_model_facts(str(folder))


def test_a_folder_that_another_recipe_makes_is_named(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params/other.yaml").touch()
    with pytest.raises(ModelError) as caught:
        read_model_facts("runs/other/model", tmp_path)
    assert caught.value.fix == (
        "the recipe other makes it: `evergreen run other --no-publish`; or fetch it: `dvc pull train@other`"
    )


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "one", "a/b/c"])
def test_a_path_that_is_no_folder_is_not_looked_up(name: str) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        read_model_facts(name)
