"""Keep processes from importing packages that they do not need.

transformers imports peft and torchao wherever they are installed, and peft imports the packages of quantization. That costs
each process seconds at its start, and lines in its log, for adapters and optimizers that most recipes do not use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from params.importing import source_files

_TRAINER = Path(__file__).parents[1]


def leave_out(*packages: str) -> None:
    """Make transformers believe that packages are not installed; call this before importing it."""
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def leave_out_unused(run: Any) -> None:
    """Leave out what a recipe or job does not use; the user's own code that it names may need anything."""
    named = source_files(run.model_dump(mode="json", exclude={"data"}))
    if run.model.lora is None and all(path.is_relative_to(_TRAINER) for _, path in named):
        leave_out("peft")
        if run.training.optimizer not in ("adamw_torch_4bit", "adamw_torch_8bit"):
            leave_out("torchao")
