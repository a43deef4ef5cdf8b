"""Keep processes from importing packages that they do not need.

transformers imports peft and torchao wherever they are installed, and peft imports the packages of quantization. That costs
each process seconds at its start, and lines in its log, for adapters and optimizers that most recipes do not use.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from params.importing import find_named_source_files

_TRAINER = Path(__file__).parents[1]


def hide_packages(*packages: str) -> None:
    """Make a library believe that packages are not installed; call this before importing it."""
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def unhide_package(package: str) -> None:
    """Let a package be imported after all, by what turns out to need it."""
    if package in sys.modules and sys.modules[package] is None:
        del sys.modules[package]


@contextlib.contextmanager
def hide_packages_in_block(*packages: str, stubs: Iterable[str] = ()) -> Iterator[None]:
    """Leave packages out of what the block imports, or give it empty modules for `stubs`, which it imports but will not use.

    Packages that are imported already stay.
    """
    missing = [package for package in (*packages, *stubs) if package not in sys.modules]
    sys.modules |= {name: ModuleType(name) for name in missing if name in stubs}
    hide_packages(*missing)
    try:
        yield
    finally:
        for package in missing:
            del sys.modules[package]


def defer_import(module: str) -> None:
    """Import `package.module` when one of its names is first used, although others write `from package import module`."""
    if module in sys.modules:
        return
    package, _, name = module.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec, f"{module} is not installed"
    assert spec.loader, f"{module} is not a file"
    spec.loader = importlib.util.LazyLoader(spec.loader)
    deferred = importlib.util.module_from_spec(spec)
    sys.modules[module] = deferred
    spec.loader.exec_module(deferred)
    setattr(sys.modules[package], name, deferred)


def import_losses_without_scipy() -> None:
    """Import the losses of transformers, which come with the code of each network; those of object detection would import scipy.

    That takes an eighth of the import of a network's code. For all other code, scipy is installed.
    """
    from transformers import utils

    names = vars(utils)
    is_scipy_available = names["is_scipy_available"]
    names["is_scipy_available"] = lambda: False
    try:
        importlib.import_module("transformers.loss.loss_utils")
    finally:
        names["is_scipy_available"] = is_scipy_available


def hide_unused_packages(run: Any) -> None:
    """Leave out what a recipe or job does not use; the user's own code that it names may need anything."""
    named = find_named_source_files(run.model_dump(mode="json", exclude={"data"}))
    files = [_TRAINER / "objectives" / f"{run.objective.name}.py", *(path for _, path in named)]
    if run.model.lora is None and all(file.is_relative_to(_TRAINER) and file.exists() for file in files):
        hide_packages("peft")
        if run.training.optimizer not in ("adamw_torch_4bit", "adamw_torch_8bit"):
            hide_packages("torchao")
