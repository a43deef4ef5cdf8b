"""Whether a published model is of the architecture that a recipe asks for, so that a training can start from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from params import ModelError
from params.schema import Model
from trainer.objectives.bases.lazy_imports import transformers
from trainer.runtime.library_errors import as_loading_error
from trainer.runtime.model_files import check_safe_to_load

_OF_ROWS: Final = frozenset({"vocab_size", "num_labels", "return_dict", "is_decoder"})
"""Numbers of a configuration that depend on the rows and the tokenizer."""


def check_start_fits(start: Path, model: Model) -> None:
    """Check that the published model in the folder `start` is what the model section describes.

    Raises:
        ModelError: it has another architecture, or other sizes.
        TransientError: the Hub of the base model cannot be reached.
    """
    found = _configuration(str(start), None)
    wanted = (
        dict(model.config or {})
        if model.pretrained is None
        else _sizes(_configuration(model.pretrained, model.revision))
    )
    for key, value in wanted.items():
        if key in found and found[key] != value:
            what = f"the published model has {key} {found[key]}, and the recipe's model {value}"
            fix = "set model.start: base for one run, whose release later runs can start from; or undo the change of the model"
            raise ModelError.at("model.start", what, fix)


def _configuration(path: str, revision: str | None) -> dict[str, Any]:
    try:
        revision = check_safe_to_load(path, revision, weights=False)
        return dict(
            transformers.AutoConfig.from_pretrained(
                path, revision=revision or "main", trust_remote_code=False
            ).to_dict()
        )
    except (OSError, ValueError) as error:
        raise as_loading_error(path, error) from error


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a model, and its numbers of layers and the like."""
    sizes = {k: v for k, v in config.items() if type(v) is int and not k.endswith("_token_id") and k not in _OF_ROWS}
    return {"model_type": config["model_type"], **sizes}
