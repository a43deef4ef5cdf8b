"""What a process of ours need not import.

transformers imports peft and torchao wherever they are installed, and peft the packages of quantization: seconds at the start
of each process, and lines in its log, for adapters and optimizers that most recipes do not have.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from params.importing import source_files

_OURS = Path(__file__).parents[1]


def leave_out(*packages: str) -> None:
    """Let transformers believe that packages are not installed; to be called before it is imported."""
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def leave_out_unused(run: Any) -> None:
    """Leave out what a recipe or job has no use for; code of others that it names may ask for anything."""
    named = source_files(run.model_dump(mode="json", exclude={"data"}))
    if run.model.lora is None and all(path.is_relative_to(_OURS) for _, path in named):
        leave_out("peft")
        if not run.training.optimizer.startswith("adamw_torch_"):  # with so many bits: of torchao
            leave_out("torchao")
