"""Compiled random numbers of SplitMix64: streams that do not depend on each other, started from hashes of a seed.

References
----------
Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np

from rlinit.kernels.compiled import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""What a stream's state grows by for each number."""

_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Multipliers of the finaliser."""
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
"""Bits it shifts by; 64 less 11 bits are those of a double's mantissa."""


@njit(cache=True, nogil=True)
def mix(z: np.uint64) -> np.uint64:
    """Return a hash of 64 bits."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@njit(cache=True, nogil=True)
def stream(seed: int, number: int) -> np.uint64:
    """Return the first state of a stream by its number.

    Parameters
    ----------
    seed, number
        At least 0.
    """
    return mix(mix(np.uint64(seed) + GOLDEN) ^ mix(np.uint64(number) + GOLDEN))


@njit(cache=True, nogil=True)
def uniform(state: np.uint64) -> float:
    """Return the number in [0, 1) of a stream's state."""
    return float(mix(state) >> _S11) / (1 << 53)
