"""numpy, scipy, torch and transformers, imported when they are first used: so a recipe is read and checked without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import scipy
    import torch
    import torch.nn.functional as F
    import transformers
    from numpy.typing import NDArray
    from tokenizers import Encoding
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
else:

    class _Lazy(ModuleType):
        _module: ModuleType | None = None

        def __getattr__(self, name: str) -> Any:
            if (
                self._module is None
            ):  # looked for once: `import_module` takes longer than most functions that are called here
                self._module = importlib.import_module(self.__name__)
            return getattr(self._module, name)

    np, torch, F = _Lazy("numpy"), _Lazy("torch"), _Lazy("torch.nn.functional")
    transformers, scipy = _Lazy("transformers"), _Lazy("scipy")
    # for annotations, which are not evaluated
    NDArray = Encoding = GenerationConfig = PreTrainedConfig = PreTrainedModel = PreTrainedTokenizerBase = Any

__all__ = ["Encoding", "F", "GenerationConfig", "NDArray", "PreTrainedConfig", "PreTrainedModel"]
__all__ += ["PreTrainedTokenizerBase", "np", "scipy", "torch", "transformers"]
