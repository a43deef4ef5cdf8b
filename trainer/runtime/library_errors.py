"""What an error of a library means, where its type alone does not say it.

The processor's allocator, gloo and transformers raise a plain RuntimeError or ValueError, so this module, and no other, reads the
words of their messages. Contract tests fail when a library changes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from params import EvergreenError, ModelError, TransientError

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_LOST_PEER = ("gloo", "connection closed by peer")
_PANIC = ("pyo3_runtime", "PanicException")
_ODD_VALUE = "StrictDataclassError"
_OWN_CODE = "`trust_remote_code=True`"


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was not enough memory, on the processor or on an accelerator."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_lost_peer(error: Exception) -> bool:
    """Whether this process failed only because another one did."""
    import torch

    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _LOST_PEER)


def as_remote_code_error(where: str, error: BaseException | None) -> ModelError | None:
    """Return the error to raise instead if a model or tokenizer cannot be loaded without code of its repository; otherwise None."""
    if isinstance(error, ModelError):
        error = error.__cause__
    if not isinstance(error, ValueError) or _OWN_CODE not in str(error):
        return None
    what = "needs code of its own repository, which Evergreen never runs"
    fix = "use a model that transformers has the code of; many models have such a copy on the Hub, whose name often ends with -hf"
    return ModelError(where, what, fix)


def is_hub_away(error: BaseException) -> bool:
    """Whether the Hub did not answer. transformers then raises a plain OSError, which the client's error has caused."""
    found: BaseException | None = error
    while found is not None:
        names = {kind.__name__ for kind in type(found).__mro__}
        if names & {"ConnectionError", "TimeoutError", "TransportError"}:
            return "OfflineModeIsEnabled" not in names  # that is as somebody wants it
        found = found.__cause__ or found.__context__
    return False


def as_loading_error(where: str, error: Exception) -> EvergreenError:
    """Return the error to raise instead of one with which transformers does not load a model: it may be loaded later, or never."""
    if is_hub_away(error):
        return TransientError(where, f"cannot be downloaded: {error}", "try again when the Hub is reachable")
    fix = "check the path, the revision and the model's type"
    if isinstance(error, ImportError):
        fix = "use a model whose config.json asks for no more libraries than Evergreen installs"
    return as_remote_code_error(where, error) or ModelError(where, f"cannot be loaded: {error}", fix)


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a ValueError where a library in Rust panics, as tokenizers do at an odd pattern: that is no Exception, which nothing would catch.

    Also where a configuration has a value of another type, for which transformers raises the Hub client's StrictDataclassError.
    """
    try:
        yield
    except BaseException as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if _ODD_VALUE in kinds:
            raise ValueError(str(error)) from error
        if (type(error).__module__, type(error).__name__) != _PANIC:
            raise
        raise ValueError(f"the library that reads its tokenizer has given up: {error}") from None
