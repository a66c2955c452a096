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

UNIT_ROUNDING = 4e-15
"""Relative error of one operation on floats, with room: some units in the last place."""

SAFETY = 1e-9
"""Relative discount of a bound, or room of a limit, that covers the rounding of millions of operations on floats."""

NOTABLE = 1e-4
"""Part of a value by which another has to be better to count as progress, or a row be violated to be added."""

NEARLY = 1e-6
"""What points and values of linear programs in floats may miss exact ones by: parts of a device, or of the goal."""

MOST_CELLS = 12_000_000
"""Entries of 8 bytes that a table may have: 100 MB."""

WORK_A_LOOK = 100_000
"""Ops placed, or loads looked at, by compiled searches between two looks at the clock: 5 to 50 ms."""

DEFAULT_WORK = 4_000_000
"""Loads or batches that a compiled search looks at where nobody says how many: some seconds."""


def inverse_of(permutation: IntArray | Sequence[int]) -> IntArray:
    """Return (n,) where each of 0 .. n - 1 stands in a permutation, such as the place of each op in an order."""
    place = np.empty(len(permutation), np.int64)
    place[permutation] = np.arange(len(permutation))
    return place
