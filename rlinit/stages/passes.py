"""Compiled passes over the prefixes of an order, run in pieces under a budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlinit.budget import WATCH_S, Budget

FIRST_EXCESS = 0.03
"""The first threshold is this part above the lower bound, or below what is reached: one just above the bound takes a
pass as long, and mostly finds nothing."""

HALVINGS = 12
"""Halvings of an interval in which a threshold lies: what is left of it, a 4,000th, is not worth another pass."""


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
        step = max(1, min(4 * step, int(step * WATCH_S / max(time.monotonic() - started, 1e-4))))
        first = last
    return True
