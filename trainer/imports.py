"""What a process of ours need not import.

transformers imports peft wherever it is installed, and peft the packages of quantization: 2 to 4 seconds at the start of
each process, for adapters that most recipes do not have.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from params.importing import source_files

_OURS = Path(__file__).parent


def without_peft() -> None:
    """Let transformers believe that peft is not installed; to be called before transformers is imported."""
    sys.modules.setdefault("peft", None)  # type: ignore[arg-type]


def spare_peft(run: Any) -> None:
    """Do without peft, unless the model of a recipe or job has adapters, or code of others that it names may ask for it."""
    named = source_files(run.model_dump(mode="json", exclude={"data"}))
    if run.model.lora is None and all(path.is_relative_to(_OURS) for _, path in named):
        without_peft()
