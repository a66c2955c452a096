"""Placements that keep within memory when the peak of live tensors counts: local search, and all of a small problem."""

from __future__ import annotations

from itertools import product

import numpy as np

from rlinit.arrays import DEFAULT_WORK, FloatArray, IntArray, inverse_of
from rlinit.budget import UNLIMITED, Budget
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.live_tensors import LiveArrays, Run, copies, peaks
from rlinit.kernels.placements.slots import bit_count
from rlinit.kernels.placements.timeline import PARALLEL, TimelineArrays, no_transfers, run_batches
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import (
    MODES,
    held_bytes,
    makespan,
    obstacle,
    placement_from_priority,
    shard_masks,
    timeline_arrays,
)

_TRIED = 1_000
"""Placements tried without a time limit: about a second for a hundred ops."""

_REORDER = 0.3
"""Part of the moves that change the order rather than devices."""

_FEW_OPS, _FEW_CHOICES = 12, 20_000
"""Ops, and choices of devices for them, up to which all schedules are looked at."""


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
    left = UNLIMITED if timed else _TRIED
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


# -- all schedules -------------------------------------------------------------------------------------------------


def has_few_schedules(problem: PlacementProblem) -> bool:
    """Return whether a problem is so small that `best_of_all` can look at most of its schedules."""
    chosen = len(np.unique(problem.group)) * problem.num_shards
    return problem.num_ops <= _FEW_OPS and problem.num_devices**chosen <= _FEW_CHOICES


def best_of_all(
    problem: PlacementProblem, live: LiveTensors, below: float, *, budget: Budget | None = None
) -> Placement | None:
    """Return the placement of the least makespan that keeps within memory, or None.

    The search is complete unless time or steps end it: every choice of devices, every order. It proves nothing, since a
    schedule in which a batch waits although it could run may hold less.

    Parameters
    ----------
    problem
        The problem, whose own memory counts weights alone.
    live
        Its tensors.
    below
        Seconds; only what takes less is looked for.
    budget
        When to stop.
    """
    arrays, mode, best = timeline_arrays(problem), MODES[problem.transfers], None
    room = problem.capacity_bytes * CAPACITY_SLACK
    groups, place = np.unique(problem.group, return_inverse=True)
    ways: list[tuple[IntArray, IntArray]] = []
    for chosen in product(range(problem.num_devices), repeat=len(groups) * problem.num_shards):
        device = np.array(chosen, np.int64).reshape(len(groups), problem.num_shards)[place]
        batches = np.unique(problem.order[:, None] * problem.num_devices + device[problem.order])
        if not obstacle(problem, Placement(device, batches)):
            ways.append((device, batches[np.argsort(inverse_of(problem.order)[batches // problem.num_devices])]))
    steps, limit = 0, problem.num_ops * problem.num_shards  # at least one schedule of each
    timed = budget is not None and budget.remaining_s < np.inf
    while ways and (timed or steps < DEFAULT_WORK):
        left = []
        for device, batches in ways:
            if budget is not None and budget.expired:
                return best
            masks, found = shard_masks(device, problem.num_devices), batches.copy()
            held = held_bytes(problem, device)
            value, taken = _least(arrays, mode, live.arrays, device, masks, batches, held, room, below, limit, found)
            steps += taken
            if value < below:
                below, best = value, Placement(device, found)
            if taken > limit:
                left.append((device, batches))
        ways, limit = left, 2 * limit
    return best


@njit(cache=True, nogil=True)
def _least(
    a: TimelineArrays,
    mode: int,
    live: LiveArrays,
    device: IntArray,
    mask: IntArray,
    batches: IntArray,
    held: FloatArray,
    room: FloatArray,
    value: float,
    limit: int,
    best: IntArray,
) -> tuple[float, int]:
    """Write into `best` the order of batches of the least makespan below `value` that keeps within memory.

    Depth first, in at most `limit` steps. With transfers in parallel only orders by start are looked at, since any
    other gives the schedule of one of them. Returns the makespan, `value` where nothing was found, and the steps.
    """
    b, d = len(batches), mask.shape[1]
    start, moved = np.empty(mask.shape), no_transfers(mode, len(mask), device.shape[1], d)
    sequence, at = np.empty(b, np.int64), np.empty(b + 1, np.int64)
    used, after = np.zeros(b, np.bool_), np.zeros(b + 1)
    depth, steps = 0, 0
    at[0] = -1
    while depth >= 0 and steps <= limit:
        if at[depth] >= 0:
            used[at[depth]] = False
        at[depth] += 1
        while at[depth] < b and used[at[depth]]:
            at[depth] += 1
        if at[depth] >= b:
            at[depth] = -1
            depth -= 1
            continue
        steps += 1
        code = batches[at[depth]]
        sequence[depth] = code
        reached = run_batches(a, mode, sequence[: depth + 1], mask, start, moved)
        began = start[code // d, code % d]
        if not reached < value or (mode == PARALLEL and began < after[depth]):
            continue
        if depth + 1 < b:
            used[at[depth]] = True
            depth += 1
            at[depth], after[depth] = -1, began
            continue
        end = np.full(mask.shape, np.nan)
        for batch in sequence:
            v, i = batch // d, batch % d
            end[v, i] = start[v, i] + a.time[v, i, bit_count(mask[v, i])]
        n = len(live.order)
        run = Run(device[:n], start[:n], end[:n], a.s_per_byte, a.delay, moved.sent, moved.arrival)
        if (held + peaks(live, run, copies(live, run)) <= room).all():
            value = reached
            best[:] = sequence
    return value, steps
