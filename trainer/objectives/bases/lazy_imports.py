"""numpy and torch, imported when they are first used: so a recipe is read and checked without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from numpy.typing import NDArray
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    np, torch, F = _Lazy("numpy"), _Lazy("torch"), _Lazy("torch.nn.functional")
    NDArray = Any  # in annotations, which are not evaluated

__all__ = ["F", "NDArray", "np", "torch"]
