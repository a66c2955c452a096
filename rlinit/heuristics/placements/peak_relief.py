"""Local search for a placement that keeps within memory when the peak of live tensors counts."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority

_WORK = 60_000
"""Ops placed in all, within the fewest and most placements tried."""

_TRIED = (100, 1_000)
"""Fewest and most placements tried without a time limit, about a second of them."""

_REORDER = 0.3
"""Part of the moves that change the order rather than devices."""


def in_natural_order(problem: PlacementProblem, placement: Placement) -> Placement:
    """Return a placement with the same devices, in the graph's natural order, in which models free tensors early.

    Parameters
    ----------
    problem
        The problem.
    placement
        Whose devices are kept.
    """
    return placement_from_priority(problem, placement.device, inverse_of(problem.order))


def relieve(
    problem: PlacementProblem, live: LiveTensors, start: Placement, *, seed: int, budget: Budget | None = None
) -> Placement | None:
    """Move runs of ops between devices, or in the order, until no device is overfull; None where that is not reached.

    Parameters
    ----------
    problem
        The problem, whose own memory counts weights alone.
    live
        Its tensors.
    start
        A placement with a finite makespan.
    seed
        Seed of everything random.
    budget
        When to stop.
    """
    rng, n, s = np.random.default_rng(seed), problem.num_ops, problem.num_shards
    place = inverse_of(problem.order).astype(np.float64)
    found, over = start, _excess(problem, live, start)
    device, priority = start.device, place
    timed = budget is not None and budget.remaining_s < np.inf
    left = 2**62 if timed else min(max(_TRIED[0], _WORK // n), _TRIED[1])
    while left > 0 and over > 0.0 and not (budget is not None and budget.expired):
        left -= 1
        first = int(rng.integers(n))
        ops = problem.order[first : first + int(np.exp(rng.uniform(0.0, np.log(n + 1.0))))]
        tried, key = device.copy(), priority
        if rng.random() < _REORDER:
            key = _reordered(priority, ops, rng)
        else:
            shards = np.arange(s) if rng.random() < 0.5 else rng.integers(s, size=1)
            tried[np.ix_(problem.group[ops], shards)] = rng.integers(problem.num_devices)
            tried = tried[problem.group]
        candidate = placement_from_priority(problem, tried, key)
        now = _excess(problem, live, candidate)
        if now <= over:
            found, over, device, priority = candidate, now, tried, key
    return found if over == 0.0 else None


def _reordered(priority: FloatArray, ops: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return priorities with some ops moved together to another place."""
    moved = priority.copy()
    moved[ops] += float(rng.integers(-len(priority), len(priority) + 1)) + 0.5
    return np.argsort(np.argsort(moved, kind="stable"), kind="stable").astype(np.float64)


def _excess(problem: PlacementProblem, live: LiveTensors, placement: Placement) -> float:
    """Return the bytes by which devices are overfull in all; ``inf`` where the placement breaks another rule."""
    return float(live.excess(problem, placement).sum()) if makespan(problem, placement) < np.inf else np.inf
