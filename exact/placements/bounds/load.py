"""Load and memory of devices as a bound on the makespan: the Lagrangian of a fractional assignment, at any size.

For weights lambda >= 0 of sum 1 and mu >= 0, every placement has::

    C >= sum_i lambda_i load_i + mu_i (held_i - capacity_i)
      >= sum_v min_splits sum_i (lambda_i time + mu_i held) - mu . capacity

because the largest load is at least the mean and no device holds more than its capacity. An op's shards are split among
the devices in its own best way, so that for `throughput` this is at least as good as the linear relaxation. The best
weights are found by cutting planes in 2 d variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem

_ROUNDS = 60
"""Steps of the multipliers at most: later ones raise the bound by little, and take time from the search."""

_CLOSE = 1e-5
"""Relative gain that is not worth another step."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadBound:
    """A proven bound and the weights of the devices that prove it.

    Parameters
    ----------
    bound_s
        Lower bound on the makespan.
    weight
        (d,) lambda, of sum 1.
    penalty
        (d,) mu, seconds a byte.
    """

    bound_s: float
    weight: FloatArray
    penalty: FloatArray


_LAST: WeakKeyDictionary[PlacementProblem, tuple[NDArray[np.bool_], LoadBound]] = WeakKeyDictionary()
"""By problem, what was allowed in the last call that ended by itself, and what it found."""


def load_lagrangian(problem: PlacementProblem, allowed: NDArray[np.bool_], budget: Budget) -> LoadBound:
    """Return the best bound that some rounds of cutting planes find; every other bound begins with it.

    What was found last for a problem is kept with it: these are dozens of linear programs.

    Parameters
    ----------
    problem
        The problem.
    allowed
        (n, d, s + 1) batches to choose from, some way to run every op among them.
    budget
        Ends the rounds early; one is always made.
    """
    known = _LAST.get(problem)
    if known is not None and np.array_equal(known[0], allowed):
        return known[1]
    found = _cutting_planes(problem, allowed, budget)
    if not budget.expired:
        _LAST[problem] = (allowed.copy(), found)
    return found


def _cutting_planes(problem: PlacementProblem, allowed: NDArray[np.bool_], budget: Budget) -> LoadBound:
    """Return the best bound of at most so many rounds."""
    n, d = problem.num_ops, problem.num_devices
    capped = np.flatnonzero(np.isfinite(problem.capacity_bytes) & (problem.capacity_bytes > 0))
    if not n:
        return LoadBound(0.0, np.full(d, 1.0 / d), np.zeros(d))
    seconds, held = of_groups(problem, allowed)
    capacity = problem.capacity_bytes[capped] * CAPACITY_SLACK
    held = held[:, capped] / capacity[:, None]
    useful = np.isfinite(seconds[:, :, 1:])
    mean = np.where(useful, seconds[:, :, 1:], 0.0).sum(axis=(0, 2)) / np.maximum(1, useful.sum(axis=(0, 2)))
    multiplier = np.where(mean > 0, 1.0 / np.where(mean > 0, mean, 1.0), 0.0)
    weight = (
        multiplier / multiplier.sum() if multiplier.sum() > 0 and np.isfinite(multiplier.sum()) else np.full(d, 1.0 / d)
    )
    penalty, priced = np.zeros(len(capped)), np.zeros(d)
    best = LoadBound(0.0, weight, priced)
    most = max(float(np.where(useful, seconds[:, :, 1:], 0.0).max(axis=(1, 2)).sum()), 1e-300)
    rows: list[FloatArray] = []
    for _ in range(_ROUNDS):
        with np.errstate(invalid="ignore"):
            cost = np.where(np.isfinite(seconds), seconds * weight[:, None], np.inf)
        cost[:, capped] += penalty[:, None] * held
        least, count = _best_splits(cost)
        total = float(least.sum())
        value = total - float(penalty.sum()) - ROUNDING * (abs(total) + float(penalty.sum()))
        if value > best.bound_s:
            priced = np.zeros(d)
            priced[capped] = penalty / capacity
            best = LoadBound(value, weight, priced)
        op, device = np.nonzero(count)
        load = np.bincount(device, weights=seconds[op, device, count[op, device]], minlength=d)
        over = np.array([held[op[device == i], k, count[op[device == i], i]].sum() for k, i in enumerate(capped)]) - 1.0
        rows.append(np.concatenate([load, over * most]) / most)
        if budget.expired:
            break
        master = _master(np.array(rows), d)
        if master is None:
            break
        ceiling, point = master
        if ceiling * most <= max(best.bound_s * (1.0 + _CLOSE), value):
            break
        weight, penalty = point[:d], point[d:] * most
        weight = weight / weight.sum()
    return best


def of_groups(problem: PlacementProblem, allowed: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Return (groups, d, s + 1) seconds, inf where not allowed, and bytes of the batches of a whole group.

    Parameters
    ----------
    problem
        The problem.
    allowed
        (n, d, s + 1) batches to choose from.
    """
    n, s = problem.num_ops, problem.num_shards
    size = problem.weight_bytes[:, None] + problem.shard_bytes[:, None] * np.arange(s + 1.0)
    size[:, 0] = 0.0
    seconds_of = np.where(allowed, problem.time_s, np.inf)
    seconds_of[:, :, 0] = 0.0
    leaders = problem.group == np.arange(n)
    seconds, held = (problem.over_groups(each, np.add)[leaders] for each in (seconds_of, size))
    return seconds, np.repeat(held[:, None, :], problem.num_devices, axis=1)


def _best_splits(cost: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return (groups,) the least cost of all shards over splits among devices, and (groups, d) its counts."""
    n, d, width = cost.shape
    rows = np.arange(n)
    count = np.zeros((n, d), np.int64)
    if width == 2:
        device = cost[:, :, 1].argmin(axis=1)
        count[rows, device] = 1
        return cost[rows, device, 1], count
    value = np.full((n, width), np.inf)
    value[:, 0] = 0.0
    taken = np.zeros((d, n, width), np.int64)
    for i in range(d):
        better = value.copy()
        for c in range(1, width):
            moved = value[:, : width - c] + cost[:, i, c][:, None]
            lower = moved < better[:, c:]
            better[:, c:][lower] = moved[lower]
            taken[i, :, c:][lower] = c
        value = better
    left = np.full(n, width - 1)
    for i in reversed(range(d)):
        count[:, i] = taken[i, rows, left]
        left = left - count[:, i]
    return value[:, -1], count


def _master(rows: FloatArray, d: int) -> tuple[float, FloatArray] | None:
    """Return the largest z with ``z <= row . (lambda, mu)`` for all rows, and its weights; None if HiGHS fails."""
    size = rows.shape[1]
    cost = np.zeros(size + 1)
    cost[-1] = -1.0
    equal = np.concatenate([np.ones(d), np.zeros(size - d + 1)])[None, :]
    box = [(0.0, 1.0)] * d + [(0.0, 1e3)] * (size - d) + [(None, None)]
    result = linprog(
        cost,
        A_ub=np.column_stack([-rows, np.ones(len(rows))]),
        b_ub=np.zeros(len(rows)),
        A_eq=equal,
        b_eq=np.ones(1),
        bounds=box,
        method="highs",
    )
    if result.x is None or result.status != 0:
        return None
    weights = np.maximum(result.x[:-1], 0.0)
    return (float(result.x[-1]), weights) if weights[:d].sum() > 0 else None
