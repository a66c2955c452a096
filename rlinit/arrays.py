"""Names for the array types that signatures use, so that every package spells them the same way."""

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


def inverse_of(permutation: IntArray | Sequence[int]) -> IntArray:
    """Return (n,) where each of 0 .. n - 1 stands in a permutation, such as the place of each op in an order."""
    place = np.empty(len(permutation), np.int64)
    place[permutation] = np.arange(len(permutation))
    return place
