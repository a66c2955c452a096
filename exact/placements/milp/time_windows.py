"""Time windows of batches: what heads, tails and a value to beat decide before any search.

A *head* is a lower bound on the start of a batch, a *tail* one on the time from its start to the makespan (so that it
includes the batch itself), in every placement of the window whose makespan is at most a limit. Where the window of a
pair on one device leaves one order only, that order is decided; where it leaves none, the two are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.milp.propagation import close_orders, collapse, propagate
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import shard_masks

__all__ = ["BatchWindows", "batch_windows", "horizon_s"]


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
        (n, d) fixed batches that start at their head, or at the makespan less their tail, without loss.
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

    def may_precede(self, v: int, w: int, i: int) -> bool:
        """Return whether batch (v, i) may run before batch (w, i) within the limit."""
        span = self.head_s[v, i] + self.least_s[v, i] + self.tail_s[w, i]
        return bool(span <= self.limit_s) and not self.precedes[w, v]

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


def batch_windows(
    problem: PlacementProblem, limit_s: float, start: Placement | None = None, free: BoolArray | None = None
) -> BatchWindows:
    """Return the windows of all batches for placements of at most `limit_s`, whole or around `start`.

    Parameters
    ----------
    limit_s
        Finite; exceed the value to beat by more than the rounding of a sum.
    start
        A feasible placement; needed with `free`.
    free
        (n,) ops that may change device and order. The others keep their devices in `start` and their order among
        themselves on each device. None frees all.
    """
    n, d = problem.num_ops, problem.num_devices
    is_free = np.ones(n, np.bool_) if free is None else np.asarray(free, np.bool_)
    if start is None and not is_free.all():
        raise ValueError("expected a start together with free")
    pinned = np.zeros(n, np.bool_)
    mask = np.zeros((n, d), np.int64)
    before, after = np.full((n, d), -1, np.int64), np.full((n, d), -1, np.int64)
    visit = problem.order.astype(np.int64)
    if start is not None and not is_free.all():
        held_groups = np.zeros(n, np.bool_)
        held_groups[problem.group[~is_free]] = True
        pinned = held_groups[problem.group]
        mask = np.where(pinned[:, None], shard_masks(start.device, d), 0)
        ops = start.sequence // d
        _, first = np.unique(ops[::-1], return_index=True)
        visit = np.argsort(first)[::-1].astype(np.int64)  # By last appearance in the sequence.
        last = np.full(d, -1, np.int64)
        for code in start.sequence[~is_free[ops]].tolist():
            v, i = divmod(code, d)
            if last[i] >= 0:
                before[v, i], after[last[i], i] = last[i], v
            last[i] = v
    allowed = _allowed(problem)
    empty = bool((pinned[:, None] & (mask != 0) & ~allowed).any())
    allowed = np.where(pinned[:, None], mask != 0, allowed)
    counts = sum(
        ((mask[pinned] >> shard) & 1 for shard in range(problem.num_shards)), np.zeros((int(pinned.sum()), d), np.int64)
    )
    least = problem.time_s[:, :, 1:].min(axis=2)
    if pinned.any():
        least[pinned] = np.take_along_axis(problem.time_s[pinned], counts[:, :, None], axis=2)[:, :, 0]
    empty = empty or bool((pinned[:, None] & allowed & ~np.isfinite(least)).any())
    least = np.where(allowed & np.isfinite(least), least, 0.0)
    ancestors = np.zeros((n, n), np.bool_)
    if problem.num_shards == 1:
        close_orders(visit, problem.pred_indptr, problem.pred, before, ancestors)
    precedes = ancestors.T
    head, tail = np.zeros((n, d)), least.copy()
    shape = (problem.succ_indptr, problem.succ, problem.pred_indptr, problem.pred, problem.group)
    costs = (problem.tensor_bytes, problem.s_per_byte, problem.delay_s)
    state: tuple[Any, ...] = (is_free, allowed, mask, least, head, tail, before, after, precedes)
    settled = propagate(limit_s, visit, *shape, *costs, *state)
    np.logical_and.at(allowed, problem.group, allowed.copy())
    allowed &= allowed[problem.group]
    empty = empty or settled < 0 or not allowed.any(axis=1).all()
    early, late = np.zeros((n, d), np.bool_), np.zeros((n, d), np.bool_)
    if settled > 0 and not empty and not is_free.all() and problem.transfers == "parallel":
        state = (*state, early, late)
        collapse(limit_s, visit, *shape[:-1], *state)
    return BatchWindows(
        limit_s, empty, is_free, pinned, allowed, mask, least, head, tail, precedes, before, after, early, late & ~early
    )


def _allowed(problem: PlacementProblem) -> BoolArray:
    """Return (n, d) batches of at least one size that a device may run and hold, alike within a group."""
    held = problem.weight_bytes + problem.shard_bytes
    allowed = np.asarray(np.isfinite(problem.time_s[:, :, 1:]).any(axis=2))
    allowed &= held[:, None] <= problem.capacity_bytes * CAPACITY_SLACK
    banned = np.zeros_like(allowed)
    np.logical_or.at(banned, problem.group, ~allowed)
    able: BoolArray = ~banned[problem.group]
    return able
