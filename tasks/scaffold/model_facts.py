"""What a pretrained model is, from its configuration and the headers of its weights; nothing large is downloaded or loaded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from params import ModelError
from params.foundation.artifacts import fix_missing_model
from params.sections.base import repo_id_problem
from tasks.report.formatting import format_large_number
from tasks.scaffold import hub
from trainer.objectives.advice.base import ModelKind
from trainer.runtime.model_files import check_safe_to_load

_ENCODERS: Final = re.compile(
    r".*bert.*|electra|deberta.*|mpnet|ernie.*|roformer|xlnet|xlm|funnel|longformer|big_bird|nystromformer"
    r"|canine|esm|data2vec-text|fnet|yoso|mra|luke"
)
"""Types of models that read a whole text at once."""
_DECODER_HEADS: Final = ("ForCausalLM", "LMHeadModel")
_CONFIG_FILES: Final = ["config.json", "tokenizer*.json", "special_tokens_map.json", "chat_template.jinja", "vocab*"]
_USUAL_LIMIT: Final = 100_000
"""Tokenizers without a limit say 1e30."""


@dataclass(frozen=True)
class ModelFacts:
    """A pretrained model."""

    path: str
    """Local folder or Hub repository, as the recipe names it."""
    revision: str | None
    """The commit of a repository; None for a folder."""
    model_type: str
    kind: ModelKind
    parameters: int
    positions: int | None
    """Longest sequence in tokens; None if there is no limit."""
    has_chat_template: bool

    @property
    def size(self) -> str:
        """The number of parameters, for people: `22.7 M`."""
        return format_large_number(self.parameters)


def read_model_facts(model: str, root: Path = Path()) -> ModelFacts:
    """Return what a model is: a folder, or `owner/name[@revision]` on the Hub, pinned to its commit.

    Raises:
        ModelError: it does not exist, or cannot be used here.
    """
    if (root / model).is_dir():
        check_safe_to_load(root / model, where=model)
        return _facts(model, None, root / model, hub.count_local_parameters(root / model))
    name, _, revision = model.partition("@")
    if model.startswith((".", "/", "~")) or name.count("/") != 1 or repo_id_problem(name):
        fix = "give a local folder, or owner/name of a repository on the Hub"
        raise ModelError("--model", f"there is no folder {model}", fix_missing_model(model, root) or fix)
    return _facts(name, *hub.download_and_count_parameters(name, revision or "main", _CONFIG_FILES))


def _facts(path: str, revision: str | None, folder: Path, parameters: int | None) -> ModelFacts:
    config = _json(folder / "config.json")
    if "model_type" not in config:
        raise ModelError(path, "has no config.json with a `model_type`", "give the folder or repository of a model")
    if parameters is None:
        fix = "load them where you trust them, and write safetensors with `save_pretrained`"
        raise ModelError(path, "has no weights as safetensors; other formats are never loaded", fix)
    if not (folder / "tokenizer.json").exists():
        raise ModelError(path, "has no tokenizer.json", "save its fast tokenizer into the same folder")
    tokenizer = _json(folder / "tokenizer_config.json")
    has_template = bool(tokenizer.get("chat_template")) or (folder / "chat_template.jinja").exists()
    positions = _positions(path, folder, tokenizer)
    return ModelFacts(path, revision, str(config["model_type"]), _kind(config), parameters, positions, has_template)


def _kind(config: Mapping[str, Any]) -> ModelKind:
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    architectures = [str(name) for name in config.get("architectures") or ()]
    is_encoder = bool(_ENCODERS.fullmatch(str(config["model_type"])))
    if is_encoder and not (config.get("is_decoder") and any(name.endswith(_DECODER_HEADS) for name in architectures)):
        return "encoder"
    return "decoder"


def _positions(path: str, folder: Path, tokenizer: Mapping[str, Any]) -> int | None:
    """Return the smallest of the limits of network and tokenizer."""
    from trainer.model.limits import find_position_limits_in

    try:
        found = [find_position_limits_in(folder).most or math.inf]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        what = f"its config.json cannot be used: {' '.join(str(error).split())[:300]}"
        raise ModelError(path, what, "name a model that transformers knows") from error
    if isinstance(limit := tokenizer.get("model_max_length"), int | float) and limit < _USUAL_LIMIT:
        found.append(limit)
    return None if min(found) == math.inf else int(min(found))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
