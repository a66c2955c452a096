"""Names for the array types that signatures use, so that every package spells them the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoolArray", "FloatArray", "Floats", "IntArray", "NodeArray", "WordArray"]

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
