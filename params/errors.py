"""Every error that a user can cause, each with where it is, what is wrong and how to mend it.

    EvergreenError
    ├── RecipeError        the recipe is wrong; all of its problems at once
    ├── DataError          the rows are wrong: missing, unreadable, or too many of them bad
    ├── ModelError         the model cannot be built, loaded or trained as the recipe asks
    │   ├── CheckpointError    a checkpoint that the recipe names is damaged, incomplete, or of another run
    │   ├── DivergedError      the loss or the gradient is not finite
    │   └── MemoryExhaustedError   not even a smaller micro-batch fits into memory
    ├── ValidationEngineError   a check could not be run, which says nothing about the data
    ├── HubRefusedError    the Hub answered, and the answer is no (access, name, conflict)
    ├── StorageError       the disk is full, or a folder cannot be written
    └── TransientError     the same call may succeed later: network, busy lock, preemption
        ├── KilledError    a process was killed from outside
        ├── PreemptedError the training was asked to stop, and left a checkpoint
        ├── StaleBlessingError   another model was published since the gate judged this one
        └── StalledError   a process of a training made no progress any more

`exit_code` follows sysexits.h, so that a parent process can tell the classes apart; only those under `TransientError`
are worth a retry.
"""

from __future__ import annotations

import os
from typing import ClassVar, Self


class EvergreenError(Exception):
    """An error with an address, a cause and a remedy.

    Args:
        where: the place, as precisely as it is known: `file:line`, a key, a row, a URL.
        what: what is wrong there, with the value that was found.
        fix: what the user can do about it.
        key: the recipe's key that it is about, for example `training.callbacks.0`; empty if it is about none.
    """

    exit_code: ClassVar[int] = os.EX_SOFTWARE

    def __init__(self, where: str, what: str, fix: str, *, key: str = "") -> None:
        super().__init__(where, what, fix)
        self.where = where
        self.what = what
        self.fix = fix
        self.key = key

    @classmethod
    def at(cls, key: str, what: str, fix: str) -> Self:
        """An error at `key` of the recipe."""
        return cls(key, what, fix, key=key)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n  fix: {self.fix}"


class RecipeError(EvergreenError):
    """The recipe cannot be run as it is written."""

    exit_code = os.EX_CONFIG


class DataError(EvergreenError):
    """The data cannot be used as it is."""

    exit_code = os.EX_DATAERR


class ModelError(EvergreenError):
    """The model cannot be built, loaded or trained as the recipe asks."""

    exit_code = os.EX_NOINPUT


class CheckpointError(ModelError):
    """A checkpoint that was asked for cannot be gone on from; nothing starts afresh in its stead."""


class DivergedError(ModelError):
    """The loss or the gradient became infinite or not a number."""


class MemoryExhaustedError(ModelError):
    """The model does not fit, however small the micro-batch."""


class ValidationEngineError(EvergreenError):
    """A check failed to run: the data may be good or bad, nobody has looked."""

    exit_code = os.EX_SOFTWARE


class HubRefusedError(EvergreenError):
    """The Hub refused, and would refuse again."""

    exit_code = os.EX_NOPERM


class StorageError(EvergreenError):
    """An artifact could not be written."""

    exit_code = os.EX_IOERR


class TransientError(EvergreenError):
    """Nothing is wrong with recipe, data or model: try again later."""

    exit_code = os.EX_TEMPFAIL


class KilledError(TransientError):
    """A process was ended from outside, by a signal."""


class PreemptedError(TransientError):
    """The training was asked to stop; its checkpoint is where the next start goes on."""


class StaleBlessingError(TransientError):
    """The gate compared with a champion that is no longer the published model: the comparison must be made again."""


class StalledError(TransientError):
    """A process of a training stood still."""
