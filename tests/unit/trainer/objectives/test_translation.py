"""Translation models whose tokenizers write languages into texts: labels and generation are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MBart50Tokenizer, MBartTokenizer, NllbTokenizer
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right as shift_labels_of_m2m
from transformers.models.mbart.modeling_mbart import shift_tokens_right as shift_labels_of_mbart

from params import RecipeError
from params.schema import Launch, Model, ObjectiveChoice, Training
from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer
from tests.support import tiny
from trainer import objectives
from trainer.model.network import build_model_to_train, load_trained_model

WORDS = ["▁the", "▁lamp", "▁is", "▁red", "▁la", "▁lampe", "▁est", "▁rouge"]
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
ROWS = [
    {"row_id": 0, "input": "the lamp is red", "target": "la lampe est rouge"},
    {"row_id": 1, "input": "red", "target": "rouge"},
]


def pieces(*first: str) -> list[tuple[str, float]]:
    return [*((one, 0.0) for one in first), *((word, -2.0) for word in ["▁", *WORDS])]


def mbart(**languages: str) -> Any:
    codes = [(code, 0.0) for code in ("en_XX", "fr_XX")]
    return MBartTokenizer(vocab=[*pieces("<s>", "<pad>", "</s>", "<unk>"), *codes], **languages)


def mbart50(**languages: str) -> Any:
    return MBart50Tokenizer(vocab=pieces("<s>", "<pad>", "</s>", "<unk>"), **languages)


def nllb(**languages: str) -> Any:
    symbols = {
        "<s>": 0,
        "<pad>": 1,
        "</s>": 2,
        "<unk>": 3,
        "▁": 4,
        **{c: 5 + i for i, c in enumerate("abcdefhilmoprstu")},
    }
    return NllbTokenizer(vocab=symbols, merges=[], **languages)


KINDS = {
    "mbart": (mbart, "mbart", "en_XX", "fr_XX", {"decoder_start_token_id": None}),
    "mbart50": (mbart50, "mbart", "en_XX", "fr_XX", {"decoder_start_token_id": 2}),
    "nllb": (nllb, "m2m_100", "eng_Latn", "fra_Latn", {"decoder_start_token_id": 2}),
}


def tiny_tokenizer() -> Any:
    return train_tokenizer([], TrainTokenizer(kind="train", vocab_size=260))


def objective(**options: Any) -> Any:
    return objectives.build_objective(ObjectiveChoice(name="seq2seq", **options))


@pytest.mark.parametrize("kind", KINDS)
def test_labels_decoder_inputs_and_generation_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    make, model_type, source, target, config = KINDS[kind]
    task = objective(source_language=source, target_language=target, max_new_tokens=5)
    tokenizer = make()
    task.prepare_tokenizer(tokenizer)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")  # as later stages and readers have it
    sections = {"config": {"model_type": model_type, **SMALL, "pad_token_id": 1, "eos_token_id": 2, **config}}
    network = build_model_to_train(Model(**sections), objective=task, state={}, tokenizer=tokenizer, seed=1).eval()

    expected = make(src_lang=source, tgt_lang=target)
    wanted = expected([row["input"] for row in ROWS], text_target=[row["target"] for row in ROWS])
    encoded = [examples[0] for examples, _ in task.encode(ROWS, tokenizer, 32, {})]
    assert [example["input_ids"] for example in encoded] == wanted["input_ids"]
    assert [example["labels"] for example in encoded] == wanted["labels"]
    language = tokenizer.convert_tokens_to_ids(target)
    assert all(labels.count(language) == 1 and labels.count(2) == 1 for labels in wanted["labels"])

    batch = task.prepare_inputs(network, task.collate(encoded, tokenizer))
    if model_type == "mbart":
        shifted = shift_labels_of_mbart(batch["labels"], 1)
    else:
        shifted = shift_labels_of_m2m(batch["labels"], 1, network.config.decoder_start_token_id)
    assert torch.equal(batch["decoder_input_ids"], shifted)
    network.save_pretrained(tmp_path / "model")
    released = load_trained_model(tmp_path / "model", AutoModelForSeq2SeqLM)
    generated = released.generate(**tokenizer("the lamp", return_tensors="pt"), max_new_tokens=5, do_sample=False)[0]
    begin = shifted[0, : 1 + (shifted[0, 0] != language)].tolist()
    assert generated[: len(begin)].tolist() == begin, "a generated text begins as targets do"


def test_a_target_that_is_cut_keeps_its_language() -> None:
    tokenizer = mbart(src_lang="en_XX", tgt_lang="fr_XX")
    ((whole,), is_cut), _ = objective().encode(ROWS, tokenizer, 32, {})
    assert not is_cut
    ((cut,), is_cut), _ = objective(max_target_length=4).encode(ROWS, tokenizer, 32, {})
    assert is_cut
    assert cut["labels"] == [*whole["labels"][:3], whole["labels"][-1]]


@pytest.mark.parametrize(
    ("tokenizer", "options", "key", "what"),
    [
        (mbart, {}, "source_language", "is not set, and the tokenizer needs it"),
        (mbart, {"source_language": "en_XX"}, "target_language", "is not set, and the tokenizer needs it"),
        (mbart, {"source_language": "en_XX", "target_language": "fr_FR"}, "target_language", "no language 'fr_FR'"),
        (tiny_tokenizer, {"target_language": "fr_XX"}, "target_language", "has no effect"),
    ],
)
def test_languages_are_needed_and_known(tokenizer: Any, options: dict[str, str], key: str, what: str) -> None:
    with pytest.raises(RecipeError, match=what) as error:
        objective(**options).prepare_tokenizer(tokenizer())
    assert error.value.where == f"objective.{key}"


def test_check_names_the_languages_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mbart", "is_encoder_decoder": True}))
    named = tmp_path / "tokenizer_config.json"
    sections = {
        "model": Model(pretrained=str(tmp_path)),
        "training": Training.model_validate(tiny.RECIPE["training"]),
        "launch": Launch(micro_batch_size=1),
    }

    def missing(**options: str) -> list[str]:
        return [str(problem.key[-1]) for problem in objective(**options).conflicts(**sections)]

    named.write_text(json.dumps({"tokenizer_class": "MBartTokenizerFast", "src_lang": "en_XX", "tgt_lang": None}))
    assert missing() == ["target_language"]
    assert missing(target_language="fr_XX") == []
    named.write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}))
    assert missing() == ["source_language", "target_language"]
    named.write_text(json.dumps({"tokenizer_class": "T5TokenizerFast"}))
    assert missing() == []
