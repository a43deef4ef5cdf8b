"""The model: built from a configuration, or loaded from safetensors; never from pickle, never with remote code.

With adapters (`model.lora`) the base model is frozen, and in 4 or 8 bits with `model.quantization`. Checkpoints hold only the
trained parameters; `write_merged_and_adapter` adds them to the base model in full precision, and writes them by themselves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from params import ModelError, Problem
from params.foundation.installation import install_extra
from params.schema import Launch, Model, Quantization
from trainer.model import adapters, label_head
from trainer.model.causality import CLASS_FOR_NEXT_TOKENS, decoder_settings
from trainer.model.use_settings import repair_generation_settings
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch, transformers
from trainer.objectives.bases.network.alignment import align_weights
from trainer.objectives.bases.objective import Objective, ObjectiveState
from trainer.objectives.bases.texts.padding import put_padding_before_text
from trainer.objectives.bases.texts.tokenizing import Tokenizer
from trainer.runtime.library_errors import as_loading_error, is_hub_away, panics_as_errors
from trainer.runtime.model_files import check_safe_to_load, has_only_unsafe_weights

_OF_HEAD: Final = ("num_labels", "id2label")
"""Keys that an objective sets for a head of its own."""
logger = logging.getLogger(__name__)
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


def build_model_to_train(
    model: Model, *, objective: Objective[Any], state: ObjectiveState, tokenizer: Tokenizer, seed: int
) -> PreTrainedModel:
    """Return the model as it is before training; the same arguments give the same weights.

    ModelError if the configuration or the folder is invalid, TransientError if the Hub cannot be reached.
    """
    parts: Any = {"objective": objective, "state": state, "tokenizer": tokenizer, "seed": seed}
    return build_model_and_name_new_weights(model, **parts)[0]


def build_model_and_name_new_weights(
    model: Model,
    *,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: Tokenizer,
    seed: int,
    adapter: Path | None = None,
) -> tuple[PreTrainedModel, list[str]]:
    """As `build_model_to_train`, with the names of the weights that its base model lacks; none if all weights are new.

    The adapters go on from those in the folder `adapter`.
    """
    network, new = _untrained(model, objective, state, tokenizer, seed, model.quantization, adapter)
    if model.lora is None:
        return network, new
    tokens = _tokens_new_to_base(model, tokenizer)
    adapted = adapters.add_lora_adapters(network, model.lora, objective, new, tokens)
    if adapter:
        adapters.go_on_with_adapter(adapted, adapter, model.lora)
    return adapted, new


def _tokens_new_to_base(model: Model, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that were added to the base model's tokenizer. Its embeddings may have rows for them, but never trained these."""
    if model.pretrained is None or not tokenizer.added_tokens_decoder:
        return []
    try:
        revision = check_safe_to_load(model.pretrained, model.revision, weights=False)
        own = transformers.AutoTokenizer.from_pretrained(
            model.pretrained, revision=revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        if is_hub_away(error):
            raise as_loading_error(model.pretrained, error) from error
        return []  # it has none
    if own.vocab_size != tokenizer.vocab_size:
        return []  # it is another one
    known = own.get_vocab()
    return sorted(n for n, token in tokenizer.added_tokens_decoder.items() if known.get(token.content) != n)


def find_model_conflicts(model: Model, launch: Launch) -> Iterator[Problem]:
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
        yield Problem(key, "bitsandbytes is not installed", install_extra("quantization"))


def write_merged_and_adapter(
    trained: Path,
    target: Path,
    adapter: Path,
    model: Model,
    *,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: Tokenizer,
    seed: int,
) -> int:
    """Write what adapters have learned, in a checkpoint's folder `trained`; return the number of parameters of the whole model.

    `target` gets the base model with the adapters merged into it. `adapter` gets the adapters by themselves, unless they need
    random weights that only `target` has, or the Hub does not say which commit of the base model was loaded.
    """
    from transformers.utils.hub import resolve_revision

    resolved = resolve_revision(model.pretrained, model.revision)
    commit = getattr(resolved, "resolved", None)
    pinned = model.model_copy(update={"revision": resolved})
    with _said_when_it_was_trained():
        base, new = _untrained(pinned, objective, state, tokenizer, seed)
    merged = adapters.merge_adapter(base, trained)
    merged.save_pretrained(str(target))
    is_known = model.pretrained is not None and (commit or Path(model.pretrained).is_dir())
    given = base.get_input_embeddings()
    is_resized = any(layer is given and f"{name}.weight" in new for name, layer in base.named_modules())
    if is_known and not is_resized and not adapters.weights_missing_from_adapter(trained, new):
        adapters.write_adapter(trained, adapter, base=str(model.pretrained), commit=commit)
        # the base model's configuration lacks the labels, or that it is a decoder
        if objective.model_config(state) or decoder_settings(base.config.model_type, objective):
            shutil.copyfile(target / "config.json", adapter / "config.json")
        if getattr(tokenizer, "tgt_lang", None):  # the base model's settings of generation lack the language of targets
            shutil.copy(target / "generation_config.json", adapter)
    return sum(weight.numel() for weight in merged.parameters())


def build_untrained_model(
    model: Model,
    *,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: Tokenizer,
    seed: int,
    adapter: Path | None = None,
) -> PreTrainedModel:
    """As `build_model_to_train`, in full precision, and without adapters, which start as zero, or with those in a folder merged."""
    with _said_when_it_was_trained():
        untrained, _ = _untrained(model, objective, state, tokenizer, seed)
        return adapters.merge_adapter(untrained, adapter) if adapter else untrained


@contextlib.contextmanager
def _said_when_it_was_trained() -> Iterator[None]:
    """Do not say again in the block what a base model lacks, and what of it is used."""
    ours = logging.getLogger(__package__)
    level = ours.level
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(level)


def _untrained(  # noqa: PLR0917
    model: Model,
    objective: Objective[Any],
    state: ObjectiveState,
    tokenizer: Tokenizer,
    seed: int,
    quantization: Quantization | None = None,
    adapter: Path | None = None,
) -> tuple[PreTrainedModel, list[str]]:
    """Return a model, and the names of the weights that its base model lacks; none if all weights are new."""
    transformers.set_seed(seed)
    new, problem_type = list[str](), objective.model_config(state).get("problem_type")
    if model.pretrained is not None:
        overrides = dict(objective.model_config(state))
        has_head = not overrides.keys().isdisjoint(_OF_HEAD)
        if "id2label" in overrides:
            overrides.pop("num_labels", None)  # it follows; transformers would warn that the base has another number
        if quantization:
            kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
            overrides["quantization_config"] = transformers.BitsAndBytesConfig(
                load_in_8bit=quantization.bits == 8,
                load_in_4bit=quantization.bits == 4,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=quantization.double_quant,
                bnb_4bit_compute_dtype=kinds[quantization.compute_dtype],
            )
        network, new, resized = _load(
            model.pretrained, objective.model_class(), revision=model.revision, objective=objective, **overrides
        )
        if has_head:
            other_head = label_head.keep_rows_of_known_labels(
                network, model.pretrained, new, resized, problem_type=problem_type
            )
            new = sorted({*new, *other_head})
            label_head.settle_configuration(network, tokenizer, overrides)
        for layer in network.modules():
            # bitsandbytes 0.50.2 would round the scales of weights at the first evaluation on some CPUs, for good
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False
        new += _add_rows_for_added_tokens(network, tokenizer, str(model.pretrained))
        if getattr(network.config, "pad_token_id", None) is None:  # Trainer sets it, too, but not for what is merged
            network.config.pad_token_id = tokenizer.pad_token_id
    else:
        network = _build(dict(model.config or {}), objective, state, tokenizer)
    layers = adapters.read_trained_layers(adapter) if adapter else {}
    trained = label_head.put_trained_layers(network, adapter, layers, problem_type) if adapter else set()
    random = {*new} - trained if model.pretrained else [*network.state_dict()]
    objective.prepare_model(network, tokenizer, state, random)
    return network, new


def _add_rows_for_added_tokens(network: PreTrainedModel, tokenizer: Tokenizer, name: str) -> list[str]:
    """Give the embeddings rows for the tokens that were added to the tokenizer, and return the names of their weights; none if they have them.

    ModelError if the tokenizer has other tokens without a row, unless their numbers only leave gaps.
    """
    rows = network.get_input_embeddings().num_embeddings
    lacking = sorted(number for number in tokenizer.get_vocab().values() if number >= rows)
    if not lacking:
        return []
    if len(tokenizer) > rows and not set(lacking) <= set(tokenizer.added_tokens_decoder):
        what = f"has {len(tokenizer)} tokens, but {name} has embeddings for {rows}"
        raise ModelError("tokenization.tokenizer", what, "use the tokenizer that belongs to the model")
    tokens = ", ".join(str(token) for token in tokenizer.convert_ids_to_tokens(lacking))
    logger.info("train: new rows in the embeddings of %s, for %s", name, tokens)
    network.resize_token_embeddings(lacking[-1] + 1)
    layers = {network.get_input_embeddings(), network.get_output_embeddings()}
    return [f"{own}.weight" for own, layer in network.named_modules() if layer in layers]


def load_trained_model(folder: Path, model_class: type[Any]) -> PreTrainedModel:
    """Load a trained model by an auto class of transformers: a whole one, or an adapter, which is merged into its base model.

    ModelError if it is for another task, so that its head would be random.
    """
    if adapters.is_adapter_folder(folder):
        base = adapters.BaseModelReference.of(folder)
        check_safe_to_load(folder, adapter=True)
        changed = {}
        if (folder / "config.json").exists():
            try:
                changed["config"] = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
            except (OSError, ValueError) as error:
                raise as_loading_error(str(folder), error) from error
        network, missing, resized = _load(base.name, model_class, revision=base.revision, **changed)
        if lacking := adapters.weights_missing_from_adapter(folder, missing + resized):
            what = f"neither the adapter nor its base model, {base.name}, has {', '.join(lacking[:5])}"
            raise ModelError(str(folder), what, "use the objective and base model that the adapter was trained with")
        if (settings := folder / "generation_config.json").exists():
            network.generation_config = transformers.GenerationConfig.from_dict(json.loads(settings.read_bytes()))
        return adapters.merge_adapter(network, folder)
    network, missing, _ = _load(str(folder), model_class, revision=None)
    if missing:
        what = f"lacks {', '.join(missing[:5])}, which {type(network).__name__} has"
        raise ModelError(str(folder), what, "use the objective that the model was trained with")
    return network


def _build(
    config: dict[str, Any], objective: Objective[Any], state: ObjectiveState, tokenizer: Tokenizer
) -> PreTrainedModel:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    from_tokenizer = {"vocab_size": len(tokenizer), **special}
    known = config["model_type"] in CONFIG_MAPPING
    if known and getattr(CONFIG_MAPPING[config["model_type"]], "is_encoder_decoder", False):
        start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        from_tokenizer |= {"decoder_start_token_id": start, "forced_eos_token_id": tokenizer.eos_token_id}
    try:
        settings = from_tokenizer | decoder_settings(config["model_type"], objective) | config
        full = transformers.AutoConfig.for_model(**(settings | objective.model_config(state)))
        network: PreTrainedModel = objective.model_class().from_config(full, trust_remote_code=False)
    except Exception as error:
        raise ModelError("model.config", f"transformers rejects it: {error}", "fix the configuration") from error
    return put_padding_before_text(network)


def _load(
    path: str,
    model_class: type[Any],
    *,
    revision: str | None,
    objective: Objective[Any] | None = None,
    **overrides: Any,
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Return a model from a folder or a repository, and the names of the weights that these lack, and have in another size, sorted.

    The size may be another one only where `overrides` may change the number of labels. An encoder becomes a decoder where an `objective` asks
    for it.
    """
    from safetensors import SafetensorError

    theirs = logging.getLogger("transformers.modeling_utils")
    if Path(path).is_dir() and has_only_unsafe_weights(Path(path)):
        fix = "convert them to safetensors with `save_pretrained`, and use that folder"
        raise ModelError(path, "has weights as pickle only, which can run code when loaded", fix)
    transformers.logging.disable_progress_bar()
    try:
        theirs.addFilter(_is_no_table_of_weights)
        revision = check_safe_to_load(path, revision)
        if objective:
            overrides |= _settings_as_decoder(path, revision, objective)
        with panics_as_errors():
            network, info = model_class.from_pretrained(
                path,
                revision=revision or "main",
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **overrides,
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise as_loading_error(path, error) from error
    finally:
        theirs.removeFilter(_is_no_table_of_weights)
    missing, resized = sorted(info["missing_keys"]), sorted(name for name, *_ in info["mismatched_keys"])
    if resized and overrides.keys().isdisjoint((*_OF_HEAD, "config")):
        what = f"cannot be loaded: its configuration fits another size of {', '.join(resized[:5])}"
        raise ModelError(path, what, "use a model whose config.json belongs to its weights")
    total = len(network.state_dict())
    _log_weights(path, "lacks", missing, total, "new")
    _log_weights(path, "has", info["unexpected_keys"], total, "not used")
    if network.can_generate():
        repair_generation_settings(network.generation_config, path)
    if hasattr(network.config, "auto_map"):  # transformers has its code: what is saved must not ask others to run any
        del network.config.auto_map
    align_weights(network)
    return put_padding_before_text(network), missing, resized


def _log_weights(path: str, verb: str, names: Collection[str], total: int, what: str) -> None:
    """Log which layers the files of a model lack, or have beside those of the model; as a warning if they are most of it."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in sorted(names)))
    if not layers:
        return
    told = ", ".join(layers[:5]) + (f" and {len(layers) - 5} more layers" if len(layers) > 5 else "")
    level = logging.WARNING if len(names) > total / 2 else logging.INFO
    logger.log(level, "%s %s weights of %s (%d of %d): they are %s", path, verb, told, len(names), total, what)


def _settings_as_decoder(path: str, revision: str | None, objective: Objective[Any]) -> dict[str, bool]:
    if objective.auto_class != CLASS_FOR_NEXT_TOKENS:
        return {}
    known = transformers.AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=False)
    settings = decoder_settings(known.model_type, objective)
    if settings and not known.is_decoder:
        logger.info("train: %s reads in both directions; it becomes a decoder (is_decoder) to learn next tokens", path)
    return settings


def _is_no_table_of_weights(record: logging.LogRecord) -> bool:
    """Whether a line of transformers' log is not its table of weights, all of which `_load` says, but those that it could not convert."""
    return "LOAD REPORT" not in record.getMessage() or "CONVERSION" in record.getMessage()
