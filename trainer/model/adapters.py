"""LoRA adapters: put beside the layers of a base model, merged into its weights, or written by themselves.

A folder with `adapter_config.json` holds an adapter as peft writes it: what was trained, and the name of its base model. Ours also
name the base model's commit, and have the whole model's `config.json` where the objective changes it: labels belong to the data.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from params import ModelError
from params.foundation.artifacts import ADAPTER
from params.schema import Lora
from trainer.objectives.bases.lazy_imports import PreTrainedModel, torch
from trainer.objectives.bases.objective import Objective
from trainer.runtime.imports import unhide_package
from trainer.runtime.model_files import check_safe_to_load

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
"""peft writes it before the name of each weight."""
PEFT_TASKS: Final[Mapping[str, str]] = {
    "text-generation": "CAUSAL_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "text2text-generation": "SEQ_2_SEQ_LM",
}
"""peft's names of the tasks, from which it knows which head is new and trained in full. Its model for QUESTION_ANS would be given no types of tokens."""
_NO_HEAD: Final = "FEATURE_EXTRACTION"
"""peft's name of other tasks, of which it knows no head; without any, it would write down which class of Python to import."""
_ADDED: Final = frozenset({"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "token_adapter"})
"""Parts of the names of weights that a base model has no place for."""
_HEADS: Final = ("classifier", "score")
"""Heads that peft trains in full and writes with the adapters."""


@dataclass(frozen=True)
class BaseModelReference:
    """What an adapter says of the model that it was trained on."""

    name: str
    """Hub repository or local folder."""
    revision: str | None
    """Commit, tag or branch of the repository."""
    task: str | None = None
    """One of the values of `PEFT_TASKS`."""

    @classmethod
    def of(cls, folder: Path) -> BaseModelReference:
        """Read it from the folder of an adapter; ModelError if that does not say it."""
        try:
            config = json.loads((folder / CONFIG).read_bytes())
            name, revision, task = (config.get(key) for key in ("base_model_name_or_path", "revision", "task_type"))
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(str(folder / CONFIG), f"cannot be read: {error}", "write the adapter with peft") from error
        if not isinstance(name, str) or not name:
            fix = "add `base_model_name_or_path` with its repository on the Hub"
            raise ModelError(str(folder / CONFIG), "names no base model", fix)
        return cls(name, revision if isinstance(revision, str) else None, task if isinstance(task, str) else None)


def is_adapter_folder(folder: Path) -> bool:
    """Return whether a folder holds an adapter instead of a whole model."""
    return (folder / CONFIG).exists()


def find_adapter(start: Path) -> Path | None:
    """Return the folder with the adapters of a release whose files are in `start`; None if it holds only a whole model."""
    return next((folder for folder in (start / ADAPTER, start) if is_adapter_folder(folder)), None)


def read_trained_layers(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of layers that were trained in full beside an adapter, by their names in its base model."""
    found = {name.removeprefix(_PREFIX): weight for name, weight in _load_weights(folder).items()}
    return {name: weight for name, weight in found.items() if not set(name.split(".")) & _ADDED}


def go_on_with_adapter(adapted: PreTrainedModel, folder: Path, lora: Lora) -> None:
    """Load an adapter's matrices into a model that `add_lora_adapters` has returned.

    Raises:
        ModelError: they have another rank or scale, or belong to other layers.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    config, fix = json.loads((folder / CONFIG).read_bytes()), "undo the change, or set model.start: base for one run"
    for key, name, given in (("model.lora.r", "r", lora.r), ("model.lora.alpha", "lora_alpha", lora.alpha)):
        if config.get(name) != given:
            raise ModelError.at(key, f"is {given}, and {config.get(name)} in the published adapters", fix)
    with warnings.catch_warnings(action="ignore"):  # as in `add_lora_adapters`
        own = dict(get_peft_model_state_dict(adapted))  # the layers that are trained in full stay as they are
        found = {name: weight for name, weight in _load_weights(folder).items() if set(name.split(".")) & _ADDED}
        if other := sorted({name for name in own if set(name.split(".")) & _ADDED} ^ found.keys()):
            what = f"the published adapters belong to other layers: {', '.join(other[:3])}"
            raise ModelError.at("model.lora", what, fix)
        set_peft_model_state_dict(adapted, own | found)


def _load_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    check_safe_to_load(folder, adapter=True)
    return load_file(folder / _WEIGHTS)


def add_lora_adapters(
    network: PreTrainedModel, lora: Lora, objective: Objective[Any], new: Sequence[str], tokens: Sequence[int] = ()
) -> PreTrainedModel:
    """Return the model with adapters. Layers with weights `new` to the base model are trained in full, and so are the rows of new `tokens`.

    ModelError if peft rejects the settings, or could not merge the adapters.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners.tuners_utils import check_target_module_exists

    task = PEFT_TASKS.get(objective.pipeline_tag, _NO_HEAD)
    in_full = _new_layers_in_full(objective, task, new)
    in_full += [name for name in lora.modules_to_save if name not in in_full]
    layers = [name for name, _ in network.named_modules() if name]
    fix = f"choose from the model's layers: {', '.join(sorted({_last_part(name) for name in layers}))}"
    _refuse_unknown_layers(lora, layers, fix)
    tied = _tied_layers(network)
    trained = {_last_part(name) for name in in_full}
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type=task,
        modules_to_save=in_full or None,
        ensure_weight_tying=not trained.isdisjoint(map(_last_part, tied)),
    )
    if tokens:
        frozen = _frozen_embeddings(network, trained)
        rows = {name: [*tokens] for name in frozen if not check_target_module_exists(config, name)}
        config.trainable_token_indices = rows or None
    try:
        # peft 0.21.2 uses old names of transformers
        with warnings.catch_warnings(action="ignore"):
            adapted: PreTrainedModel = get_peft_model(network, config)
    except ValueError as error:
        raise ModelError("model.lora", f"peft rejects it: {error}", fix) from error
    _refuse_adapters_of_tied_layers(adapted, tied)
    return adapted


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _new_layers_in_full(objective: Objective[Any], task: str, new: Sequence[str]) -> list[str]:
    """Return the layers with weights `new` to the base model that peft has to be told of; ModelError if one is inside of another."""
    # peft finds heads by itself, but for token classification only after it has chosen the layers to adapt
    heads = list(_HEADS) if objective.pipeline_tag == "token-classification" else []
    found_by_peft = set() if task == _NO_HEAD else {*_HEADS}
    layers = sorted({name.rpartition(".")[0] for name in new})
    in_full = heads + [name for name in layers if name and found_by_peft.isdisjoint(name.split("."))]
    for outer in in_full:
        if any(name.startswith(f"{outer}.") for name in in_full):
            what = f"the base model lacks weights of {outer} and of layers inside of it, which peft cannot train in full together"
            fix = f"remove `model.lora`, or use a base model that has the layer {outer}"
            raise ModelError("model.lora", what, fix)
    return in_full


def _refuse_unknown_layers(lora: Lora, layers: Sequence[str], fix: str) -> None:
    """Raise a ModelError if no layer has a name that the recipe gives; peft passes over such names."""
    targets = () if isinstance(lora.target_modules, str) else lora.target_modules
    for name in (*targets, *lora.modules_to_save):
        if not any(f".{layer}".endswith(f".{name}") for layer in layers):
            raise ModelError("model.lora", f"the model has no layer {name}", fix)


def _frozen_embeddings(network: PreTrainedModel, trained: Collection[str]) -> list[str]:
    """Return the embeddings that are not trained in full; of those that share their rows the first, as peft finds the other."""
    frozen = [name for name in _embedding_layers(network) if _last_part(name) not in trained]
    tied = _tied_layers(network)
    if not tied:
        return frozen
    return frozen[:1] if len(frozen) == len(tied) else []


def _refuse_adapters_of_tied_layers(adapted: PreTrainedModel, tied: Sequence[str]) -> None:
    """Raise a ModelError for an adapter of a tied layer: peft 0.21.2 adds it twice when it merges, and others to both layers."""
    from peft.tuners.lora import LoraLayer

    for name in tied:
        if isinstance(adapted.get_submodule(f"base_model.model.{name}"), LoraLayer):
            what = f"{' and '.join(tied)} share their weights, into which an adapter of {name} cannot be merged"
            ends = sorted({_last_part(one) for one in tied})
            fix = (
                f"leave {' and '.join(ends)} out of target_modules; `modules_to_save: [{ends[0]}]` trains them in full"
            )
            raise ModelError("model.lora", what, fix)


def _tied_layers(network: PreTrainedModel) -> list[str]:
    """Return the names of the layers of input and output embeddings, if they share their weights."""
    given, read = network.get_input_embeddings(), network.get_output_embeddings()
    if read is None or given.weight is not read.weight:
        return []
    return _embedding_layers(network)


def _embedding_layers(network: PreTrainedModel) -> list[str]:
    layers = {network.get_input_embeddings(), network.get_output_embeddings()}
    return [name for name, layer in network.named_modules() if layer in layers]


def merge_adapter(network: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge the adapter in `folder` into its base model. ModelError if it is not plain LoRA."""
    check_safe_to_load(folder, adapter=True)
    unhide_package("peft")
    from peft import PeftModel

    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # as in `add_lora_adapters`
        merged: PreTrainedModel = PeftModel.from_pretrained(network, str(folder)).merge_and_unload()
    return merged


def write_adapter(trained: Path, target: Path, *, base: str, commit: str | None) -> None:
    """Write the adapter in the folder `trained`, of a checkpoint, by itself to `target`; `base` and `commit` name its base model."""
    target.mkdir()
    config = json.loads((trained / CONFIG).read_bytes()) | {"base_model_name_or_path": base, "revision": commit}
    for key in ("target_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(set(config[key]))  # peft writes sets, in any order
    (target / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shutil.copyfile(trained / _WEIGHTS, target / _WEIGHTS)


def weights_missing_from_adapter(folder: Path, missing: Sequence[str]) -> list[str]:
    """Return which of the weights that the base model is `missing` the adapter in `folder` does not have either, sorted."""
    from safetensors import safe_open

    with safe_open(folder / _WEIGHTS, framework="pt") as file:
        return sorted(set(missing) - {name.removeprefix(_PREFIX) for name in file.keys()})  # noqa: SIM118 - no mapping
