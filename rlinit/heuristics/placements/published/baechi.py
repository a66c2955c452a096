"""Baechi's memory-constrained placers without a linear program: m-TOPO and m-ETF."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import placed_in_order, placed_when
from rlinit.heuristics.placements.published.earliest_task_first import schedule_earliest_start
from rlinit.kernels.placements.list_scheduling import fill_devices
from rlinit.placements.arrays import kernel_arrays
from rlinit.placements.problem import Placement, PlacementProblem


def m_topo(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Fill the devices one after another, in topological order, each up to an equal share of the bytes.

    The share is (bytes of all ops) / d + (bytes of the largest), and no more than a device's memory. Colocated ops
    count as one. If no op holds any bytes, each counts one. An op that a device may not run goes to the next that may;
    where the shares take it nowhere, to the first device that it fits. For `throughput` all shards of an op stay
    together, unless no device takes them all.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    Jeon et al.: Baechi: fast device placement of machine learning graphs. SoCC 2020, section 3.1.1.
    """
    arrays = kernel_arrays(problem)
    if not (arrays.held_weight.any() or arrays.held_shard.any()):
        ones = np.bincount(problem.group, minlength=problem.num_ops).astype(np.float64)
        arrays = arrays._replace(held_weight=ones, capacity=np.full(problem.num_devices, np.inf))
    held = arrays.held_weight + problem.num_shards * arrays.held_shard
    share = held.sum() / problem.num_devices + held.max(initial=0.0)
    mask = np.zeros((problem.num_ops, problem.num_devices), np.int64)
    if not fill_devices(arrays, problem.order, np.minimum(share, arrays.capacity), mask):
        return None
    return placed_in_order(problem, mask, problem.order)


def m_etf(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Take, of all ready ops and devices with room, the pair that can start first, until all ops are placed.

    On a device ties go to the natural order, between devices to the earlier end. The first op of a colocation group to
    be placed reserves the memory of all. For `throughput` all shards of an op stay together, unless no device takes
    them all.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    Jeon et al.: Baechi. SoCC 2020, section 3.1.2; after Hwang et al.: Scheduling precedence graphs in systems with
    interprocessor communication times. SIAM J. Comput. 18(2), 1989.
    """
    shape = (problem.num_ops, problem.num_devices)
    return earliest_start(problem, np.ones(shape, np.bool_), np.full(problem.num_ops, -1, np.int64))


def earliest_start(problem: PlacementProblem, near: NDArray[np.bool_], favourite: IntArray) -> Placement | None:
    """Return the earliest-time-first placement on the devices `near` ((n, d)) with favourite children ((n,), or -1).

    Parameters
    ----------
    problem
        The problem.
    near
        (n, d) whether an op may go to a device; others are left out.
    favourite
        (n,) the op that a device may wait for after it ran this one, -1 for none.
    """
    shape = (problem.num_ops, problem.num_devices)
    mask, start, end = np.zeros(shape, np.int64), np.empty(shape), np.empty(shape)
    if not schedule_earliest_start(kernel_arrays(problem), problem.order, near, favourite, mask, start, end):
        return None
    return placed_when(problem, mask, start, end)
