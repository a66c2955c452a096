"""The compiled generator behind `rlinit.datasets.random.synthetic`.

Random numbers are those of `rlinit.kernels.splitmix`, one stream a graph, started from (seed, number of the graph).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlinit.kernels.compiled import njit
from rlinit.kernels.splitmix import GOLDEN, stream, uniform

_MOST_MERGES = 0.9
"""Probability at most that an op reads several others."""
_LARGEST_LOG = 40.0  # exp(40) bytes is 2e17: beyond any tensor, and still exact enough to add


@njit(cache=True)
def _uniform(state: NDArray[np.uint64]) -> float:
    """Return the stream's next number in [0, 1)."""
    state[0] += GOLDEN
    return uniform(state[0])


@njit(cache=True)
def _normal(state: NDArray[np.uint64]) -> float:
    """Return a standard normal number (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - _uniform(state)))
    return radius * math.cos(2.0 * math.pi * _uniform(state))


@njit(cache=True)
def _whole(log_value: float) -> float:
    """Return exp of a number as a whole number of at least 1."""
    return max(1.0, math.floor(math.exp(min(log_value, _LARGEST_LOG))))


@njit(cache=True)
def _geometric(state: NDArray[np.uint64], mean: float) -> int:
    """Return a geometric number >= 1 of the given mean (>= 1)."""
    if mean <= 1.0:
        return 1
    return 1 + int(math.log(1.0 - _uniform(state)) / math.log(1.0 - 1.0 / mean))


@njit(cache=True)
def _free_parent(row: NDArray[np.int64], slots: int, v: int, distance: int) -> int:
    """Return the node `distance` before v, or the next one back, cyclically, that is no parent yet."""
    u = v - 1 - (distance - 1) % v
    while True:
        taken = False
        for slot in range(slots):
            if row[slot] == u:
                taken = True
        if not taken:
            return u
        u = u - 1 if u > 0 else v - 1


@njit(cache=True)
def _youngest_unused(used: NDArray[np.int64], v: int) -> int:
    """Return the youngest node before v without a consumer, -1 if there is none."""
    for u in range(v - 1, -1, -1):
        if used[u] == 0:
            return u
    return -1


@njit(cache=True)
def _fill_parents(
    state: NDArray[np.uint64], limit: int, numbers: NDArray[np.float64], parents: NDArray[np.int64]
) -> None:
    """Draw the parents of one graph, (n, d) filled with -1."""
    merge_rate, previous_rate, skip_mean = numbers[0], numbers[1], numbers[2]
    n = parents.shape[0]
    used = np.zeros(n, np.int64)
    chance = min(_MOST_MERGES, merge_rate * (limit - 1))
    for v in range(1, n):
        count = 1
        if v > 1 and _uniform(state) < chance:
            count = min(v, 2 + int(_uniform(state) * (limit - 1)))
        distance = 1
        if _uniform(state) >= previous_rate:
            distance = 1 + _geometric(state, skip_mean - 1.0)
        row = parents[v]
        row[0] = _free_parent(row, 0, v, distance)
        used[row[0]] += 1
        for slot in range(1, count):
            u = _youngest_unused(used, v)
            if u < 0:
                u = _free_parent(row, slot, v, 1 + _geometric(state, skip_mean - 1.0))
            row[slot] = u
            used[u] += 1


@njit(cache=True)
def _fill_costs(
    state: NDArray[np.uint64],
    numbers: NDArray[np.float64],
    parents: NDArray[np.int64],
    param: NDArray[np.float64],
    out: NDArray[np.float64],
    flops: NDArray[np.float64],
) -> None:
    """Draw the costs of one graph's nodes, (n,) each."""
    plain, small = numbers[3], numbers[3] + numbers[4]
    n = len(param)
    for v in range(n):
        position = v / n
        if v > 0 and _uniform(state) < numbers[11]:
            out[v] = out[parents[v, 0]]
        else:
            out[v] = _whole(numbers[12] + numbers[13] * position + numbers[14] * _normal(state))
        sort = _uniform(state)
        if sort < plain:
            param[v] = 0.0
            flops[v] = 0.0 if _uniform(state) < numbers[19] else out[v]
        elif sort < small:
            param[v] = _whole(numbers[5] + numbers[6] * position + numbers[7] * _normal(state))
            flops[v] = 2.0 * out[v]
        else:
            param[v] = _whole(numbers[8] + numbers[9] * position + numbers[10] * _normal(state))
            log_flops = numbers[15] + numbers[16] * math.log(param[v]) + numbers[17] * math.log(out[v])
            flops[v] = _whole(log_flops + numbers[18] * _normal(state))


@njit(cache=True)
def fill_batch(
    seed: int,
    first: int,
    limits: NDArray[np.int64],
    numbers: NDArray[np.float64],
    parents: NDArray[np.int64],
    costs: NDArray[np.float64],
) -> None:
    """Fill a batch with graphs first, first + 1, ... of a seed.

    Parameters
    ----------
    seed, first
        Which graphs.
    limits
        Limits on the in-degree to draw from.
    numbers
        `GraphStatistics.to_array`.
    parents
        (B, n, d) filled with -1, overwritten.
    costs
        (3, B, n) overwritten: param_bytes, out_bytes, flops.
    """
    state = np.zeros(1, np.uint64)
    for i in range(parents.shape[0]):
        state[0] = stream(seed, first + i)
        limit = limits[int(_uniform(state) * len(limits))]
        _fill_parents(state, limit, numbers, parents[i])
        _fill_costs(state, numbers, parents[i], costs[0, i], costs[1, i], costs[2, i])
