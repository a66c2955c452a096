"""What differences the checkers put down to rounding."""

from __future__ import annotations

from typing import Final

ROUNDING: Final = 1e-9
"""Relative difference of two float sums of the same numbers."""

OVERFULL: Final = 1e-11
"""Relative room of a memory for sums of bytes; bounds leave out what fills a memory beyond it."""
