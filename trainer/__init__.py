"""How a model learns: objectives, Trainer, checkpoints, and the worker that accelerate launches.

For scripts it offers `IterativeSFTTrainer` and `IterativeSFTConfig`, which are imported when they are first asked for:
`import trainer` alone stays free of torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.iterative import IterativeSFTConfig, IterativeSFTTrainer

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]


def __getattr__(name: str) -> object:
    """The names in `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer import iterative

    return getattr(iterative, name)
