"""Small models with random weights as folders, as a pretrained model is one: configuration, safetensors, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from params.sections.rows import TrainTokenizer
from tasks.tokenization.tokenizers import train_tokenizer

CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    "llama": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 32,
    },
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
}
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
"""What a clone without git-lfs has in the place of a large file."""
_CLASSES = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}
_TEXTS = ["what about the rain in this place", "a train and a road", "bread, soup and rice", "How do I get there?"]


def write_model(folder: Path, model_type: str = "bert", *, chat_template: str = "", **config: Any) -> Path:
    """Write a model of a type, with some of its configuration; return the folder."""
    import transformers

    tokenizer = train_tokenizer(_TEXTS, TrainTokenizer(kind="train", vocab_size=300, min_frequency=1))
    if chat_template:
        tokenizer.chat_template = chat_template
    ids = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    full = {"vocab_size": len(tokenizer), **ids, **CONFIGS[model_type], **config}
    made = transformers.AutoConfig.for_model(model_type, **full)
    getattr(transformers, _CLASSES.get(model_type, "AutoModelForCausalLM")).from_config(made).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
