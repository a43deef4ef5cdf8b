"""The published model that a training starts from: what stands in the place of the base model, and whether it is what the recipe asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from params import ModelError
from params.schema import Model
from trainer.model.adapters import BaseModelReference, find_adapter, is_adapter_folder
from trainer.objectives.bases.lazy_imports import transformers
from trainer.runtime.library_errors import as_loading_error, panics_as_errors
from trainer.runtime.model_files import check_safe_to_load

_NO_PART: Final = frozenset(
    {"vocab_size", "num_labels", "id2label", "label2id", "problem_type", "use_cache", "dtype", "torch_dtype"}
)
"""Values of a configuration that depend on the rows, the tokenizer, or how a model is trained and used."""
_FIX: Final = "set model.start: base for one run, whose release later runs can start from"


def resolve_start(start: Path | None, model: Model) -> tuple[Model, Path | None]:
    """Return the model section with the published model in the folder `start` as its pretrained model.

    If the section has adapters, and so has the published model, it keeps its base model, and the folder of those adapters is returned, too.
    Without `start` it is returned as it is.

    Raises:
        ModelError: there are only adapters, and they do not belong to the section's model.
    """
    if start is None:
        return model, None
    adapter = find_adapter(start)
    if adapter and model.lora and model.pretrained:
        base = BaseModelReference.of(adapter)
        if base.name != model.pretrained:
            what = f"the published adapters belong to {base.name}, and the recipe's model is {model.pretrained}"
            raise ModelError.at("model.start", what, _FIX)
        return model.model_copy(update={"revision": base.revision}), adapter
    if is_adapter_folder(start):
        what = "the release holds only adapters, and the recipe trains all weights"
        raise ModelError.at("model.start", what, "publish with publish.adapter: merged or both once, or add model.lora")
    return model.model_copy(update={"config": None, "pretrained": str(start), "revision": None}), None


def check_start_fits(start: Path, model: Model) -> None:
    """Check that the published model in the folder `start` is what the model section describes.

    Raises:
        ModelError: it has another architecture, or other sizes.
        TransientError: the Hub of the base model cannot be reached.
    """
    if is_adapter_folder(start):
        return  # they are those of the section's own model, see `resolve_start`
    found = _configuration(str(start), None)
    base, wanted = _described_model(model)
    for key in ("model_type", *wanted):
        if key in _NO_PART or not hasattr(found, key):
            continue
        theirs, ours = (_comparable(getattr(one, key), wanted.get(key)) for one in (found, base))
        if theirs != ours:
            what = f"the published model has {key} {theirs}, and the recipe's model {ours}"
            raise ModelError.at("model.start", what, f"{_FIX}; or undo the change of the model")


def _described_model(model: Model) -> tuple[Any, dict[str, Any]]:
    """Return the configuration that the model section describes, and its values that the published model must have."""
    if not model.pretrained:
        settings = model.config or {}
        return transformers.AutoConfig.for_model(**settings), settings
    base = _configuration(model.pretrained, model.revision)
    sizes = {key: value for key, value in base.to_dict().items() if type(value) is int}
    return base, {key: value for key, value in sizes.items() if not key.endswith("_token_id")}


def _comparable(value: Any, given: Any) -> Any:
    """Return a value of a configuration as JSON; of one with parts, those that are `given`. Other parts are defaults, or depend on the rows."""
    if isinstance(given, dict):
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        return {key: _comparable(parts.get(key), one) for key, one in given.items()}
    return list(value) if isinstance(value, tuple) else value


def _configuration(path: str, revision: str | None) -> Any:
    try:
        revision = check_safe_to_load(path, revision, weights=False)
        with panics_as_errors():
            return transformers.AutoConfig.from_pretrained(path, revision=revision or "main", trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise as_loading_error(path, error) from error
