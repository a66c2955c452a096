"""The choice of variants of a stage's ops: the least seconds under a memory, an exact knapsack.

Nodes are taken one after the other, and of all choices so far those are kept that no other is as fast as in as few
bytes. Equal layers need no listing so: however many there are, choices that differ by which of them is recomputed are
as large, and the fastest is kept. A multiplier of the memory, from the Lagrangian dual, drops choices that cannot end
within both limits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

MOST_CHOICES = 20_000
"""Choices that are kept at most after each node; with more, the answer is unknown."""

ROUNDING = 1e-12
"""Relative room for rounding of sums of seconds and bytes."""


@njit(cache=True, nogil=True)
def _cheapest(
    first: IntArray, cost: FloatArray, size: FloatArray, second_price: float, byte_price: float, choice: IntArray
) -> tuple[float, float]:
    """Write each node's row of least price, ties by bytes, then seconds; return the sums of seconds and bytes."""
    total_cost, total_size = 0.0, 0.0
    for x in range(len(first) - 1):
        best = first[x]
        for r in range(first[x] + 1, first[x + 1]):
            price = second_price * cost[r] + byte_price * size[r]
            least = second_price * cost[best] + byte_price * size[best]
            if (price, size[r], cost[r]) < (least, size[best], cost[best]):
                best = r
        choice[x] = best
        total_cost += cost[best]
        total_size += size[best]
    return total_cost, total_size


@njit(cache=True, nogil=True)
def choose(
    first: IntArray, cost: FloatArray, size: FloatArray, most_cost: float, most_size: float, choice: IntArray
) -> int:
    """Write a row for each of k nodes, of at most so many seconds and bytes; return 1, 0 if there is none, -1 unknown.

    Parameters
    ----------
    first
        (k + 1,) where each node's rows begin.
    cost, size
        Seconds and bytes of each row.
    most_cost, most_size
        The limits of their sums.
    choice
        (k,) where the rows are written; what it holds where the answer is not 1 means nothing.
    """
    most_cost *= 1.0 + ROUNDING
    seconds, held = _cheapest(first, cost, size, 1.0, 0.0, choice)
    if seconds > most_cost:
        return 0
    if held <= most_size:
        return 1
    fast_seconds, fast_held = seconds, held
    small_seconds, small_held = _cheapest(first, cost, size, 0.0, 1.0, choice)
    if small_held > most_size:
        return 0
    if small_seconds <= most_cost:
        return 1
    # Walk the convex hull of (bytes, seconds) to the price of a byte at which what is relaxed just fits.
    while True:
        price = (small_seconds - fast_seconds) / (fast_held - small_held)
        seconds, held = _cheapest(first, cost, size, 1.0, price, choice)
        if seconds + price * (held - most_size) > most_cost:
            return 0
        if held <= most_size:
            if seconds <= most_cost:
                return 1
            if seconds >= small_seconds:
                break
            small_seconds, small_held = seconds, held
        else:
            if held >= fast_held:
                break
            fast_seconds, fast_held = seconds, held
    return _listed(first, cost, size, most_cost, most_size, price, choice)


@njit(cache=True, nogil=True)
def _least_behind(first: IntArray, value: FloatArray) -> FloatArray:
    """Return (k + 1,) the least sum of a figure over the rows of each node and those behind it."""
    rest = np.zeros(len(first))
    for x in range(len(first) - 2, -1, -1):
        least = np.inf
        for r in range(first[x], first[x + 1]):
            least = min(least, value[r])
        rest[x] = rest[x + 1] + least
    return rest


@njit(cache=True, nogil=True)
def _worth_listing(
    first: IntArray, cost: FloatArray, size: FloatArray, price: float, most_both: float
) -> NDArray[np.bool_]:
    """Return the rows that a choice within the limits may have.

    A row is out where no choice with it is within the priced limit, or where another is as fast in as few bytes.
    """
    both, kept = cost + price * size, np.zeros(first[-1], np.bool_)
    spare = most_both - _least_behind(first, both)[0]
    for x in range(len(first) - 1):
        least = both[first[x] : first[x + 1]].min()
        for r in range(first[x], first[x + 1]):
            kept[r] = both[r] - least <= spare
            for s in range(first[x], first[x + 1]):
                if cost[s] <= cost[r] and size[s] <= size[r] and (cost[s] < cost[r] or size[s] < size[r] or s < r):
                    kept[r] = False
    return kept


@njit(cache=True, nogil=True)
def _keep_undominated(
    new: FloatArray, source: IntArray, order: IntArray, sums: FloatArray, back: IntArray, end: int
) -> int:
    """Write sums, given by bytes, that none before is as fast as, from `end` on; return where they end."""
    fastest, q = np.inf, 0
    while q < len(order):
        best = order[q]
        while q < len(order) and new[order[q], 1] == new[best, 1]:
            if new[order[q], 0] < new[best, 0]:
                best = order[q]
            q += 1
        if new[best, 0] < fastest:
            fastest = new[best, 0]
            sums[end, 0], sums[end, 1] = new[best, 0], new[best, 1]
            back[end, 0], back[end, 1] = source[best, 0], source[best, 1]
            end += 1
    return end


@njit(cache=True, nogil=True)
def _listed(
    first: IntArray,
    cost: FloatArray,
    size: FloatArray,
    most_cost: float,
    most_size: float,
    price: float,
    choice: IntArray,
) -> int:
    """Choose by listing the sums that are worth keeping after each node; see `choose`."""
    most_both = (most_cost + price * most_size) * (1.0 + ROUNDING)
    kept = _worth_listing(first, cost, size, price, most_both)
    # Kept sums of all nodes, one after the other: seconds, bytes, the sum that it came from, the row.
    sums = np.zeros((64, 2))
    back = np.zeros((64, 2), np.int64)
    rest_cost, rest_size = _least_behind(first, cost), _least_behind(first, size)
    rest_both = _least_behind(first, cost + price * size)
    begin, end = 0, 1
    for x in range(len(first) - 1):
        options = first[x + 1] - first[x]
        new = np.empty(((end - begin) * options, 2))
        source = np.empty(((end - begin) * options, 2), np.int64)
        count = 0
        for at in range(begin, end):
            for r in range(first[x], first[x + 1]):
                a, b = sums[at, 0] + cost[r], sums[at, 1] + size[r]
                if (
                    kept[r]
                    and a + rest_cost[x + 1] <= most_cost
                    and b + rest_size[x + 1] <= most_size
                    and a + price * b + rest_both[x + 1] <= most_both
                ):
                    new[count, 0], new[count, 1] = a, b
                    source[count, 0], source[count, 1] = at, r
                    count += 1
        if count == 0:
            return 0
        order = np.argsort(new[:count, 1], kind="mergesort")
        while end + count > len(sums):
            sums = np.concatenate((sums, np.zeros_like(sums)))
            back = np.concatenate((back, np.zeros_like(back)))
        begin, end = end, _keep_undominated(new, source, order, sums, back, end)
        if end - begin > MOST_CHOICES:
            return -1
    at = end - 1  # the fastest of those that fit
    for x in range(len(first) - 2, -1, -1):
        choice[x] = back[at, 1]
        at = back[at, 0]
    return 1
