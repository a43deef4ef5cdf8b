"""numpy and torch, imported when they are first used, and types of other slow libraries: a recipe is read and checked without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from numpy.typing import NDArray
    from tokenizers import Encoding
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    np, torch, F = _Lazy("numpy"), _Lazy("torch"), _Lazy("torch.nn.functional")
    NDArray = Encoding = Any  # in annotations, which are not evaluated
    PreTrainedModel = PreTrainedTokenizerBase = Trainer = TrainingArguments = Any

__all__ = ["F", "np", "torch"]
__all__ += ["Encoding", "NDArray", "PreTrainedModel", "PreTrainedTokenizerBase", "Trainer", "TrainingArguments"]
