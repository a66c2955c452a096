"""List scheduling: the best single device, minimum execution time, greedy, and heterogeneous earliest finish time.

Where an op is split over devices, the first device has the first shards, the next the following ones, and so on, for
every op alike; of all such splits into batches that are allowed and fit, the best is found by dynamic programming.
Transfers are planned as if any number ran at once, whatever the problem says. Of ops that share a device, the first one
counts what the others lose there as its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import breadth_first, placed_in_order, placed_when
from rlinit.kernels.placements.list_scheduling import (
    APPEND,
    DURATION,
    INSERT,
    NO_STORAGES,
    StorageArrays,
    earliest_finish,
    list_schedule,
)
from rlinit.placements.arrays import kernel_arrays, upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_of


def best_device(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Put everything on the one device that takes all and is done first; None where none does.

    For `throughput` every op is one batch of all inputs.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    DIVIML, section V: BD.
    """
    return next(single_devices(problem), None)


def single_devices(problem: PlacementProblem) -> Iterator[Placement]:
    """Yield everything on each device that takes all, the one that is done first at first.

    Parameters
    ----------
    problem
        The problem.
    """
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    total = problem.op_time_s.sum(axis=0)
    for i in np.argsort(total, kind="stable"):
        mask = np.zeros((n, d), np.int64)
        mask[:, i] = (1 << s) - 1
        found = placed_in_order(problem, mask, problem.order) if np.isfinite(total[i]) else None
        if found is not None:
            yield found


def minimum_execution_time(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Run each op where it takes the least time, in breadth-first topological order, transfers disregarded.

    For `throughput` (bMET) each op takes the split whose longest batch is shortest; ties go to the least seconds in
    total. Devices whose remaining memory is too small, or that some input cannot reach, are left out.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    DIVIML, section V: MET and bMET.
    """
    return _scheduled(problem, breadth_first(problem), DURATION)


def greedy(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Run each op where it ends first after all ops before it, in breadth-first topological order.

    For `throughput` (bGreedy) each op takes the split that ends first; ties go to the least seconds in total.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    DIVIML, section V: Greedy and bGreedy.
    """
    return _scheduled(problem, breadth_first(problem), APPEND)


def heft(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Run each op, by descending upward rank, where it ends first with insertion into idle slots.

    For `throughput` (bHEFT) each op takes the split that ends first, each of its batches inserted.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous computing. IEEE
    TPDS 13(3), 2002, Fig. 2.
    """
    rank = inverse_of(problem.order)
    # An op and its successor tie where both take no time: the topological order decides.
    return _scheduled(problem, np.lexsort((rank, -upward_ranks(problem))), INSERT)


def _scheduled(problem: PlacementProblem, order: IntArray, rule: int) -> Placement | None:
    shape = (problem.num_ops, problem.num_devices)
    mask, start, end = np.zeros(shape, np.int64), np.empty(shape), np.empty(shape)
    if not list_schedule(kernel_arrays(problem), order, rule, mask, start, end):
        return None
    return placed_when(problem, mask, start, end)


def whole_ops(problem: PlacementProblem, order: IntArray, storages: StorageArrays = NO_STORAGES) -> Placement | None:
    """Run each op, all shards at once, where it ends first; None where one fits nowhere.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) topological order.
    storages
        What counts beside the memory of the problem, in bytes of all shards; see `earliest_finish`.
    """
    n, s = problem.num_ops, problem.num_shards
    device, end = np.empty(n, np.int64), np.zeros(n)
    arrays = kernel_arrays(problem)._replace(capacity=problem.capacity_bytes, tensor=s * problem.tensor_bytes)
    if not earliest_finish(arrays, storages, order, device, end):
        return None
    begin = end - problem.op_time_s[np.arange(n), device]
    found = placement_of(
        problem, np.repeat(device[:, None], s, axis=1), np.repeat(begin[:, None], problem.num_devices, axis=1)
    )
    return found if makespan(problem, found) < np.inf else None
