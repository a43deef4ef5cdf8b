"""Adapters of a translation model: their release says in which language texts are generated, and is read and judged so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, NllbTokenizer

from tasks.hub_server.server import LocalHub
from tasks.publishing.served import load_with_card_code
from tasks.recipes.loading import load
from tests.support import base_models, releases
from trainer.model.network import load_trained_model

TOKEN = "hf_" + "1" * 40
LETTERS = "abcdefghijklmnopqrstuvwxyz.,?'"
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128}


def write_base(folder: Path) -> Path:
    """An NLLB, whose generation_config.json names no language, as on the Hub."""
    symbols = {name: number for number, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS])}
    tokenizer = NllbTokenizer(vocab=symbols, merges=[])
    config = M2M100Config(**SMALL, vocab_size=len(tokenizer), pad_token_id=1, eos_token_id=2, decoder_start_token_id=2)
    torch.manual_seed(1)
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("form", [pytest.param("adapter", marks=pytest.mark.slow), "both"])
def test_adapters_generate_in_the_language_that_they_learned(form: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, LocalHub(tmp_path / ".hub", tokens={TOKEN: "tests"}) as hub:
        base_models.use_hub(patch, hub.endpoint, TOKEN, tmp_path / "cache")
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        api.create_repo("tests/nllb")
        api.upload_folder(repo_id="tests/nllb", folder_path=write_base(tmp_path / "nllb"))
        changes = {
            "publish.repo_id": f"tests/{form}",
            "publish.adapter": form,
            "objective.source_language": "eng_Latn",
            "objective.target_language": "fra_Latn",
        }
        content = base_models.recipe("seq2seq", changes, base="tests/nllb")
        artifacts, _ = releases.tokenized(tmp_path / "project", content, {"train": 24, "validation": 4, "test": 8})
        recipe = load(artifacts.recipe_path)
        releases.learn(artifacts, recipe, 2)
        assert releases.evaluate(artifacts, recipe).verdict == "publish"
        assert releases.publish(artifacts, recipe).status == "published"
        folder = Path(api.snapshot_download(f"tests/{form}", local_dir=tmp_path / "read"))

        tokenizer = AutoTokenizer.from_pretrained(artifacts.model)
        language = tokenizer.convert_tokens_to_ids("fra_Latn")
        inputs = tokenizer("the lamp", return_tensors="pt")
        judged = load_trained_model(artifacts.model, AutoModelForSeq2SeqLM).generate(**inputs, max_new_tokens=6)
        assert judged[0, 1] == language
        card = (folder / "README.md").read_text()
        for reader in load_with_card_code(folder, f"tests/{form}", card):
            assert torch.equal(reader.network.generate(**inputs, max_new_tokens=6), judged)
        assert card.count("base.generation_config = GenerationConfig") == 1
        alone = load_trained_model(folder if form == "adapter" else folder / "adapter", AutoModelForSeq2SeqLM)
        assert torch.equal(alone.generate(**inputs, max_new_tokens=6), judged), "it is the champion of the next run"
        settings = json.loads((folder / "generation_config.json").read_bytes())
        assert settings["forced_bos_token_id"] == language
