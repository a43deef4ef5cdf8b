"""The model and the tokenizer that a script names."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

_HUB_ARGUMENTS = (
    "revision",
    "code_revision",
    "trust_remote_code",
    "token",
    "cache_dir",
    "local_files_only",
    "subfolder",
)


def name_of(model: object) -> str:
    """The name or folder of a model, which is empty for one that was never loaded.

    Raises:
        TypeError: it is neither a model nor a name.
    """
    if isinstance(model, str):
        return model
    if not hasattr(model, "config"):
        raise TypeError(
            f"IterativeSFTTrainer: model is of type {type(model).__name__}; give a transformers or peft model, or a name"
        )
    return str(getattr(model.config, "_name_or_path", "") or "")


def load_model(name: str, given: Any) -> PreTrainedModel:
    """The model of a name; an encoder-decoder if its configuration says so.

    Args:
        name: as in `from_pretrained`.
        given: `model_init_kwargs`.

    Raises:
        ValueError: `given` names no dtype, or two.
    """
    arguments = dict(given or {})
    if "torch_dtype" in arguments:
        if "dtype" in arguments:
            raise ValueError("model_init_kwargs: dtype and torch_dtype are two names of one thing; give dtype")
        arguments["dtype"] = arguments.pop("torch_dtype")
    dtype = arguments.get("dtype")
    if isinstance(dtype, str) and dtype != "auto":
        found = getattr(torch, dtype.removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"model_init_kwargs: there is no dtype {dtype!r}; give for example 'bfloat16' or 'auto'")
        arguments["dtype"] = found
    config = AutoConfig.from_pretrained(name, **{k: v for k, v in arguments.items() if k in _HUB_ARGUMENTS})
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_pretrained(name, **arguments)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model's name.

    Raises:
        ValueError: the model has no name.
    """
    if not name:
        raise ValueError(
            "IterativeSFTTrainer: the model was not loaded by a name; give its tokenizer as processing_class"
        )
    return AutoTokenizer.from_pretrained(name)
