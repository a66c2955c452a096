"""Data parallelism: every device runs the whole network on a share of the inputs, and nothing moves."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.placements.list_scheduling.common import placed_in_order
from rlinit.placements.problem import Placement, PlacementProblem


def data_parallel(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Return the split of the inputs, the same for every op, whose largest load is least; None where none fits.

    Each device runs its share as one batch an op, in the natural order, so its load is when it ends, and the split is
    best of its kind: exact over the devices one after another. One device may get all.

    For the parameters see `PlacementHeuristic.__call__`.
    """
    count = least_largest_load(_loads(problem))
    if count is None:
        return None
    first = np.cumsum(count) - count
    share = ((1 << count) - 1) << first
    mask = np.broadcast_to(share, (problem.num_ops, problem.num_devices))
    return placed_in_order(problem, mask, problem.order)


def _loads(problem: PlacementProblem) -> FloatArray:
    """Return (d, s + 1) seconds of each device for each number of shards; inf where it may not run or hold them."""
    load: FloatArray = problem.time_s.sum(axis=0)
    shards = np.arange(problem.num_shards + 1)
    held = problem.weight_bytes.sum() + shards * problem.shard_bytes.sum()
    load[(held > problem.capacity_bytes[:, None] * CAPACITY_SLACK) & (shards > 0)] = np.inf
    return load


def least_largest_load(load: FloatArray) -> IntArray | None:
    """Return (d,) shards of each device, all of them assigned, so that the largest load is least; None where inf is.

    Parameters
    ----------
    load
        (d, s + 1) seconds of each device for 0 to s shards.
    """
    d, s = load.shape[0], load.shape[1] - 1
    best = np.full(s + 1, np.inf)
    best[0] = 0.0
    taken = np.zeros((d, s + 1), np.int64)
    for i in range(d):
        counts = np.arange(s + 1)
        left = counts[:, None] - counts
        largest = np.where(left >= 0, np.maximum(best[np.maximum(left, 0)], load[i]), np.inf)
        taken[i] = largest.argmin(axis=1)
        best = largest[counts, taken[i]]
    if not np.isfinite(best[s]):
        return None
    count, left_over = np.zeros(d, np.int64), s
    for i in range(d - 1, -1, -1):
        count[i] = taken[i, left_over]
        left_over -= count[i]
    return count
