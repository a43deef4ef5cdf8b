"""How many tokens a model reads: found from its configuration, and tried with so many tokens and one more."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from params import ModelError
from tests.support import in_process, tiny
from tests.support.zoo.architectures import ARCHITECTURES
from trainer.build import check_ends_of_texts, check_positions
from trainer.model.limits import find_position_limits_in, find_reading_limit, write_reading_limit
from trainer.objectives.bases.network.position_limits import NO_LIMIT, find_position_limits, find_position_table
from trainer.objectives.bases.texts.tokenizing import READ_AT_END_OF_TEXT

TABLES = {
    "bert": 66,
    "roberta": 64,
    "mpnet": 64,
    "distilbert": 66,
    "gpt2": 130,
    "gpt_neo": 130,
    "opt": 130,
    "bart": 66,
    "led": 72,
}
"""Types of models with tables of positions, and how many tokens they read."""
WITHOUT = ["llama", "bloom", "t5", "xlnet", "deberta-v2", "m2m_100", "mamba"]
CLASSES = {"encoder": "AutoModel", "decoder": "AutoModelForCausalLM", "encoder-decoder": "AutoModelForSeq2SeqLM"}


def read(folder: Path, name: str, count: int) -> Any:
    """What a model makes of so many tokens."""
    one = ARCHITECTURES[name]
    network = getattr(transformers, CLASSES[one.kind]).from_pretrained(folder, dtype=torch.float32)
    ids = torch.full((1, count), 7)
    more = {"decoder_input_ids": ids} if one.kind == "encoder-decoder" else {}
    with torch.inference_mode():
        return network(input_ids=ids, **more)


@pytest.mark.parametrize("name", [*TABLES, *WITHOUT])
def test_a_network_reads_as_many_tokens_as_its_limit_and_fails_with_more(name: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES[name].write(tmp_path / "model")
    limits = find_position_limits_in(folder)
    assert limits.table == TABLES.get(name)
    read(folder, name, limits.table or 80)
    if limits.table:
        with pytest.raises((IndexError, RuntimeError)):
            read(folder, name, limits.table + 1)


def test_texts_are_read_by_the_encoder() -> None:
    """A LED writes 1,024 tokens from 16,384."""
    sizes = {"d_model": 16, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.AutoConfig.for_model("led", vocab_size=30, **sizes, **heads)
    assert find_position_limits(config).table == 16_384
    assert find_position_table(transformers.AutoModelForSeq2SeqLM.from_config(config)) == 16_384


@pytest.mark.parametrize(
    ("name", "own", "learned", "limit"),
    [
        ("bert", 64, 20, 64),  # the tokenizer's own, whatever the limit of training was
        ("bert", 40, 60, 60),  # what it learned from is not cut
        ("bert", 512, 20, 66),  # the network would fail
        ("roberta", None, 20, 64),  # its tokenizer does not say
        ("llama", None, 20, 2048),
        ("llama", 100_000, 20, 100_000),
        ("bloom", None, 20, NO_LIMIT),
    ],
)
def test_a_text_is_cut_where_the_base_model_cuts_it(
    name: str, own: int | None, learned: int, limit: int, tmp_path: Path
) -> None:
    folder = ARCHITECTURES[name].write(tmp_path / "model")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": own or 10**30}))
    assert find_reading_limit(folder, at_least=learned) == limit
    before = path.read_bytes()
    write_reading_limit(folder, limit)
    if limit in (own, NO_LIMIT):
        assert path.read_bytes() == before
    else:
        assert transformers.AutoTokenizer.from_pretrained(folder).model_max_length == limit


def test_a_sequence_without_positions_is_found_before_training(tmp_path: Path) -> None:
    class Rows(list[dict[str, list[int]]]):
        def lengths(self) -> torch.Tensor:
            return torch.tensor([len(one["input_ids"]) for one in self])

    network = transformers.AutoModel.from_pretrained(ARCHITECTURES["roberta"].write(tmp_path))
    rows: Any = Rows([{"input_ids": [7] * 20}, {"input_ids": [7] * 64}])
    check_positions(find_position_table(network), rows)
    rows.append({"input_ids": [7] * 65})
    with pytest.raises(ModelError, match="the longest sequence has 65 tokens, and the model has 64 positions"):
        check_positions(find_position_table(network), rows)


@pytest.mark.parametrize(
    ("end", "padding", "ids", "why"),
    [(1, 0, [7, 1], ""), (1, 0, [7, 8], "the tokenizer does not add"), (1, 1, [7, 1], "pads texts, too")],
)
def test_a_head_that_does_not_find_the_end_of_a_text_is_found_before_training(end, padding, ids, why) -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    config = transformers.T5Config(**sizes, eos_token_id=end, pad_token_id=0, decoder_start_token_id=0)
    rows: Any = [{"input_ids": ids}]
    check_ends_of_texts(transformers.T5ForConditionalGeneration(config), rows, padding)
    network = transformers.T5ForSequenceClassification(config)
    with pytest.raises(ModelError, match=why) if why else contextlib.nullcontext():
        check_ends_of_texts(network, rows, padding)


def test_training_refuses_such_a_head(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = {"config": {"model_type": "t5", **sizes}}
    with pytest.raises(ModelError, match="reads a text at the end-of-text token"):
        in_process.trainer_of(in_process.job(tmp_path, **{**tiny.CLASSES, "model": model}))


def test_the_types_of_models_whose_head_reads_the_end_of_a_text_are_those_of_transformers() -> None:
    folder = Path(transformers.__file__).parent / "models"
    found = {
        path.parent.name for path in folder.glob("*/modeling_*.py") if "number of <eos> tokens" in path.read_text()
    }
    assert found == READ_AT_END_OF_TEXT
