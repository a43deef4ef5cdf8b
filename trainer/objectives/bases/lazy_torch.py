"""torch and its functions, imported when they are first used: so `check` can use an objective without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    torch, F = _Lazy("torch"), _Lazy("torch.nn.functional")

__all__ = ["F", "torch"]
