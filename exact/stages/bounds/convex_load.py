"""The most that ops on one stage can be worth: a knapsack whose contents are convex in the precedence order.

Ops of a stage are convex: what lies on a path between two of them is on the stage, too. Sets are gone through depth
first in a topological order; an op that is passed over and follows upon a chosen one rules out all that follow upon it.
A part of a set is given up where even the knapsack of the ops that come later, without precedence and with sizes
rounded down to a grid, adds too little.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.kernels.compiled import njit

_GRID = 128
"""Steps of the limit to which sizes are rounded down in the knapsack that bounds."""

_PASSES = 64
"""Ops passed over that take about as long as a load."""


class StageRoom(NamedTuple):
    """What a stage may hold: seconds, bytes of memory and of cache, seconds for each byte beyond the cache."""

    limit: float
    memory: float
    cache: float
    overflow: float


@njit(cache=True, nogil=True)
def reach_bits(order: IntArray, indptr: IntArray, after: IntArray) -> NDArray[np.uint64]:
    """Return (n, words) the ops that follow upon each op, numbered by their place in a topological order.

    Parameters
    ----------
    order
        (n,) topological, or the reverse of such an order, where `after` are predecessors.
    indptr, after
        Direct successors in CSR form.
    """
    n = len(order)
    place = np.empty(n, np.int64)
    for i in range(n):
        place[order[i]] = i
    bits = np.zeros((n, (n + 63) // 64), np.uint64)
    for i in range(n - 1, -1, -1):
        v = order[i]
        for e in range(indptr[v], indptr[v + 1]):
            u = place[after[e]]
            bits[i, u >> 6] |= np.uint64(1) << np.uint64(u & 63)
            for w in range(bits.shape[1]):
                bits[i, w] |= bits[u, w]
    return bits


@njit(cache=True, nogil=True)
def knapsacks(work: FloatArray, value: FloatArray, limit: float) -> FloatArray:
    """Return (n + 1, grid + 1) the most that ops from a place on are worth within steps of the limit.

    Parameters
    ----------
    work, value
        (n,) seconds and what the ops are worth.
    limit
        Seconds.
    """
    n = len(work)
    most = np.zeros((n + 1, _GRID + 1))
    for i in range(n - 1, -1, -1):
        most[i] = most[i + 1]
        if value[i] <= 0.0 or work[i] > limit:
            continue
        size = int(np.floor(work[i] / limit * _GRID * (1.0 - SAFETY))) if limit > 0.0 else 0
        for g in range(size, _GRID + 1):
            most[i, g] = max(most[i, g], value[i] + most[i + 1, g - size])
    return most


@njit(cache=True, nogil=True)
def _cost(work: float, param: float, room: StageRoom) -> float:
    return work + ((param - room.cache) * room.overflow if param > room.cache else 0.0)


@njit(cache=True, nogil=True)
def best_load(
    work: FloatArray,
    param: FloatArray,
    value: FloatArray,
    room: StageRoom,
    behind: NDArray[np.uint64],
    floor: float,
    cap: int,
    chosen: NDArray[np.bool_],
) -> tuple[float, float, int]:
    """Return a bound on the value of any load, the value of the best one that was found, and the loads looked at.

    Where no load is worth more than `floor` the best one is not told, and the bound is at least `floor`.

    Parameters
    ----------
    work, param, value
        (n,) seconds (inf: forbidden), bytes, and what the ops are worth, at least 0, in a topological order.
    room
        What the stage may hold.
    behind
        (n, words) as `reach_bits` returns it.
    floor
        A value of which a load is known.
    cap
        Loads that are looked at; what is open then is bounded.
    chosen
        (n,) receives the best load, all False where there is none better than `floor`.
    """
    n, words = len(work), behind.shape[1]
    limit = room.limit * (1.0 + SAFETY)
    most = knapsacks(work, value, limit)
    steps = _GRID / limit if limit > 0.0 else 0.0
    stack, at = np.empty(n + 1, np.int64), np.zeros(n + 1, np.int64)
    blocked = np.zeros((n + 1, words), np.uint64)
    reached = np.zeros((n + 1, words), np.uint64)
    spent, held, worth = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1)
    best, bound, looked, passed, depth = floor, floor, 0, 0, 0
    chosen[:] = False
    while depth >= 0:
        q = at[depth]
        left = max(0.0, limit - spent[depth])
        ahead = worth[depth] + most[q, min(_GRID, int(left * steps * (1.0 + SAFETY)))]
        if ahead <= best * (1.0 + SAFETY):
            depth -= 1
            continue
        if looked >= cap:
            bound = max(bound, ahead)
            depth -= 1
            continue
        at[depth] = q + 1
        word, bit = q >> 6, np.uint64(1) << np.uint64(q & 63)
        passed += 1
        looked += passed % _PASSES == 0
        if blocked[depth, word] & bit:
            continue
        total, bytes_held = spent[depth] + work[q], held[depth] + param[q]
        fits = bytes_held <= room.memory and _cost(total, bytes_held, room) <= limit
        if fits:
            d = depth + 1
            looked += 1
            blocked[d] = blocked[depth]
            for w in range(words):
                reached[d, w] = reached[depth, w] | behind[q, w]
            spent[d], held[d], worth[d], at[d] = total, bytes_held, worth[depth] + value[q], q + 1
            stack[depth] = q
            if worth[d] > best:
                best = worth[d]
                chosen[:] = False
                for i in range(d):
                    chosen[stack[i]] = True
        if reached[depth, word] & bit:
            for w in range(words):
                blocked[depth, w] |= behind[q, w]
        if fits:
            depth += 1
    return max(bound, best) * (1.0 + SAFETY), best, looked
