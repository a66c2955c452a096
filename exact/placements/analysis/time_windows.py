"""Time windows of batches: what heads, tails and a value to beat decide before any search.

The *head* of a batch is a lower bound on its start, its *tail* one on the time from its end to the makespan (Carlier's
tail, without the batch itself), in every placement whose makespan is at most a limit. The equations are in
:mod:`~rlinit.exact.placements.analysis.propagation`. A batch whose head, duration and tail exceed the limit is not
there. There are two views:

`BatchWindows`
    of the batches (v, i), also around a placement of which only some ops may move. Where the windows of a pair on one
    device leave one order only, that order is decided; where they leave none, the two are apart.
`ShardWindows`
    of the *batch of one shard*: any fixed shard of op v lies in exactly one batch (v, i), which takes at least
    ``least_s[v, i]``, and shards of one input depend on each other along every edge. So all that holds for the ops of a
    `latency` problem with times ``least_s`` holds for each shard of a `throughput` problem. Every bound starts here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.budget import Budget, reserve
from rlinit.exact.placements.analysis.batches import BatchState, DataFlow, data_flow
from rlinit.exact.placements.analysis.open_propagation import carry_open
from rlinit.exact.placements.analysis.orders import close_orders, collapse, drop_late, order_pairs
from rlinit.exact.placements.analysis.propagation import carry
from rlinit.exact.placements.analysis.symmetry import alike_devices
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import shard_masks

_MAX_ROUNDS = 30
"""Rounds over all pairs of batches; cut short, what was derived holds all the same."""

_PAIRS_A_LOOK = 5_000_000
"""Pairs of batches between looks at the clock: some 20 ms."""

_MANY_BATCHES = 20_000
"""Batches (v, i) from which on alike devices are looked for: with fewer, carrying all of them is as quick."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchWindows:
    """What is known of each batch (v, i) before the search.

    Parameters
    ----------
    limit_s
        Only placements of at most this makespan are described.
    empty
        No placement of the window is within the limit.
    free
        (n,) ops whose place in the orders is open.
    pinned
        (n,) ops whose devices are given.
    allowed
        (n, d) batches that may exist.
    mask
        (n, d) shards of each batch as bits for pinned ops; 0 for others.
    least_s
        (n, d) shortest duration of each allowed batch.
    head_s, tail_s
        (n, d) of each allowed batch.
    precedes
        (n, n) whether every batch of one op ends before any of another starts, by data and fixed orders; all False for
        several shards.
    before, after
        (n, d) op of the batch run before and after a batch of a fixed op among the fixed ones on its device; -1: none.
    early, late
        (n, d) fixed batches that start at their head, or end at the makespan less their tail, without loss.
    """

    limit_s: float
    empty: bool
    free: BoolArray
    pinned: BoolArray
    allowed: BoolArray
    mask: IntArray
    least_s: FloatArray
    head_s: FloatArray
    tail_s: FloatArray
    precedes: BoolArray
    before: IntArray
    after: IntArray
    early: BoolArray
    late: BoolArray

    @property
    def rest_s(self) -> FloatArray:
        """(n, d) least time from the start of each allowed batch to the makespan."""
        return self.least_s + self.tail_s

    def may_precede(self, v: int, w: int, i: int) -> bool:
        """Return whether batch (v, i) may run before batch (w, i) within the limit.

        Parameters
        ----------
        v, w
            Ops.
        i
            A device that may run both.
        """
        rest = self.least_s[w, i] + self.tail_s[w, i]
        return bool(self.head_s[v, i] + self.least_s[v, i] + rest <= self.limit_s) and not self.precedes[w, v]

    def fixed_order(self, i: int) -> IntArray:
        """Return the fixed ops of device i in the order they run in."""
        held = np.flatnonzero(~self.free & self.allowed[:, i])
        at = int(held[self.before[held, i] < 0][0]) if len(held) else -1
        order = []
        while at >= 0:
            order.append(at)
            at = int(self.after[at, i])
        return np.array(order, np.int64)


def horizon_s(problem: PlacementProblem) -> float:
    """Return seconds within which every placement that list scheduling completes ends.

    A batch starts at zero, at the end of another or at the end of a transfer, so the makespan is a sum of durations of
    distinct batches and distinct transfers.
    """
    s = problem.num_shards
    seconds = np.where(np.isfinite(problem.time_s), problem.time_s, 0.0).max(axis=2)
    delay = np.where(np.isfinite(problem.delay_s), problem.delay_s, 0.0)
    moved = delay[None] + s * problem.tensor_bytes[:, None, None] * problem.s_per_byte[None]
    if s == 1:  # An op is one batch.
        most = (seconds + moved.sum(axis=2)).max(axis=1, initial=0.0)
    else:
        most = seconds.sum(axis=1) + moved.sum(axis=(1, 2))
    return float(most.sum()) * (1 + 1e-9)


def latest_end(problem: PlacementProblem, allowed: BoolArray) -> float:
    """Return a makespan that the best placement does not exceed: everything it may do, one after the other.

    Parameters
    ----------
    problem
        What is placed.
    allowed
        (n, d, s + 1) batches to choose from.
    """
    if not problem.num_ops:
        return 0.0
    batches = np.where(allowed, problem.time_s, 0.0).max(axis=2).sum()
    link = np.isfinite(problem.delay_s)
    delay = np.where(link, problem.delay_s, 0.0)
    moved = problem.tensor_bytes.sum() * problem.num_shards * np.where(link, problem.s_per_byte, 0.0).sum()
    # Each batch is sent to each device at most once a shard, whatever `transfers` is.
    return float(batches + problem.num_shards * problem.num_ops * delay.sum() + moved)


# Windows of batches, whole or around a placement.


def batch_windows(
    problem: PlacementProblem,
    limit_s: float,
    start: Placement | None = None,
    free: BoolArray | None = None,
    budget: Budget | None = None,
) -> BatchWindows:
    """Return the windows of all batches for placements of at most `limit_s`, whole or around `start`.

    Parameters
    ----------
    problem
        What is placed.
    limit_s
        Finite; exceed the value to beat by more than the rounding of a sum.
    start
        A feasible placement; needed with `free`.
    free
        (n,) ops that may change device and order. The others keep their devices in `start` and their order among
        themselves on each device. None frees all.
    budget
        Once it has ended windows stay as wide as they are.

    Raises
    ------
    ValueError
        Some ops are not free, and there is no start.
    """
    n, d = problem.num_ops, problem.num_devices
    is_free = np.ones(n, np.bool_) if free is None else np.asarray(free, np.bool_)
    if start is None and not is_free.all():
        raise ValueError("expected a start together with free")
    fixed = None if start is None or is_free.all() else _fixed_part(problem, start, is_free)
    nobody = np.full((n, d), -1, np.int64)
    pinned = np.zeros(n, np.bool_) if fixed is None else fixed.pinned
    mask = np.zeros((n, d), np.int64) if fixed is None else fixed.mask
    before, after = (nobody, nobody.copy()) if fixed is None else (fixed.before, fixed.after)
    flow = data_flow(problem, None if fixed is None else fixed.visit)
    allowed = _allowed(problem)
    empty = bool((pinned[:, None] & (mask != 0) & ~allowed).any())
    allowed = np.where(pinned[:, None], mask != 0, allowed)
    least = _least_durations(problem, pinned, mask)
    empty = empty or bool((pinned[:, None] & allowed & ~np.isfinite(least)).any())
    least = np.where(allowed & np.isfinite(least), least, 0.0)
    reserve(2.0 * n * n, f"which of {n:,} ops precede which")
    ancestors = np.zeros((n, n), np.bool_)
    if problem.num_shards == 1:
        close_orders(flow, before, ancestors)
    precedes = np.ascontiguousarray(ancestors.T)
    head, tail = np.zeros((n, d)), np.zeros((n, d))
    state = BatchState(is_free, allowed, mask, least, head, tail, before, after, precedes)
    settled = _propagate(flow, state, limit_s, budget or Budget())
    close_groups(problem, allowed)
    empty = empty or settled < 0 or not allowed.any(axis=1).all()
    early, late = np.zeros((n, d), np.bool_), np.zeros((n, d), np.bool_)
    if settled > 0 and not empty and not is_free.all() and problem.transfers == "parallel":
        collapse(flow, state, limit_s, early, late)
    return BatchWindows(
        limit_s, empty, is_free, pinned, allowed, mask, least, head, tail, precedes, before, after, early, late & ~early
    )


def _propagate(flow: DataFlow, state: BatchState, limit: float, budget: Budget) -> int:
    """Tighten heads, tails and devices: 1 once nothing changes, 0 if cut short, -1 if nothing is within the limit."""
    n, d = state.allowed.shape
    step = max(1, _PAIRS_A_LOOK // max(1, n * d))
    for _ in range(_MAX_ROUNDS):
        changed = carry(flow, state)
        dropped = drop_late(flow, state, limit)
        if dropped < 0:
            return -1
        changed = changed or dropped > 0
        for first in range(0, n, step):
            if budget.expired:
                return 0
            ordered = order_pairs(state, limit, first, min(n, first + step))
            if ordered < 0:
                return -1
            changed = changed or ordered > 0
        if not changed:
            return 1
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class _FixedPart:
    """What a start settles of the ops that are not free; the fields as in `BatchWindows`, and an order to visit in."""

    pinned: BoolArray
    mask: IntArray
    before: IntArray
    after: IntArray
    visit: IntArray


def _fixed_part(problem: PlacementProblem, start: Placement, free: BoolArray) -> _FixedPart:
    """Return devices and orders of the ops that are not free."""
    n, d = problem.num_ops, problem.num_devices
    held_groups = np.zeros(n, np.bool_)
    held_groups[problem.group[~free]] = True
    pinned = held_groups[problem.group]
    mask = np.where(pinned[:, None], shard_masks(start.device, d), 0)
    ops = start.sequence // d
    _, first = np.unique(ops[::-1], return_index=True)
    before, after = np.full((n, d), -1, np.int64), np.full((n, d), -1, np.int64)
    last = np.full(d, -1, np.int64)
    for code in start.sequence[~free[ops]].tolist():
        v, i = divmod(code, d)
        if last[i] >= 0:
            before[v, i], after[last[i], i] = last[i], v
        last[i] = v
    # Ops by their last appearance in the sequence.
    return _FixedPart(pinned, mask, before, after, np.argsort(first)[::-1])


def _least_durations(problem: PlacementProblem, pinned: BoolArray, mask: IntArray) -> FloatArray:
    """Return (n, d) the shortest duration of each batch, that of its shards for pinned ops."""
    least: FloatArray = problem.time_s[:, :, 1:].min(axis=2)
    if pinned.any():
        counts = np.zeros((int(pinned.sum()), problem.num_devices), np.int64)
        for shard in range(problem.num_shards):
            counts += (mask[pinned] >> shard) & 1
        least[pinned] = np.take_along_axis(problem.time_s[pinned], counts[:, :, None], axis=2)[:, :, 0]
    return least


def _allowed(problem: PlacementProblem) -> BoolArray:
    """Return (n, d) batches of at least one size that a device may run and hold, alike within a group."""
    held = problem.weight_bytes + problem.shard_bytes
    allowed = np.asarray(np.isfinite(problem.time_s[:, :, 1:]).any(axis=2))
    allowed &= held[:, None] <= problem.capacity_bytes * CAPACITY_SLACK
    close_groups(problem, allowed)
    return allowed


# Windows of the batch of one shard.


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
