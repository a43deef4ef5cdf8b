"""`new` asks for the languages of a translation model, whose tokenizer names some by default; `check` says which ones are used."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MBartTokenizer

from params import RecipeError
from tasks.diagnostics.check import check
from tasks.recipes.loading import load
from tasks.scaffold.new import create_recipe
from tasks.scaffold.request import NewRecipeRequest
from tests.support.pretrained import write_model
from tests.support.project import write_lists_of_recipes
from tests.support.settings_check import check_settings_in_this_process

WORDS = ["▁the", "▁lamp", "▁is", "▁red", "▁la", "▁lampe", "▁est", "▁rouge", "▁"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    check_settings_in_this_process(monkeypatch)
    write_lists_of_recipes(tmp_path)
    rows = [{"source": "la lampe est rouge", "target": f"the lamp is red {i}"} for i in range(60)]
    (tmp_path / "data/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((word, -2.0) for word in WORDS)]
    codes = [("en_XX", 0.0), ("fr_XX", 0.0)]
    tokenizer = MBartTokenizer(vocab=[*pieces, *codes], src_lang="en_XX", tgt_lang="fr_XX")  # the other direction
    tokenizer.save_pretrained(tmp_path / "mbart")
    small: dict[str, Any] = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    small |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "pad_token_id": 1}
    config = AutoConfig.for_model("mbart", vocab_size=len(tokenizer), max_position_embeddings=64, **small)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "mbart")
    return tmp_path


def make(model: str = "mbart", **options: str) -> None:
    columns = {"prompt": "source", "completion": "target"}
    create_recipe(NewRecipeRequest("topics", data="data/rows.jsonl", model=model, columns=columns, options=options))


def test_languages_are_asked_for_and_check_says_them(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        RecipeError, match=r"is needed: language of the inputs, one of ar_AR, .*en_XX, .*fr_XX"
    ) as error:
        make()
    assert (error.value.where, error.value.fix) == (
        "--source-language",
        "add --source-language CODE --target-language CODE",
    )
    with pytest.raises(RecipeError, match="is needed: language of the targets"):
        make(source_language="fr_XX")
    with pytest.raises(RecipeError, match="no language 'fr'"):
        make(source_language="fr", target_language="en_XX")
    assert not list((project / "params").iterdir())
    make(source_language="fr_XX", target_language="en_XX")
    recipe = project / "params/topics.yaml"
    options = load(recipe).objective.options
    assert (options["source_language"], options["target_language"]) == ("fr_XX", "en_XX")
    caplog.set_level(logging.INFO)
    for removed, said in (
        ("", "check: inputs are read as fr_XX, and targets as en_XX"),
        ("_language", "check: inputs are read as en_XX, and targets as fr_XX, by the tokenizer's defaults"),
    ):
        lines = recipe.read_text().splitlines()
        recipe.write_text("\n".join(line for line in lines if not removed or f"{removed}: " not in line) + "\n")
        caplog.clear()
        check(recipe)
        assert said in [record.getMessage() for record in caplog.records]


def test_a_language_for_a_tokenizer_without_any_is_refused(project: Path) -> None:
    write_model(project / "t5", "t5")
    with pytest.raises(RecipeError, match="has no effect on seq2seq with this tokenizer") as error:
        make("t5", target_language="en_XX")
    assert error.value.where == "--target-language"
