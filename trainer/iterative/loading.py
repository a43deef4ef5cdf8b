"""Load a model and its tokenizer by name."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from trainer.runtime.model_files import check_model_files

_HUB_ARGUMENTS = {"revision", "code_revision", "token", "cache_dir", "local_files_only", "subfolder"}


def name_of(model: object) -> str:
    """Return the name or folder of a model; empty for one that was not loaded from anywhere.

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


def load_model(model: PreTrainedModel | str, init_kwargs: Any) -> PreTrainedModel:
    """Load a model by name, with the head that its configuration needs; return a model object as it is.

    Raises:
        ValueError: `init_kwargs` is given, and the model is an object already.
        AttributeError: `init_kwargs` has an unknown dtype.
        ModelError: the model's files name files that are not its own.
    """
    if not isinstance(model, str):
        if init_kwargs:
            raise ValueError(
                "IterativeSFTTrainer: args.model_init_kwargs is for a model given by name, and model is a model object; "
                "leave model_init_kwargs out, or give the model's name"
            )
        return model
    arguments = dict(init_kwargs or {})
    if "torch_dtype" in arguments:  # its old name
        arguments["dtype"] = arguments.pop("torch_dtype")
    trusted = arguments.pop("trust_remote_code", False)
    of_hub = {name: value for name, value in arguments.items() if name in _HUB_ARGUMENTS}
    if revision := check_model_files(model, **of_hub):
        of_hub["revision"] = arguments["revision"] = revision
    config = AutoConfig.from_pretrained(model, trust_remote_code=trusted, **of_hub)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_pretrained(model, trust_remote_code=trusted, **arguments)


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model by the model's name.

    Raises:
        ValueError: the model has no name, or its tokenizer needs code of its repository.
        ModelError: the model's files name files that are not its own.
    """
    if not name:
        what = "the model was not loaded by name"
        raise ValueError(f"IterativeSFTTrainer: {what}; give its tokenizer as processing_class")
    revision = check_model_files(name, weights=False) or "main"
    return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
