"""What the placement heuristics share: a problem as their kernels take it, and placements from what those give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.kernels.placements.annealing import DeviceMemory
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan


class PlacementHeuristic(Protocol):
    """A heuristic for placement problems."""

    def __call__(
        self, problem: PlacementProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None
    ) -> Placement | None:
        """Return a feasible placement, or None where the heuristic finds none (which proves nothing).

        Parameters
        ----------
        problem
            The problem.
        seed
            Seed of everything random.
        evaluations
            Placements to evaluate, for searches, or iterations of the linear program, where there is one; None: the
            method's default. Others take no notice.
        budget
            When to stop.
        """


def slices(total: int, size: int, budget: Budget | None) -> Iterator[int]:
    """Yield sizes of slices of some work, `size` each but the last, until all is done or the budget has ended.

    Parameters
    ----------
    total, size
        Units of work in all, and between two looks at the clock; at least 1.
    budget
        When to stop; None: never.
    """
    for first in range(0, total, size):
        if budget is not None and budget.expired:
            return
        yield min(size, total - first)


def device_memory(problem: PlacementProblem) -> DeviceMemory:
    """Return what limits the devices of ops: those of a colocation group do not move one by one."""
    members = np.argsort(problem.group, kind="stable")
    sizes = np.bincount(problem.group, minlength=problem.num_ops)
    first = (np.cumsum(sizes) - sizes)[problem.group[members]]
    following = np.arange(1, problem.num_ops + 1)
    mate = np.empty(problem.num_ops, np.int64)
    mate[members] = members[np.where(following < first + sizes[problem.group[members]], following, first)]
    return DeviceMemory(problem.weight_bytes, problem.shard_bytes, problem.capacity_bytes, mate)


def breadth_first(problem: PlacementProblem) -> IntArray:
    """Return (n,) the breadth-first topological order: by the longest way from a source, then by the natural order."""
    rank = inverse_of(problem.order)
    waiting = np.diff(problem.pred_indptr)
    level = np.flatnonzero(waiting == 0)
    order: list[IntArray] = []
    while len(level):
        level = level[np.argsort(rank[level])]
        order.append(level)
        width = problem.succ_indptr[level + 1] - problem.succ_indptr[level]
        first = np.repeat(problem.succ_indptr[level] - np.concatenate([[0], np.cumsum(width)[:-1]]), width)
        after, times = np.unique(problem.succ[first + np.arange(width.sum())], return_counts=True)
        waiting[after] -= times
        level = after[waiting[after] == 0]
    return np.concatenate(order) if order else np.zeros(0, np.int64)


def placed_when(problem: PlacementProblem, mask: IntArray, start: FloatArray, end: FloatArray) -> Placement | None:
    """Return the placement that runs batches in the order they were scheduled in; None if it is not feasible.

    Parameters
    ----------
    problem
        The problem.
    mask
        (n, d) shards of each batch as bits, 0: no batch.
    start, end
        (n, d) when each batch runs. Ties of `start` go to the earlier `end`: a batch without duration comes before one
        that starts with it.
    """
    rank = inverse_of(problem.order)
    ops, devices = np.nonzero(mask)
    by_time = np.lexsort((rank[ops], end[ops, devices], start[ops, devices]))
    return _checked(problem, mask, (ops * problem.num_devices + devices)[by_time])


def placed_in_order(problem: PlacementProblem, mask: IntArray, order: IntArray) -> Placement | None:
    """Return the placement that runs ops in a topological order; None if it is not feasible.

    Parameters
    ----------
    problem
        The problem.
    mask
        (n, d) shards of each op on each device, as bits.
    order
        (n,) ops in the order in which they are appended.
    """
    ops, devices = np.nonzero(mask[order])
    return _checked(problem, mask, order[ops] * problem.num_devices + devices)


def _checked(problem: PlacementProblem, mask: IntArray, sequence: IntArray) -> Placement | None:
    bits = (mask[:, None, :] >> np.arange(problem.num_shards)[None, :, None]) & 1
    placement = Placement(bits.argmax(axis=2).astype(np.int64), sequence)
    sources, targets = placement.device[problem.edges[:, 0]], placement.device[problem.edges[:, 1]]
    if not np.isfinite(problem.delay_s[sources, targets]).all():
        return None
    return placement if np.isfinite(makespan(problem, placement)) else None
