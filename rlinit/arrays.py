"""Names for the array types that signatures use, and what sums of floats may be off by, the same in every package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
"""Masks."""

FloatArray = NDArray[np.float64]
"""Seconds, bytes and other measures."""

IntArray = NDArray[np.int64]
"""Indices, stages, devices, counts."""

NodeArray = NDArray[np.int32]
"""Node indices of large tables, at half the memory."""

WordArray = NDArray[np.uint64]
"""Bit sets, 64 members a word."""

Floats = NDArray[Any]
"""Floats of either precision."""

ROUNDING = 1e-12
"""Relative difference of two sums of some thousand floats that is put down to the order of their terms."""

SAFETY = 1e-9
"""Relative discount of a bound, or room of a limit, that covers the rounding of millions of operations on floats."""


def inverse_of(permutation: IntArray | Sequence[int]) -> IntArray:
    """Return (n,) where each of 0 .. n - 1 stands in a permutation, such as the place of each op in an order."""
    place = np.empty(len(permutation), np.int64)
    place[permutation] = np.arange(len(permutation))
    return place
