"""How a model learns: objectives, Trainer, checkpoints, and the worker that accelerate launches.

For scripts it offers `IterativeSFTTrainer` and `IterativeSFTConfig`, imported on first use, so that `import trainer` does not
import torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.iterative import IterativeSFTConfig, IterativeSFTTrainer

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]


def __getattr__(name: str) -> object:
    """Import a name of `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer import iterative

    return getattr(iterative, name)
