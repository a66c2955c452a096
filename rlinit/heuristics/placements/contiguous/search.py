"""Consecutive segments of a topological order, each on a device of its own: where memory makes a model spread."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.placements.contiguous.kernel import (
    best_cuts,
    extend_cuts,
    extend_cuts_in_turn,
    live_bytes,
    new_cuts,
)
from rlinit.heuristics.placements.list_scheduling.common import breadth_first, placed_in_order, slices
from rlinit.kernels.placements.list_scheduling import StorageArrays
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan

_EXACT_DEVICES = 6
"""Devices up to which every subset in every turn is tried."""

_CUTS = 256
"""Places of an order where it may be cut, at most."""

_CUTS_ON_DEVICES = 4_096
"""Places times devices, at most: the dynamic program takes time with its square, a second on 64 devices."""

_LIVE_STEPS = 50_000_000
"""Places of an order that live tensors are counted at, in all: about 0.1 s."""


def segments(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Cut topological orders into consecutive segments on different devices, by dynamic programming.

    The natural and the breadth-first order are cut where the sum of op times and of the largest tensor over each cut is
    least and every segment fits its device's memory, and the better schedule is kept. With up to 6 devices that is
    exact over the subsets and turns of the devices; with more, they come in the order of their numbers or by their
    time for the whole model. Orders of more than 256 ops are cut at the 256 places with the smallest tensors, one in
    each part (on more than 16 devices at fewer). Colocated ops follow the one that holds most. All shards of an op stay
    together.

    For the parameters see `PlacementHeuristic.__call__`; nothing is drawn, and when the budget ends, the best of what
    was tried until then is returned.

    References
    ----------
    Slicing an order is MTPP's SliceGraph (section 4), here for unequal devices that run one after another.
    """
    found: list[Placement] = []
    for order in (problem.order, breadth_first(problem)):
        found += segments_of(problem, order, budget=budget)
    return min(found, key=partial(makespan, problem), default=None)


def segments_of(
    problem: PlacementProblem,
    order: IntArray,
    storages: StorageArrays | None = None,
    budget: Budget | None = None,
) -> list[Placement]:
    """Cut one topological order as `segments` does; return what is feasible of one or two ways.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) topological order.
    storages
        What a segment holds beside its weights, in bytes of all shards; None: what the problem says.
    budget
        When to stop.
    """
    found = (
        placed_in_order(problem, _masks(problem, device), order) for device in _cut(problem, order, storages, budget)
    )
    return [one for one in found if one is not None]


def _cut(
    problem: PlacementProblem, order: IntArray, storages: StorageArrays | None, budget: Budget | None
) -> list[IntArray]:
    """Return (n,) devices, for each way that devices may take turns for which some cuts are found in time."""
    n, d = problem.num_ops, problem.num_devices
    if n == 0:
        return [np.zeros(0, np.int64)]
    crossing = _crossing_bytes(problem, order)
    cuts = _cut_places(crossing, min(_CUTS, max(2, _CUTS_ON_DEVICES // d)))
    time = problem.op_time_s[order]
    forbidden = np.zeros((d, n + 1), np.int64)
    forbidden[:, 1:] = np.cumsum(~np.isfinite(time), axis=0).T
    work = np.zeros((d, n + 1))
    work[:, 1:] = np.cumsum(np.where(np.isfinite(time), time, 0.0), axis=0).T
    held = np.zeros(n + 1)
    held[1:] = np.cumsum((problem.weight_bytes + problem.num_shards * problem.shard_bytes)[order])
    if storages is None:
        need = held[cuts] - held[cuts][:, None]
    else:
        most = float(problem.capacity_bytes.max()) * CAPACITY_SLACK
        need = live_bytes(storages, order, held, cuts, most, _LIVE_STEPS)
    volume = problem.num_shards * crossing[cuts]
    move = problem.delay_s + volume[:, None, None] * problem.s_per_byte
    exact = d <= _EXACT_DEVICES
    turns = [np.arange(d)] if exact else [np.arange(d), np.argsort(work[:, -1], kind="stable")]
    found = []
    for turn in turns:
        block, seconds = _best_cuts(
            exact,
            np.ascontiguousarray(work[turn][:, cuts]),
            np.ascontiguousarray(forbidden[turn][:, cuts]),
            need,
            problem.capacity_bytes[turn] * CAPACITY_SLACK,
            np.ascontiguousarray(move[:, turn][:, :, turn]),
            budget,
        )
        if np.isfinite(seconds):
            device = np.empty(n, np.int64)
            device[order] = np.repeat(turn[block], np.diff(cuts))
            found.append(device)
    return found


def _best_cuts(
    exact: bool,
    work: FloatArray,
    forbidden: IntArray,
    need: FloatArray,
    capacity: FloatArray,
    move: FloatArray,
    budget: Budget | None,
) -> tuple[IntArray, float]:
    """Return (p,) devices of the blocks between cuts, and seconds: the best of what the budget lets be tried.

    Arrays are those of `extend_cuts`; `exact`: over all subsets and turns, else for devices in the order given.
    """
    d, p = work.shape[0], work.shape[1] - 1  # a row takes milliseconds at most
    table = new_cuts(1 << d if exact else 1, d, p)
    extend, first, rows = (extend_cuts, 1, (1 << d) - 1) if exact else (extend_cuts_in_turn, 0, d)
    for part in slices(rows, 1, budget):
        extend(table, first, first + part, work, forbidden, need, capacity, move)
        first += part
    return best_cuts(table)


def _crossing_bytes(problem: PlacementProblem, order: IntArray) -> FloatArray:
    """Return (n + 1,) bytes of the largest tensor (one shard of it) that crosses each place of an order."""
    n = problem.num_ops
    place = inverse_of(order)
    last = place.copy()
    np.maximum.at(last, problem.edges[:, 0], place[problem.edges[:, 1]])
    crossing = np.zeros(n + 1)
    for v in np.argsort(problem.tensor_bytes, kind="stable"):
        crossing[place[v] + 1 : last[v] + 1] = problem.tensor_bytes[v]
    return crossing


def _cut_places(crossing: FloatArray, most: int) -> IntArray:
    """Return both ends of an order and, of each of `most` parts of it, the place with the smallest tensors."""
    n = len(crossing) - 1
    if n <= most:
        return np.arange(n + 1)
    edges = np.linspace(1, n, most, dtype=np.int64)
    inner = [first + int(np.argmin(crossing[first:end])) for first, end in pairwise(edges)]
    return np.array([0, *inner, n])


def _masks(problem: PlacementProblem, device: IntArray) -> IntArray:
    """Return (n, d) shards as bits, colocated ops on the device of the one that holds most."""
    held = problem.weight_bytes + problem.num_shards * problem.shard_bytes
    leader = np.arange(problem.num_ops)
    for v in np.argsort(held, kind="stable"):
        leader[problem.group[v]] = v
    mask = np.zeros((problem.num_ops, problem.num_devices), np.int64)
    mask[np.arange(problem.num_ops), device[leader[problem.group]]] = (1 << problem.num_shards) - 1
    return mask
