"""Weights at addresses that a new tensor could have, so that where a file holds them does not decide the last bits.

The weights of a safetensors file are mapped into memory as they stand in the file, so a weight begins anywhere modulo 64 bytes. Some
kernels of MKL begin with the numbers up to the next full vector, and add in another order if a weight begins elsewhere: on some CPUs, a
model that is loaded computes other last bits than the same model in the process that has built it. Torch's own memory always begins at
a multiple of 64 bytes, so what is computed from aligned weights is aligned, too.
"""

from __future__ import annotations

import itertools
from typing import Final

from trainer.objectives.bases.lazy_imports import torch

ALIGNMENT: Final = 64
"""Bytes; torch's allocator on CPUs aligns to this (c10/core/alignment.h, gAlignment)."""


def align_weights(network: torch.nn.Module) -> None:
    """Copy each weight and buffer that is on the CPU and not aligned to new memory; their values stay the same."""
    for tensor in itertools.chain(network.parameters(), network.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()
