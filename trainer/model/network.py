"""The model: built from a configuration, or loaded from safetensors; never from pickle, never with remote code.

With adapters (`model.lora`) the base model is frozen, and in 4 or 8 bits with `model.quantization`. Checkpoints hold only the
trained parameters; for publishing, `merge_adapters` adds them to the base model in full precision.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from params import ModelError, Problem, TransientError
from params.schema import Launch, Lora, Model, Quantization

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer.objectives.bases.objective import Objective, ObjectiveState

os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


def initial_model(
    model: Model, *, objective: Objective[Any], state: ObjectiveState, tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """Return the model as it is before training; the same arguments give the same weights.

    ModelError if the configuration or the folder is invalid, TransientError if the Hub cannot be reached.
    """
    network = untrained_model(
        model, objective=objective, state=state, tokenizer=tokenizer, seed=seed, quantization=model.quantization
    )
    return _with_adapters(network, model.lora, objective) if model.lora else network


def conflicts(model: Model, launch: Launch) -> Iterator[Problem]:
    """Yield what in the model section cannot be trained, alone or with the launch section."""
    if model.lora and launch.accelerate_config:
        what = "adapters are not supported with FSDP or DeepSpeed, where their checkpoints may be incomplete"
        yield Problem(("model", "lora"), what, "remove launch.accelerate_config, or model.lora")
    if not model.quantization:
        return
    key = ("model", "quantization")
    if not model.lora:
        what = "quantized weights have no gradients, so only biases and norms would be trained"
        yield Problem(key, what, "add `lora: {}` to the model, or remove quantization")
    if not model.pretrained:
        what = "quantization needs a pretrained model: adapters learn nothing on random weights"
        yield Problem(key, what, "set model.pretrained, or remove quantization")
    if importlib.util.find_spec("bitsandbytes") is None:
        yield Problem(key, "bitsandbytes is not installed", "pip install 'evergreen[quantization]'")


def merge_adapters(
    adapters: Path,
    target: Path,
    model: Model,
    *,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> int:
    """Merge the adapters in the folder `adapters` into the base model, write it to `target`, and count its parameters."""
    from peft import PeftModel

    network = untrained_model(model, objective=objective, state=state, tokenizer=tokenizer, seed=seed)
    with _ignore_peft_warning():
        merged = PeftModel.from_pretrained(network, str(adapters)).merge_and_unload()
    merged.save_pretrained(str(target))
    return sum(weight.numel() for weight in merged.parameters())


def untrained_model(
    model: Model,
    *,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """As `initial_model`, without adapters, which start as zero, and by default in full precision."""
    from transformers import set_seed

    set_seed(seed)
    if model.pretrained is not None:
        quantized = {"quantization_config": _bitsandbytes(quantization)} if quantization else {}
        overrides = {**objective.model_config(state), **quantized}
        network = _load(model.pretrained, objective, revision=model.revision, **overrides)
        for layer in network.modules():
            # bitsandbytes 0.50.2 would round the scales of weights at the first evaluation on some CPUs, for good
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False
        vocabulary = network.get_input_embeddings().num_embeddings
        if len(tokenizer) > vocabulary:
            what = f"has {len(tokenizer)} tokens, but {model.pretrained} has embeddings for {vocabulary}"
            raise ModelError("tokenization.tokenizer", what, "use the tokenizer that belongs to the model")
    else:
        network = _build(dict(model.config or {}), objective, state, tokenizer)
    if network.config.model_type == "gpt2" and network.loss_type is None:
        network.loss_type = "ForCausalLM"  # its own loss is scaled by (T-1)/T under accumulation
    return network


def _bitsandbytes(quantization: Quantization) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if quantization.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[quantization.compute_dtype],
    )


def trained_model(folder: Path, objective: Objective[Any]) -> PreTrainedModel:
    """Load the model that a train stage wrote; ModelError if it is for another task, so that its head would be random."""
    return _load(str(folder), objective, revision=None, is_whole=True)


def has_only_pickle(folder: Path) -> bool:
    """Return whether a local model folder has weights, but none that are safe to load."""
    suffixes = {path.suffix for path in folder.iterdir()}
    return ".safetensors" not in suffixes and bool(suffixes & {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"})


_PEFT_TASKS = {
    "text-generation": "CAUSAL_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "text2text-generation": "SEQ_2_SEQ_LM",
}
"""peft's names of the tasks, from which it knows which head is new and trained in full."""


@contextlib.contextmanager
def _ignore_peft_warning() -> Iterator[None]:
    """Ignore the warning that peft 0.21.2 causes by an old name of transformers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def _with_adapters(network: PreTrainedModel, lora: Lora, objective: Objective[Any]) -> PreTrainedModel:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type=_PEFT_TASKS.get(objective.pipeline_tag),
        # peft finds this by itself, but for token classification only after it has chosen the layers to adapt
        modules_to_save=["classifier", "score"] if objective.pipeline_tag == "token-classification" else None,
    )
    try:
        with _ignore_peft_warning():
            adapted: PreTrainedModel = get_peft_model(network, config)
    except ValueError as error:
        names = sorted({name.rpartition(".")[2] for name, _ in network.named_modules() if name})
        fix = f"choose from the model's layers: {', '.join(names)}"
        raise ModelError("model.lora", f"peft rejects it: {error}", fix) from error
    return adapted


def _build(
    config: dict[str, Any], objective: Objective[Any], state: ObjectiveState, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from_tokenizer = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    known = config["model_type"] in CONFIG_MAPPING
    if known and getattr(CONFIG_MAPPING[config["model_type"]], "is_encoder_decoder", False):
        start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        from_tokenizer |= {"decoder_start_token_id": start, "forced_eos_token_id": tokenizer.eos_token_id}
    try:
        full = AutoConfig.for_model(**(from_tokenizer | config | objective.model_config(state)))
        network: PreTrainedModel = objective.model_class().from_config(full)
    except Exception as error:
        raise ModelError("model.config", f"transformers rejects it: {error}", "fix the configuration") from error
    return network


def _load(
    path: str, objective: Objective[Any], *, revision: str | None, is_whole: bool = False, **overrides: Any
) -> PreTrainedModel:
    import torch

    if Path(path).is_dir() and has_only_pickle(Path(path)):
        fix = "convert them to safetensors with `save_pretrained`, and use that folder"
        raise ModelError(path, "has weights as pickle only, which can run code when loaded", fix)
    try:
        network, info = objective.model_class().from_pretrained(
            path,
            revision=revision or "main",
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **overrides,
        )
    except (ConnectionError, TimeoutError) as error:
        raise TransientError(path, f"cannot be downloaded: {error}", "try again when the Hub is reachable") from error
    except (OSError, ValueError, RuntimeError) as error:
        fix = "check the path, the revision and the model's type"
        raise ModelError(path, f"cannot be loaded: {error}", fix) from error
    if is_whole and (missing := sorted(info["missing_keys"])):
        what = f"lacks {', '.join(missing[:5])}, which {type(network).__name__} has"
        raise ModelError(path, what, "use the objective that the model was trained with")
    loaded: PreTrainedModel = network
    return loaded
