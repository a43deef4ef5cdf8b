"""Base models on a Hub over HTTP, on which adapters are trained; and what reads Hubs in this process, pointed at that Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from tests.support import tiny
from tests.support.pretrained import write_model

LORA = {"r": 4, "alpha": 8}
SFT = {"name": "sft", "prompt_column": "text", "completion_column": "label"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal_lm": ("llama", {}),
    "sft": ("llama", {"objective": SFT}),
    "sequence_classification": ("bert", tiny.CLASSES),
    "token_classification": ("bert", tiny.TAGS),
    "regression": ("bert", tiny.NUMBERS),
    "seq2seq": ("t5", tiny.TARGETS),
}
"""The type of the base model, and the sections of a recipe."""


def upload(api: HfApi, folder: Path, name: str = "", *, private: bool = False, **config: Any) -> str:
    """Upload a new base model, by default named after its type, that of `folder`; return its commit."""
    repo_id = f"tests/{name or folder.name}"
    api.create_repo(repo_id, private=private)
    write_model(folder, folder.name, **config)
    return str(api.upload_folder(repo_id=repo_id, folder_path=folder).oid)


def recipe(kind: str, changes: dict[str, Any] | None = None, *, base: str = "") -> dict[str, Any]:
    """The tiny recipe with adapters on the base model of a kind, or on the repository `base`."""
    model_type, sections = KINDS[kind]
    base = base or f"tests/{model_type}"
    model = {"pretrained": base, "lora": LORA}
    tokenization = {"tokenizer": {"kind": "pretrained", "path": base}, "max_length": 64}
    # Few steps teach little, and a first release is compared with the untrained model if there is one.
    settings = {"evaluation.compare_untrained": False, "publish.private": False, **(changes or {})}
    return tiny.recipe(settings, **{**sections, "model": model, "tokenization": tokenization})


def use_hub(patch: pytest.MonkeyPatch, endpoint: str, token: str, cache: Path) -> None:
    """Let this process, which has read the environment when it imported the client, use a Hub and a cache of its own."""
    patch.setenv("HF_ENDPOINT", endpoint)
    patch.setenv("HF_TOKEN", token)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    for place, url in (("ENDPOINT", ""), ("HUGGINGFACE_CO_URL_TEMPLATE", "/{repo_id}/resolve/{revision}/{filename}")):
        patch.setattr(f"huggingface_hub.constants.{place}", f"{endpoint}{url}")
    patch.setattr("huggingface_hub.hf_api.api.endpoint", endpoint)
    patch.setattr("transformers.utils.hub._hf_api", None)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    patch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(cache))
