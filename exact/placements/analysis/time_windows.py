"""Time windows of batches: what heads, tails and a value to beat decide before any search.

The *head* of a batch is a lower bound on its start, its *tail* one on the time from its end to the makespan (Carlier's
tail, without the batch itself), in every placement whose makespan is at most a limit; see
:mod:`~rlinit.exact.placements.analysis.open_propagation`. A batch whose head, duration and tail exceed the limit is not
there.

All of it is said of the *batch of one shard*: any fixed shard of op v lies in exactly one batch (v, i), which takes at
least ``least_s[v, i]``, and shards of one input depend on each other along every edge. So what holds for the ops of a
`latency` problem with times ``least_s`` holds for each shard of a `throughput` problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.analysis.batches import data_flow
from rlinit.exact.placements.analysis.open_propagation import carry_open
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import PlacementProblem

_MANY_BATCHES = 20_000
"""Batches (v, i) from which on alike devices are looked for: with fewer, carrying all of them is as quick."""


def latest_end(problem: PlacementProblem, allowed: BoolArray) -> float:
    """Return a makespan that the best placement does not exceed: everything it may do, one after the other.

    Parameters
    ----------
    problem
        What is placed.
    allowed
        (n, d, s + 1) batches to choose from.
    """
    s = problem.num_shards
    seconds = np.where(allowed, problem.time_s, 0.0).max(axis=2)
    delay = np.where(np.isfinite(problem.delay_s), problem.delay_s, 0.0)
    # A batch is sent to each device at most once.
    sent = delay.sum(axis=1) + s * problem.tensor_bytes[:, None] * problem.s_per_byte.sum(axis=1)
    each = np.where(allowed.any(axis=2), seconds + sent, 0.0)
    return float((each.max(axis=1, initial=0.0) if s == 1 else each.sum(axis=1)).sum())


@dataclass(frozen=True, slots=True, eq=False)
class ShardWindows:
    """What is left of the batches of a problem.

    Parameters
    ----------
    allowed
        (n, d, s + 1) whether a batch of c shards may run; false for c = 0.
    least_s
        (n, d) shortest allowed batch, ``inf`` where there is none.
    head_s, tail_s
        (n, d) of the batch, ``inf`` where there is none.
    floor_s
        Lower bound on the makespan by the longest path: ``max_v min_i head + least + tail``.
    """

    allowed: BoolArray
    least_s: FloatArray
    head_s: FloatArray
    tail_s: FloatArray
    floor_s: float


def possible_batches(problem: PlacementProblem) -> BoolArray:
    """Return (n, d, s + 1) which batches can be part of a placement by times, groups, memory and number of shards."""
    s = problem.num_shards
    allowed = np.isfinite(problem.time_s)
    allowed[:, :, 0] = False
    close_groups(problem, allowed)
    if np.isfinite(problem.capacity_bytes).any():
        own = problem.weight_bytes[:, None] + problem.shard_bytes[:, None] * np.arange(s + 1.0)
        held = problem.over_groups(own, np.add)
        allowed &= held[:, None, :] <= problem.capacity_bytes[:, None] * CAPACITY_SLACK
    return _drop_incomplete(allowed)


def close_groups(problem: PlacementProblem, allowed: BoolArray) -> None:
    """Forbid in place for all ops of a group what is forbidden for one of them.

    Parameters
    ----------
    problem
        The groups.
    allowed
        (n, ...) devices or batches to choose from.
    """
    allowed[:] = problem.over_groups(allowed, np.logical_and)


def _drop_incomplete(allowed: BoolArray) -> BoolArray:
    """Leave only batches that the other devices can complete to all shards (of one device: only all of them)."""
    n, d, width = allowed.shape
    if width == 2:
        return allowed
    options = allowed.copy()
    options[:, :, 0] = True
    before = np.zeros((d + 1, n, width), np.bool_)
    after = np.zeros((d + 1, n, width), np.bool_)
    before[0, :, 0] = after[d, :, 0] = True
    for i in range(d):
        before[i + 1] = _sums(before[i], options[:, i])
        after[d - 1 - i] = _sums(after[d - i], options[:, d - 1 - i])
    result = np.zeros_like(allowed)
    for i in range(d):
        others = _sums(before[i], after[i + 1])
        result[:, i] = allowed[:, i] & others[:, ::-1]
    return result


def _sums(left: BoolArray, right: BoolArray) -> BoolArray:
    """Return (n, s + 1) which numbers of shards are a sum of one on the left and one on the right."""
    result = np.zeros_like(left)
    for c in range(left.shape[1]):
        result[:, c:] |= left[:, : left.shape[1] - c] & right[:, [c]]
    return result


def _one_of_each(problem: PlacementProblem, allowed: BoolArray) -> tuple[IntArray, IntArray]:
    """Return two devices (or the only one) of each class of alike devices, and for each device where its like is.

    Two, since data that do not stay on a device may come from another of its class. All devices where there is little
    to save.
    """
    n, d, _ = allowed.shape
    kept, like = np.ones(d, np.bool_), np.arange(d)
    if n * d >= _MANY_BATCHES:
        for members in alike_devices(problem):
            first, *others = [member[0] for member in members]
            same = [i for i in others if np.array_equal(allowed[:, i], allowed[:, first])]
            kept[same[1:]] = False
            like[same[1:]] = first
    return np.flatnonzero(kept), (np.cumsum(kept) - 1)[like]


def shard_windows(
    problem: PlacementProblem,
    upper: float,
    allowed: BoolArray,
    head_floor_s: FloatArray | None = None,
    tail_floor_s: FloatArray | None = None,
) -> ShardWindows | None:
    """Return what is left of the batches in `allowed` when the makespan is below `upper`; None if that is impossible.

    Batches are taken away until all the others pass ``head + time + tail < upper``.

    Parameters
    ----------
    problem
        What is placed.
    upper
        Seconds; ``inf`` for all placements.
    allowed
        (n, d, s + 1) batches to choose from.
    head_floor_s, tail_floor_s
        (n,) lower bounds on heads and tails known from elsewhere; None: zero.
    """
    n = problem.num_ops
    floors = [np.zeros(n) if floor is None else floor for floor in (head_floor_s, tail_floor_s)]
    allowed = allowed.copy()
    close_groups(problem, allowed)
    kept, like = _one_of_each(problem, allowed)
    flow = data_flow(problem)
    links = np.ix_(kept, kept)
    flow = flow._replace(
        s_per_byte=np.ascontiguousarray(flow.s_per_byte[links]), delay_s=np.ascontiguousarray(flow.delay_s[links])
    )
    batch_s = np.ascontiguousarray(problem.time_s[:, kept])  # kernels are compiled once for each order of axes
    while True:
        if not allowed.any(axis=(1, 2)).all():
            return None
        time_s = np.where(allowed[:, kept], batch_s, np.inf)
        least = time_s.min(axis=2)
        able = np.isfinite(least)
        head, tail = (np.repeat(floor[:, None], len(kept), axis=1) for floor in floors)
        carry_open(flow, able, least, head, tail)
        head[~able] = tail[~able] = np.inf
        total = head[:, :, None] + time_s + tail[:, :, None]
        dead = allowed[:, kept] & ~(total < min(upper, np.finfo(np.float64).max))
        if not dead.any():
            break
        allowed &= ~dead[:, like]
        close_groups(problem, allowed)
        allowed = _drop_incomplete(allowed)
    floor = float((head + least + tail).min(axis=1).max()) if n else 0.0
    return ShardWindows(allowed, least[:, like], head[:, like], tail[:, like], floor)
