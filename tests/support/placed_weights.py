"""Safetensors files that hold the same weights at other addresses, and CPUs whose kernels notice that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ALIGNMENT = 64
CPUS = {
    "without AVX": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "without AVX-512": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""Variables by which MKL, torch and oneDNN compute as on another CPU. Without AVX, bits depend on where a weight begins."""


def place_weights(path: Path, offset: int) -> None:
    """Rewrite a safetensors file so that its first weight begins at `offset`, a multiple of 8, modulo 64 bytes."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].rstrip(b" ")
    header += b" " * ((offset - 8 - len(header)) % ALIGNMENT)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def offsets() -> Iterator[int]:
    """The offsets at which safetensors files begin their weights."""
    yield from range(0, ALIGNMENT, 8)
