"""The cheapest blocks to recompute so that a stage fits its memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.kernels.compiled import njit

_MOST_NODES = 20_000
"""Nodes of the search for one largest block; beyond, the best choice so far counts, and the answer says so."""


@njit(cache=True, nogil=True)
def _cover(
    saved: FloatArray, seconds: FloatArray, need: float, best: float, chosen: NDArray[np.bool_]
) -> tuple[float, bool]:
    """Write into `chosen` the items with the least seconds, below `best`, that save at least `need`.

    Items come in ascending order of seconds for each byte. Returns the seconds (`best` where there is no such choice)
    and whether the search was complete. Depth first: take an item or leave it, and with it all that equal it; what is
    left to save is bounded by its fractional cover.
    """
    b = len(saved)
    taken = np.zeros(b, np.bool_)
    stack = np.empty(b + 1, np.int64)  # items that are taken on the path
    depth, at, have, cost = 0, 0, 0.0, 0.0
    nodes = 0
    while True:
        nodes += 1
        if nodes > _MOST_NODES:
            return best, False
        if have >= need:
            if cost < best:
                best = cost
                for i in range(b):
                    chosen[i] = taken[i]
            promising = False
        else:
            left, bound = need - have, cost
            for i in range(at, b):
                if saved[i] >= left:
                    bound += seconds[i] * (left / saved[i])
                    left = 0.0
                    break
                left -= saved[i]
                bound += seconds[i]
            promising = left <= 0.0 and bound < best
        if promising:
            taken[at] = True
            stack[depth] = at
            depth += 1
            have += saved[at]
            cost += seconds[at]
            at += 1
            continue
        if depth == 0:
            return best, True
        depth -= 1
        i = stack[depth]
        taken[i] = False
        have, cost = 0.0, 0.0
        for d in range(depth):
            have += saved[stack[d]]
            cost += seconds[stack[d]]
        at = i + 1
        while at < b and saved[at] == saved[i] and seconds[at] == seconds[i]:
            at += 1


@njit(cache=True, nogil=True)
def cheapest_blocks(
    saved: FloatArray,
    seconds: FloatArray,
    flying: float,
    fixed: float,
    room: float,
    below: float,
    chosen: NDArray[np.bool_],
) -> tuple[float, bool]:
    """Write into `chosen` which blocks to recompute; return their seconds, and whether these are proven least.

    Recomputing R fits where ``fixed - flying * sum of saved over R + largest saved of R <= room``. For each block that
    may be the largest this is a covering knapsack, solved by branch and bound. Where nothing that takes less than
    `below` fits, `below` is returned and nothing chosen.

    Parameters
    ----------
    saved, seconds
        (b,) bytes that a block saves of a micro-batch, above 0, and what it costs, by ascending seconds for each byte.
    flying
        Micro-batches in flight.
    fixed, room
        Bytes without recomputation, and bytes there are.
    below
        Only choices that take less seconds are looked for.
    chosen
        (b,) the answer.
    """
    b = len(saved)
    best, complete = below, True
    chosen[:] = False
    small_saved, small_seconds, index = np.empty(b), np.empty(b), np.empty(b, np.int64)
    for first in range(b):
        t = saved[first]
        known = False
        for i in range(first):
            known = known or saved[i] == t
        if known:
            continue
        size = 0
        for i in range(b):
            if saved[i] <= t:
                small_saved[size], small_seconds[size], index[size] = saved[i], seconds[i], i
                size += 1
        picked = np.zeros(size, np.bool_)
        found, whole = _cover(small_saved[:size], small_seconds[:size], (fixed + t - room) / flying, best, picked)
        complete = complete and whole
        if found < best:
            best = found
            chosen[:] = False
            for i in range(size):
                if picked[i]:
                    chosen[index[i]] = True
    return best, complete
