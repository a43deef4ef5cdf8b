"""A trainer for scripts: their own loop makes the rows, and every call of `step` learns from those it is given.

No stage uses it. It is a package of its own, because the key of a run hashes the modules that lie directly in trainer/
(`trainer.job.identity`), and a change here must not put a half-finished training of a recipe back to its start.
"""

from trainer.iterative.configuration import IterativeSFTConfig
from trainer.iterative.trainer import IterativeSFTTrainer

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]
