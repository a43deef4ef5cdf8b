"""What a trained model's weights are used with, such as thresholds, in the headers of their files, too.

Two models with equal weights and other thresholds are two models. Whoever tells models apart hashes the files of weights: those on a Hub
without a download (`tasks/digests.py`). The format: https://huggingface.co/docs/safetensors/index#format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from params import ModelError

_KEY: Final = "evergreen"
_MAX_HEADER_BYTES: Final = 100_000_000
"""No header of safetensors is larger."""


def write_chosen_settings(folder: Path, chosen: Mapping[str, Any]) -> None:
    """Write settings into each config.json of weights in a folder, and into the header of the first file of these weights."""
    for path in sorted(folder.rglob("config.json")):
        for weights in sorted(path.parent.glob("*.safetensors"))[:1]:
            content = json.loads(path.read_bytes()) | chosen
            path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
            new = weights.with_suffix(".new")
            with weights.open("rb") as file, new.open("wb") as changed:
                header = _read_header(file)
                header["__metadata__"] = {**header.get("__metadata__", {}), _KEY: json.dumps(chosen, sort_keys=True)}
                text = json.dumps(header, separators=(",", ":")).encode()
                text += b" " * (-len(text) % 8)
                changed.write(len(text).to_bytes(8, "little") + text)
                shutil.copyfileobj(file, changed, 1 << 20)
            new.replace(weights)


def check_chosen_settings(folder: Path) -> None:
    """Raise a ModelError if a config.json in a folder has other settings than those that were chosen for its weights."""
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb") as file:
            chosen = json.loads(_read_header(file).get("__metadata__", {}).get(_KEY, "{}"))
        config = json.loads((path.parent / "config.json").read_bytes()) if chosen else {}
        for key in chosen:
            if config.get(key) != chosen[key]:
                what = f"{key} is not what was chosen for these weights on the validation split"
                raise ModelError(str(path.parent / "config.json"), what, "train again, or undo the edit")


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """Return the header of a file of weights, and leave the file where its data begin; empty if it has none."""
    size = int.from_bytes(file.read(8), "little")
    try:
        return dict(json.loads(file.read(size))) if size <= _MAX_HEADER_BYTES else {}
    except ValueError:  # whoever loads it says what is wrong
        return {}
