"""Every error that a user can cause: where it is, what is wrong and how to fix it.

    EvergreenError
    ├── RecipeError, DataError, ValidationEngineError, HubRefusedError, RemoteRefusedError, StorageError, BudgetSpentError
    ├── ModelError
    │   └── CheckpointError, DivergedError, GateRefusedError, MemoryExhaustedError
    └── TransientError
        ├── KilledError, InputsChangedError, StaleBlessingError, StalledError
        └── PreemptedError
            └── InterruptedTrainingError

`exit_code` follows sysexits.h. Only errors under `TransientError` are worth a retry. An error crosses processes as JSON
(`to_json`, `error_from_json`); no process parses printed text.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import ClassVar, Self

from params.foundation.printable import printable
from params.foundation.secrets import without_secrets

_CUT = " ..."  # ends a text that was shortened


class EvergreenError(Exception):
    """An error with a place, a cause and a fix.

    Args:
        where: the place, as precisely as it is known: `file:line`, a key, a row, a URL.
        what: what is wrong there, with the value that was found.
        fix: what the user can do about it.
        key: the recipe key that causes the error, for example `training.callbacks.0`; empty if there is none.

    Secrets in the first three, which may quote what a library or a server said, are hidden (`params.foundation.secrets`).
    """

    exit_code: ClassVar[int] = os.EX_SOFTWARE

    def __init_subclass__(cls, *, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, where: str, what: str, fix: str, *, key: str = "") -> None:
        self.where = without_secrets(where)
        self.what = without_secrets(what)
        self.fix = without_secrets(fix)
        super().__init__(self.where, self.what, self.fix)
        self.key = key

    @classmethod
    def at(cls, key: str, what: str, fix: str) -> Self:
        """An error at `key` of the recipe."""
        return cls(key, what, fix, key=key)

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.what}\n  fix: {self.fix}")

    def replace(self, **texts: str) -> Self:
        """Return the same error with other `texts`, for example another `where`."""
        return type(self)(**{**self._texts(), **texts})

    def to_json(self, max_bytes: int) -> str:
        """Return the error as JSON of at most `max_bytes`; where that is too little, its longest text is cut."""
        texts = self._texts()
        while True:
            text = json.dumps({"type": type(self).__name__, "exit_code": self.exit_code, **texts})
            longest = max(texts, key=lambda name: len(texts[name]))
            if len(text) <= max_bytes or len(texts[longest]) <= len(_CUT):
                return text
            texts[longest] = texts[longest].removesuffix(_CUT)[: len(texts[longest]) // 2] + _CUT

    def _texts(self) -> dict[str, str]:
        return {"where": self.where, "what": self.what, "fix": self.fix, "key": self.key}


def see_limits(section: str) -> str:
    """Return the end of a fix: the page that leads around what Evergreen cannot do, at a section of a recipe or at its top."""
    return f"; what cannot be done yet, and the way round: docs/limits.md{section and f'#{section}'}"


def error_from_json(text: str | bytes) -> EvergreenError:
    """Return the error that `to_json` wrote. A class that does not exist here is found by its exit code.

    Raises:
        ValueError: `text` is not an error in JSON.
    """
    try:
        content = json.loads(text)
        classes = {found.__name__: found for found in _classes(EvergreenError)}
        found = classes.get(content["type"]) or error_class_of_exit_code(content["exit_code"])
        return found(**{name: str(content[name]) for name in ("where", "what", "fix", "key")})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an error in JSON: {text!r}") from error


def error_class_of_exit_code(exit_code: int) -> type[EvergreenError]:
    """Return the most general class with this exit code; `EvergreenError` if there is none."""
    return next((found for found in _classes(EvergreenError) if found.exit_code == exit_code), EvergreenError)


def _classes(root: type[EvergreenError]) -> Iterator[type[EvergreenError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


class RecipeError(EvergreenError, exit_code=os.EX_CONFIG):
    """The recipe cannot be run as it is written."""


class DataError(EvergreenError, exit_code=os.EX_DATAERR):
    """The data cannot be used as it is."""


class ModelError(EvergreenError, exit_code=os.EX_NOINPUT):
    """The model cannot be built, loaded or trained as the recipe asks."""


class CheckpointError(ModelError):
    """The checkpoint that a recipe names cannot be resumed; no training starts from scratch instead."""


class DivergedError(ModelError):
    """The loss or the gradient became infinite or not a number."""


class GateRefusedError(ModelError):
    """The gate refuses the model: it must not be published."""


class MemoryExhaustedError(ModelError):
    """The model does not fit, however small the micro-batch."""


class ValidationEngineError(EvergreenError):
    """A check could not run: whether the data is good is unknown."""


class HubRefusedError(EvergreenError, exit_code=os.EX_NOPERM):
    """The Hub refused, and would refuse again."""


class RemoteRefusedError(EvergreenError, exit_code=os.EX_UNAVAILABLE):
    """The git or DVC remote refused, and would refuse again."""


class StorageError(EvergreenError, exit_code=os.EX_IOERR):
    """An artifact could not be written."""


class TransientError(EvergreenError, exit_code=os.EX_TEMPFAIL):
    """Nothing is wrong with recipe, data or model: try again later."""


class KilledError(TransientError):
    """A process was ended from outside, by a signal."""


class PreemptedError(TransientError):
    """The training was asked to stop; the next start resumes from its checkpoint."""


class InterruptedTrainingError(PreemptedError, exit_code=128 + signal.SIGINT):
    """Somebody pressed Ctrl-C: the command ends as a shell expects it, with 128 and the signal."""


class BudgetSpentError(EvergreenError, exit_code=os.EX_UNAVAILABLE):
    """The training took as long as the recipe allows; its checkpoint stays."""


class InputsChangedError(TransientError):
    """The recipe, the code or the data of a stage was edited while it ran: start again from the first stage."""


class StaleBlessingError(TransientError):
    """Another model was published after the gate compared with the champion: compare again."""


class StalledError(TransientError):
    """A stage, or a process of a training, made no progress, or took far longer than before."""
