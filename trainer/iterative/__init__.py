"""A trainer for scripts: their own loop makes the rows, and every call of `step` learns from those it is given.

No stage uses it, so a change here changes no run's key (`trainer.identity`).
"""

from trainer.iterative.configuration import IterativeSFTConfig
from trainer.iterative.trainer import IterativeSFTTrainer

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]
