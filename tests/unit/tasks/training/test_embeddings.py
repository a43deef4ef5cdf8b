"""Embeddings that change: rows for tokens that were added, and layers that adapters leave and that are trained in full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from params import ModelError
from tests.support.zoo.cells import Cell, try_cell
from trainer.model.network import _add_rows_for_added_tokens

pytestmark = [
    pytest.mark.usefixtures("no_hub_settings"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
TOKENS = ["<|tool|>", "<|/tool|>"]


@pytest.fixture(autouse=True)
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("lora", [False, True], ids=["in full", "lora"])
@pytest.mark.parametrize("name", ["qwen2", "gpt_neox"], ids=["tied", "untied"])
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


def test_tokens_that_have_rows_change_no_embedding(tmp_path: Path) -> None:
    artifacts = try_cell(
        Cell("gpt2", "sft", lora=False), tmp_path, {"tokenization.tokenizer.added_tokens": ["<|endoftext|>"]}
    )
    rows = (AutoModelForCausalLM.from_pretrained(one).config.vocab_size for one in (tmp_path / "base", artifacts.model))
    assert len({*rows}) == 1


@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
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
