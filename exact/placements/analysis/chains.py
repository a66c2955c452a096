"""Chains of ops that cut a graph into segments: which ops they run over, and the problem between two neighbours."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import BoolArray, FloatArray, IntArray, inverse_of
from rlinit.budget import ROWS_A_LOOK, Budget, reserve
from rlinit.exact.placements.analysis.reachability import in_words, work_between
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.placements.problem import PlacementProblem

_BESIDE = 0.02
"""Part of the work beside an op that it has to make up for to be in the chain: it decides where little else does."""


def best_chain(
    problem: PlacementProblem,
    reach: NDArray[np.bool_],
    least: FloatArray,
    most: int,
    gain: float,
    budget: Budget,
) -> list[int]:
    """Return the chain between whose neighbours most work lies; of equal ones, of ops with little beside them.

    Work beside an op of the chain is between no two neighbours. Networks of cells that read two cells before them have
    ops with least of it where a cell ends: segments between those are copies of each other.

    Parameters
    ----------
    least
        (n,) seconds of work of an op.
    most
        Most ops between neighbours.
    gain
        What another op of the chain must add, relative to a mean op: segments that are not cut up are bounded better.
    budget
        Where it ends before all pairs of ops were looked at there is no chain.
    """
    n = problem.num_ops
    step = _between(problem, reach, least, most, budget)
    if step is None:
        return []
    size_before, size_after = reach.sum(axis=0), reach.sum(axis=1)
    before, after = least @ reach, reach @ least
    beside = least.sum() - (before + after + least)
    least = least - gain * 2.0 * least.sum() / max(1, n) - _BESIDE * beside
    value, previous = np.full(n, -np.inf), np.full(n, -1)
    for v in problem.order.tolist():
        first = before[v] if size_before[v] <= most else -np.inf
        through = value + least + step[:, v]
        u = int(np.argmax(through))
        value[v], previous[v] = (first, -1) if first >= through[u] else (through[u], u)
    total = np.where(size_after <= most, value + least + after, -np.inf)
    last = int(np.argmax(total)) if n else -1
    if last < 0 or total[last] == -np.inf:
        return []
    chain = [last]
    while previous[chain[-1]] >= 0:
        chain.append(int(previous[chain[-1]]))
    return chain[::-1]


def _between(
    problem: PlacementProblem, reach: NDArray[np.bool_], least: FloatArray, most: int, budget: Budget
) -> FloatArray | None:
    """Return (n, n) the work between row and column, ``-inf`` where more than `most` ops lie there or no path leads."""
    n, order = problem.num_ops, problem.order
    reserve(18.0 * n * n, f"the work between {n:,} ops")
    place = inverse_of(order)
    ordered = reach[np.ix_(order, order)]
    descendants, ancestors = in_words(ordered), in_words(ordered.T)
    work, least = np.full((n, n), -np.inf), least[order]
    for first in range(0, n, ROWS_A_LOOK):
        if budget.expired:
            return None
        work_between((first, min(n, first + ROWS_A_LOOK)), descendants, ancestors, least, most, work)
    return work[np.ix_(place, place)]


def segment_problem(
    problem: PlacementProblem, window: ShardWindows, reach: NDArray[np.bool_], before: int, after: int
) -> tuple[PlacementProblem, IntArray]:
    """Return the `latency` problem of one shard of the ops between two ops, with these, and its ops in the whole.

    Parameters
    ----------
    before, after
        Ops, or -1 for the start and the end. `after` takes no time.
    """
    inside = np.ones(problem.num_ops, np.bool_)
    if before >= 0:
        inside &= reach[before]
    if after >= 0:
        inside &= reach[:, after]
    inside[[v for v in (before, after) if v >= 0]] = True
    ops = np.flatnonzero(inside)
    local = np.cumsum(inside) - 1
    time_s = np.zeros((len(ops), problem.num_devices, 2))
    time_s[:, :, 1] = window.least_s[ops]
    if after >= 0:
        own = time_s[local[after], :, 1]
        time_s[local[after], :, 1] = np.where(np.isfinite(own), 0.0, np.inf)
    return restricted(problem, inside, time_s), ops


def restricted(problem: PlacementProblem, inside: BoolArray, time_s: FloatArray) -> PlacementProblem:
    """Return the `latency` problem of some ops alone.

    Parameters
    ----------
    problem
        The problem.
    inside
        (n,) whether it has an op.
    time_s
        (k, d, 2) seconds of those that it has.
    """
    ops, local = np.flatnonzero(inside), np.cumsum(inside) - 1
    edges = problem.edges[inside[problem.edges].all(axis=1)]
    leader: dict[int, int] = {}
    group = np.array([leader.setdefault(int(problem.group[v]), k) for k, v in enumerate(ops)], np.int64)
    return dataclasses.replace(
        problem,
        objective="latency",
        time_s=time_s,
        tensor_bytes=problem.tensor_bytes[ops],
        weight_bytes=problem.weight_bytes[ops],
        shard_bytes=problem.shard_bytes[ops],
        edges=local[edges].reshape(-1, 2),
        order=local[problem.order[inside[problem.order]]],
        group=group,
        num_ports=int(inside[problem.num_ops - problem.num_ports :].sum()),
    )
