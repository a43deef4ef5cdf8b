"""Embeddings that change: rows for tokens that were added, and layers that adapters leave and that are trained in full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from params import ModelError
from params.schema import Model, ObjectiveChoice
from tests.support.zoo.architectures import ARCHITECTURES
from tests.support.zoo.cells import Cell, try_cell
from trainer import objectives
from trainer.model.network import _add_rows_for_added_tokens, build_model_to_train, load_trained_model

pytestmark = [
    pytest.mark.usefixtures("no_hub_settings"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
TOKENS = ["<|tool|>", "<|/tool|>"]


@pytest.fixture(autouse=True)
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "lora"),
    [
        pytest.param("qwen2", True, id="tied-lora"),
        pytest.param("gpt_neox", False, id="untied-in full"),
        pytest.param("qwen2", False, id="tied-in full", marks=pytest.mark.slow),
        pytest.param("gpt_neox", True, id="untied-lora", marks=pytest.mark.slow),
    ],
)
def test_added_tokens_get_rows_that_are_trained_and_published(
    name: str, lora: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    artifacts = try_cell(Cell(name, "sft", lora), tmp_path, {"tokenization.tokenizer.added_tokens": TOKENS})
    tokenizer = AutoTokenizer.from_pretrained(artifacts.model)
    ids = tokenizer.convert_tokens_to_ids(TOKENS)
    assert tokenizer("a<|tool|>b<|/tool|>")["input_ids"].count(ids[0]) == 1
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings()
        for folder in (tmp_path / "base", artifacts.model)
    )
    assert after.num_embeddings == len(tokenizer) > before.num_embeddings
    assert "new rows in the embeddings" in caplog.text
    assert all(token in caplog.text for token in TOKENS)
    assert not artifacts.adapter.exists(), "nobody could load adapters on a base model without these rows"


def pad_vocabulary(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the tiny model of an architecture have more rows in its embeddings than its tokenizer has tokens, as Qwen's have."""
    one = ARCHITECTURES[name]
    monkeypatch.setitem(ARCHITECTURES, name, replace(one, config={**one.config, "vocab_size": 448}))


def rows_of(folder: Path, token: int) -> list[torch.Tensor]:
    """A token's rows in the input and output embeddings of a whole model, or of adapters on their base model."""
    network = load_trained_model(folder, AutoModelForCausalLM)
    return [layer.weight[token].detach() for layer in (network.get_input_embeddings(), network.get_output_embeddings())]


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        pytest.param("qwen2", ["embeddings"], id="tied-embeddings in full"),
        pytest.param("gpt_neox", [], id="untied-by default"),
        pytest.param("qwen2", [], id="tied-by default", marks=pytest.mark.slow),
        pytest.param("gpt_neox", ["embeddings"], id="untied-embeddings in full", marks=pytest.mark.slow),
    ],
)
def test_adapters_train_the_rows_that_a_base_model_has_spare_for_added_tokens(
    name: str, saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_vocabulary(monkeypatch, name)
    own = {"qwen2": "embed_tokens", "gpt_neox": "embed_in"}[name]
    changes = {
        "tokenization.tokenizer.added_tokens": TOKENS,
        "objective.separator": TOKENS[0],
        "model.lora.modules_to_save": [own for _ in saved],
    }
    artifacts = try_cell(Cell(name, "sft", lora=True), tmp_path, changes)
    token = AutoTokenizer.from_pretrained(artifacts.model).convert_tokens_to_ids(TOKENS[0])
    before, merged, alone = (rows_of(one, token) for one in (tmp_path / "base", artifacts.model, artifacts.adapter))
    for at, how in enumerate(("input", "output")):
        assert not torch.equal(before[at], merged[at]), f"the row of the {how} embeddings is frozen"
        torch.testing.assert_close(alone[at], merged[at], atol=1e-2, rtol=0)
        assert not torch.equal(alone[at], before[at])
    others = (rows_of(one, token - 5) for one in (tmp_path / "base", artifacts.model))
    assert saved or all(torch.equal(*pair) for pair in zip(*others, strict=True))


def test_adapters_on_the_embeddings_learn_rows_of_added_tokens_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_vocabulary(monkeypatch, "gpt_neox")
    changes = {"tokenization.tokenizer.added_tokens": TOKENS, "model.lora.target_modules": ["embed_in", "dense"]}
    artifacts = try_cell(Cell("gpt_neox", "sft", lora=True), tmp_path, changes)
    config = json.loads((artifacts.adapter / "adapter_config.json").read_bytes())
    assert [*config["trainable_token_indices"]] == ["lm_head"]


def test_tokens_of_the_base_model_are_not_trained_by_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pad_vocabulary(monkeypatch, "gpt_neox")
    changes = {"tokenization.tokenizer.added_tokens": ["<|endoftext|>"]}
    artifacts = try_cell(Cell("gpt_neox", "sft", lora=True), tmp_path, changes)
    config = json.loads((artifacts.adapter / "adapter_config.json").read_bytes())
    assert config["trainable_token_indices"] is None


TELLING = [*ARCHITECTURES][::3]
"""What `make test` tries."""


@pytest.mark.parametrize(
    "name", [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_rows_of_added_tokens_are_trained_in_every_architecture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_vocabulary(monkeypatch, name)
    one = ARCHITECTURES[name]
    kind = {"encoder": "token_classification", "decoder": "sft", "encoder-decoder": "seq2seq"}[one.kind]
    base = one.write(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([AddedToken(TOKENS[0], special=True, normalized=False)])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = Model.model_validate({"pretrained": str(base), "lora": {"r": 4, **one.lora}})
    built = objectives.build_objective(ObjectiveChoice(name=kind))
    state = {"labels": ["O", "B-who", "I-who"], "model_config": {}} if one.kind == "encoder" else {}
    network = build_model_to_train(model, objective=built, state=state, tokenizer=tokenizer, seed=1)
    whole = network.get_base_model()
    (token,) = tokenizer.convert_tokens_to_ids([TOKENS[0]])
    for layer in {whole.get_input_embeddings(), whole.get_output_embeddings()} - {None}:
        assert layer.token_adapter.token_indices == {"default": [token]}
    rows = [weight for key, weight in network.named_parameters() if "trainable_tokens" in key]
    assert all(weight.requires_grad for weight in rows)
    with torch.no_grad():
        for weight in rows:
            weight.add_(1)
    merged = network.merge_and_unload()
    for layer in {merged.get_input_embeddings(), merged.get_output_embeddings()} - {None}:
        assert layer.weight[token].mean() > 0.5


def test_tokens_that_have_rows_change_no_embedding(tmp_path: Path) -> None:
    artifacts = try_cell(
        Cell("gpt2", "sft", lora=False), tmp_path, {"tokenization.tokenizer.added_tokens": ["<|endoftext|>"]}
    )
    rows = (AutoModelForCausalLM.from_pretrained(one).config.vocab_size for one in (tmp_path / "base", artifacts.model))
    assert len({*rows}) == 1


@pytest.mark.parametrize(
    "saved",
    [pytest.param(["embed_tokens"], marks=pytest.mark.slow), ["lm_head"], ["embed_tokens", "lm_head"]],
)
def test_tied_embeddings_are_trained_in_full_and_stay_tied(saved: list[str], tmp_path: Path) -> None:
    artifacts = try_cell(Cell("llama", "sft", lora=True), tmp_path, {"model.lora.modules_to_save": saved})
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (tmp_path / "base", artifacts.model)
    )
    assert after.lm_head.weight is after.get_input_embeddings().weight
    assert not torch.equal(after.lm_head.weight, before.lm_head.weight)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"target_modules": ["lm_head"]}, "model.embed_tokens and lm_head share their weights"),
        (
            {"target_modules": ["q_proj", "embed_tokens"]},
            "into which an adapter of model.embed_tokens cannot be merged",
        ),
        ({"target_modules": "(.*embed_tokens)"}, "into which an adapter of model.embed_tokens cannot be merged"),
        ({"target_modules": ["q_proj", "nothing"]}, "the model has no layer nothing"),
        ({"modules_to_save": ["embed_token"]}, "the model has no layer embed_token"),
    ],
)
def test_adapters_that_could_not_be_merged_are_found_by_check(
    settings: dict[str, object], what: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="check: ") as caught:
        try_cell(
            Cell("llama", "sft", lora=True), tmp_path, {f"model.lora.{key}": value for key, value in settings.items()}
        )
    assert what in str(caught.value)


def test_other_tokens_without_rows_are_an_error(tmp_path: Path) -> None:
    from tests.support.zoo.architectures import ARCHITECTURES

    other = ARCHITECTURES["gpt2"].write(tmp_path / "other")
    with pytest.raises(ModelError, match=r"has \d+ tokens, but .* has embeddings for 76"):
        try_cell(Cell("t5", "seq2seq", lora=False), tmp_path, {"tokenization.tokenizer.path": str(other)})


def test_gaps_between_the_numbers_of_tokens_are_no_other_tokenizer(caplog: pytest.LogCaptureFixture) -> None:
    """The base model has as many rows as its tokenizer has tokens, but some numbers lie behind them."""
    caplog.set_level("INFO")
    words = models.WordLevel({"one": 0, "two": 1, "nine": 9}, unk_token="one")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    network = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=3, **size))
    assert "model.embed_tokens.weight" in _add_rows_for_added_tokens(network, tokenizer, "base")
    assert network.get_input_embeddings().num_embeddings == 10
    assert "new rows in the embeddings of base, for nine" in caplog.text
