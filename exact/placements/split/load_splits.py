"""Placements from the multipliers of the load bound: every op takes the split that is cheapest under them.

Where memory decides who runs what, the multipliers on it price a byte of each device, and what single moves of a search
cannot find, since devices are full, is already there. What rounding leaves overfull is relieved by the splits that cost
least for the bytes they free; what then has room takes cheaper ones.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import MOST_CELLS, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.time_windows import possible_batches
from rlinit.exact.placements.bounds.load import load_lagrangian, of_groups
from rlinit.exact.placements.split.batched import splits
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority

_BLENDS = (0.02, 0.1, 0.3)
"""How much of equal multipliers is mixed into those of the devices: the best bound often has only one of them."""


def load_placement(problem: PlacementProblem, budget: Budget) -> Placement | None:
    """Return the best placement that multipliers of the load bound lead to; None where none of them fits.

    Parameters
    ----------
    problem
        What to place.
    budget
        Ends the choice of multipliers early; one placement is always tried.
    """
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    ways = splits(s, d)
    leaders = np.unique(problem.group)
    allowed = possible_batches(problem)
    if not n or len(leaders) * ways.size > MOST_CELLS or not allowed.any(axis=(1, 2)).all():
        return None
    loads = load_lagrangian(problem, allowed, budget)
    seconds, held = (_of_ways(table, ways) for table in of_groups(problem, allowed))
    best, value = None, np.inf
    for blend in _BLENDS:
        if best is not None and budget.expired:
            break
        weight = (1.0 - blend) * loads.weight + blend / d
        with np.errstate(invalid="ignore"):
            cost = np.where(np.isfinite(seconds), seconds * weight, np.inf).sum(axis=2) + held @ loads.penalty
        choice = _fitting(cost, held, problem.capacity_bytes * CAPACITY_SLACK)
        if choice is None:
            continue
        count = ways[choice][np.searchsorted(leaders, problem.group)]
        found, length = _scheduled(problem, count)
        if length < value:
            best, value = found, length
    return best


def _of_ways(table: FloatArray, ways: IntArray) -> FloatArray:
    """Return (groups, splits, devices) of what batches of each size have (groups, devices, s + 1)."""
    picked: FloatArray = table[:, np.arange(ways.shape[1])[None, :], ways]
    return picked


def _fitting(cost: FloatArray, held: FloatArray, capacity: FloatArray) -> IntArray | None:
    """Return (groups,) the split of each, cheap and within the memories, or None."""
    rows = np.arange(len(cost))
    choice: IntArray = cost.argmin(axis=1)
    if not np.isfinite(cost[rows, choice]).all():
        return None
    unit = np.where(np.isfinite(capacity) & (capacity > 0.0), capacity, 1.0)
    room = capacity - held[rows, choice].sum(axis=0)
    for _ in range(2 * len(cost)):
        over = np.maximum(-room, 0.0)
        if not over.any():
            break
        now = held[rows, choice]
        with np.errstate(invalid="ignore"):
            after = np.maximum(held - now[:, None, :] - room, 0.0)
            freed = (np.where(over > 0.0, over - after, -after) / unit).sum(axis=2)
            dearer = cost - cost[rows, choice][:, None]
            rank = np.where(freed > 0.0, np.maximum(dearer, 0.0) / np.where(freed > 0.0, freed, 1.0), np.inf)
        g, k = divmod(int(rank.argmin()), rank.shape[1])
        if not rank[g, k] < np.inf:
            return None
        room += held[g, choice[g]] - held[g, k]
        choice[g] = k
    if (room < 0.0).any():
        return None
    for g in np.argsort(cost.min(axis=1) - cost[rows, choice], kind="stable").tolist():
        fits = (held[g] - held[g, choice[g]] <= room).all(axis=1)
        k = int(np.where(fits, cost[g], np.inf).argmin())
        if cost[g, k] < cost[g, choice[g]]:
            room += held[g, choice[g]] - held[g, k]
            choice[g] = k
    return choice


def _scheduled(problem: PlacementProblem, count: IntArray) -> tuple[Placement, float]:
    """Return ops split by counts (n, d), shards given to devices in order, first those that most follow."""
    d = problem.num_devices
    device = np.stack([np.repeat(np.arange(d), row) for row in count])
    seconds = np.take_along_axis(problem.time_s, count[:, :, None], axis=2)[:, :, 0].max(axis=1)
    rest, early = seconds.copy(), np.zeros(problem.num_ops)
    for v in problem.order[::-1].tolist():
        rest[v] += max((rest[w] for w in problem.succ_of(v).tolist()), default=0.0)
    for v in problem.order.tolist():
        early[v] = max((early[u] + seconds[u] for u in problem.pred_of(v).tolist()), default=0.0)
    tried = [placement_from_priority(problem, device, key) for key in (-rest, early)]
    values = [makespan(problem, found) for found in tried]
    at = int(np.argmin(values))
    return tried[at], values[at]
