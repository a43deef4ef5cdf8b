"""What of a trained model is for its users and not for its training: it is published as the base model has it.

Trainer switches the cache of generation off, and a training needs weights in single precision. Neither is meant for users.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from params import ModelError
from params.schema import Model
from trainer.objectives.bases.lazy_imports import GenerationConfig, PreTrainedConfig, torch, transformers
from trainer.runtime.model_files import check_safe_to_load

logger = logging.getLogger(__name__)
_HALF: Final = ("bfloat16", "float16")


def restore_use_settings(folder: Path, model: Model, too_coarse: Collection[str] = ()) -> None:
    """Give a trained model in a folder the base model's cache and number format (`model.published_dtype`).

    Whoever scores the folder scores what is published: weights that are rounded are rounded then. With a format that is `too_coarse` for
    the model's answers, all weights stay in single precision: `from_pretrained` reads and computes all of them in one format.
    """
    base, path = _configuration(model), folder / "config.json"
    config = json.loads(path.read_bytes())
    own = base.to_dict()
    config = {key: value for key, value in config.items() if key != "use_cache"}
    config |= {"use_cache": own["use_cache"]} if "use_cache" in own else {}
    dtype = str(getattr(base, "dtype", None)).removeprefix("torch.")
    if model.published_dtype == "base" and dtype in _HALF:
        if dtype in too_coarse:
            logger.warning(
                "train: published in single precision: the base model's %s is too coarse for the numbers", dtype
            )
        elif _round_weights(folder, dtype):
            config["dtype"] = dtype
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def read_number_format(folder: Path) -> str:
    """Return the number format of the weights of a model in a folder, such as `bfloat16`."""
    return str(json.loads((folder / "config.json").read_bytes()).get("dtype") or "float32")


def _configuration(model: Model) -> PreTrainedConfig:
    if model.pretrained is None:
        return transformers.AutoConfig.for_model(**dict(model.config or {}))
    revision = check_safe_to_load(model.pretrained, model.revision, weights=False)
    return transformers.AutoConfig.from_pretrained(
        model.pretrained, revision=revision or "main", trust_remote_code=False
    )


def _round_weights(folder: Path, dtype: str) -> bool:
    """Round the weights in a folder to 16 bits; leave them as they are if one is too large for that."""
    from safetensors.torch import load_file, save_file

    size, kind = 0, getattr(torch, dtype)
    for path in sorted(folder.glob("*.safetensors")):
        weights = {name: one.to(kind) if one.is_floating_point() else one for name, one in load_file(path).items()}
        if not all(bool(one.isfinite().all()) for one in weights.values()):
            logger.warning("train: published in single precision: a weight is too large for the base model's %s", dtype)
            for rounded in folder.glob("*.rounded"):
                rounded.unlink()
            return False
        save_file(weights, path.with_suffix(".rounded"), metadata={"format": "pt"})
        size += sum(one.numel() * one.element_size() for one in weights.values())
    for path in folder.glob("*.rounded"):
        path.rename(path.with_suffix(".safetensors"))
    for path in folder.glob("*.safetensors.index.json"):
        index = json.loads(path.read_bytes())
        index.setdefault("metadata", {})["total_size"] = size
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return True


def repair_generation_settings(settings: GenerationConfig, where: str) -> None:
    """Unset what has no effect beside other settings: transformers reads such settings, but saves no model that has them.

    ModelError if they contradict each other.
    """
    try:
        settings.validate(strict=True)
    except ValueError as error:
        idle = [name for name in re.findall(r"^- `(\w+)`", str(error), re.MULTILINE) if hasattr(settings, name)]
        for name in idle:
            setattr(settings, name, None)
        try:
            settings.validate(strict=True)
        except ValueError:
            what = f"its generation_config.json is invalid: {' '.join(str(error).split())[:500]}"
            raise ModelError(where, what, "correct that file; the model could not be saved") from error
        logger.info("%s: generation_config.json sets %s without effect; it is left out", where, ", ".join(idle))
