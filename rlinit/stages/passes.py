"""Compiled passes over the prefixes of an order, run in pieces under a budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlinit.budget import Budget

_CHUNK_S = 0.05
"""Seconds of compiled work between looks at the budget."""


def run_in_chunks(call: Callable[[int, int], object], size: int, budget: Budget) -> bool:
    """Call with (first, last) for ranges that make up 0..size-1; False if the budget ended before it was through.

    Parameters
    ----------
    call
        Does the work of a range; ranges are chosen to take some 50 ms each.
    size, budget
        Where the last range ends, and when to stop.
    """
    first, step = 0, 1
    while first < size:
        if first and budget.expired:
            return False
        started = time.monotonic()
        last = min(first + step, size)
        call(first, last)
        step = max(1, min(4 * step, int(step * _CHUNK_S / max(time.monotonic() - started, 1e-4))))
        first = last
    return True
