"""What an error of PyTorch means, where its type alone does not say it.

The processor's allocator and gloo raise a plain RuntimeError, so this module, and no other, reads the words of their
messages. A contract test fails when PyTorch changes them.
"""

from __future__ import annotations

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_LOST_PEER = ("gloo", "connection closed by peer")


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
