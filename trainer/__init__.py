"""How a model learns: objectives, Trainer, checkpoints, and the worker that accelerate launches.

For scripts it offers `IterativeSFTTrainer` and `IterativeSFTConfig`, imported on first use, so that `import trainer` does not
import torch.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.iterative import IterativeSFTConfig, IterativeSFTTrainer

OPENMP_SPINS = "10000"
"""How often a waiting thread of GNU OpenMP looks for work before it sleeps, which it reads when torch is imported.

That takes 0.1 to 0.6 ms, longer than most pauses of a step. The default of 300,000 takes 4 to 20 ms, more than a turn on a CPU: on a
machine that other programs use, it takes the turn of the thread that it waits for.
"""

if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = OPENMP_SPINS

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]


def __getattr__(name: str) -> object:
    """Import a name of `__all__`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer import iterative

    return getattr(iterative, name)
