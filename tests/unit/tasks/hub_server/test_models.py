"""from_pretrained loads a model from the local Hub, bit for bit."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import torch
from huggingface_hub import CommitOperationAdd, HfApi
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LOAD = """
    import hashlib, json
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("alice/tiny", revision="v1", use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained("alice/tiny", revision="v1")
    digests = {k: hashlib.sha256(v.numpy().tobytes()).hexdigest() for k, v in model.state_dict().items()}
    print(json.dumps({"digests": digests, "ids": tokenizer("w1 w2 nothing")["input_ids"]}))
"""


def tiny_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=2, **sizes))


def test_from_pretrained_at_a_tag(alice: HfApi, client_environment: dict[str, str], tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(31)} | {"[UNK]": 31}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder, first = tmp_path / "model", tiny_model(seed=1)
    first.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    alice.create_repo("alice/tiny")
    operations = [CommitOperationAdd(path.name, str(path)) for path in sorted(folder.iterdir())]
    released = alice.create_commit("alice/tiny", operations, commit_message="release")
    alice.create_tag("alice/tiny", tag="v1", revision=released.oid)
    tiny_model(seed=2).save_pretrained(folder)  # main moves on; the tag does not
    alice.create_commit(
        "alice/tiny",
        [CommitOperationAdd("model.safetensors", str(folder / "model.safetensors"))],
        commit_message="next",
    )

    loaded = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOAD)], env=client_environment, capture_output=True, text=True
    )
    assert loaded.returncode == 0, loaded.stderr
    found = json.loads(loaded.stdout)
    expected = {key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in first.state_dict().items()}
    assert found["digests"] == expected
    assert found["ids"] == [1, 2, 31]
