"""A trainer for scripts with a loop of their own: each call of `step` trains on the rows that the script passes.

No stage uses it, so a change here changes no run's key (`trainer.identity`).
"""

from trainer.iterative.configuration import IterativeSFTConfig
from trainer.iterative.trainer import IterativeSFTTrainer

__all__ = ["IterativeSFTConfig", "IterativeSFTTrainer"]
