"""Permutations of very many numbers that are computed where they are read, and take no memory.

A Feistel network permutes the numbers below a power of four (Luby and Rackoff 1988, https://doi.org/10.1137/0217022). What
falls outside of the wanted numbers is permuted again until it is inside ("cycle walking", Black and Rogaway 2002,
https://doi.org/10.1007/3-540-45760-7_9), which takes less than four rounds on average.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ROUNDS: Final = 8


class ComputedPermutation:
    """A permutation of the numbers below `count` that follows from a seed."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._half_bits = np.uint64(((count - 1).bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)

    def __len__(self) -> int:
        return self._count

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at some places, (N,)."""
        found = self._permute(places.astype(np.uint64))
        while (outside := found >= np.uint64(self._count)).any():
            found[outside] = self._permute(found[outside])
        return found.astype(np.int64)

    def _permute(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return (left << self._half_bits) | right


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each number, as SplitMix64 does (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
