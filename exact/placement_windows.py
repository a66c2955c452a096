"""Time windows of batches: what heads, tails and a value to beat decide before any search.

A *head* is a lower bound on the start of a batch, a *tail* one on the time from its start to the makespan (so that it
includes the batch itself), in every placement of the window whose makespan is at most a limit. Where the window of a
pair on one device leaves one order only, that order is decided; where it leaves none, the two are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rlinit.kernels.placing import bit_count
from rlinit.placement import Placement, PlacementProblem
from rlinit.stages import CAPACITY_SLACK, FloatArray, IntArray
from rlinit.timeline import shard_masks

__all__ = ["BatchWindows", "batch_windows", "horizon_s"]

BoolArray = NDArray[np.bool_]

_MAX_ROUNDS = 30


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
        _close(visit, problem.pred_indptr, problem.pred, before, ancestors)
    precedes = ancestors.T
    head, tail = np.zeros((n, d)), least.copy()
    shape = (problem.succ_indptr, problem.succ, problem.pred_indptr, problem.pred, problem.group)
    costs = (problem.tensor_bytes, problem.s_per_byte, problem.delay_s)
    state: tuple[Any, ...] = (is_free, allowed, mask, least, head, tail, before, after, precedes)
    settled = _propagate(limit_s, visit, *shape, *costs, *state)
    np.logical_and.at(allowed, problem.group, allowed.copy())
    allowed &= allowed[problem.group]
    empty = empty or settled < 0 or not allowed.any(axis=1).all()
    early, late = np.zeros((n, d), np.bool_), np.zeros((n, d), np.bool_)
    if settled > 0 and not empty and not is_free.all() and problem.transfers == "parallel":
        state = (*state, early, late)
        _collapse(limit_s, visit, *shape[:-1], *state)
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


@njit(cache=True, nogil=True)
def _close(visit: IntArray, pred_indptr: IntArray, pred: IntArray, before: IntArray, ancestors: BoolArray) -> None:
    """Set ``ancestors[v, u]`` where u comes before v by data and by the fixed orders."""
    for at in range(len(visit)):
        v = visit[at]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            ancestors[v, pred[q]] = True
            ancestors[v] |= ancestors[pred[q]]
        for u in before[v]:
            if u >= 0:
                ancestors[v, u] = True
                ancestors[v] |= ancestors[u]


@njit(cache=True, nogil=True)
def _shared(v: int, i: int, w: int, j: int, mask: IntArray, group: IntArray) -> int:
    """Return how many shards batches (v, i) and (w, j) share: -1 where that is open, -2 for all of them."""
    if group[v] == group[w]:
        return -2 if i == j else 0
    if mask[v, i] and mask[w, j]:
        return bit_count(mask[v, i] & mask[w, j])
    return -1


@njit(cache=True, nogil=True)
def _link(
    v: int,
    i: int,
    j: int,
    shards: int,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
) -> float:
    if i == j:
        return 0.0
    seconds: float = delay_s[i, j] + max(shards, 1) * tensor_bytes[v] * s_per_byte[i, j]
    return seconds


@njit(cache=True, nogil=True)
def _data_head(
    v: int,
    i: int,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
) -> float:
    """Return when the data of (v, i) can be there: each producer's earliest batch, all where sharing is known."""
    earliest = 0.0
    for q in range(pred_indptr[v], pred_indptr[v + 1]):
        u = pred[q]
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[u, j]:
                continue
            shared = _shared(u, j, v, i, mask, group)
            if shared == 0:
                continue
            at = head[u, j] + least[u, j] + _link(u, j, i, shared, tensor_bytes, s_per_byte, delay_s)
            if shared == -1:
                soonest = min(soonest, at)
            else:
                earliest = max(earliest, at)
                soonest = 0.0
        earliest = max(earliest, soonest)
    return earliest


@njit(cache=True, nogil=True)
def _data_tail(
    v: int,
    i: int,
    succ_indptr: IntArray,
    succ: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    allowed: BoolArray,
    mask: IntArray,
    tail: FloatArray,
) -> float:
    """Return the least seconds between the end of (v, i) and the makespan that its consumers need."""
    longest = 0.0
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        w = succ[q]
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[w, j]:
                continue
            shared = _shared(v, i, w, j, mask, group)
            if shared == 0:
                continue
            rest = _link(v, i, j, shared, tensor_bytes, s_per_byte, delay_s) + tail[w, j]
            if shared == -1:
                soonest = min(soonest, rest)
            else:
                longest = max(longest, rest)
                soonest = 0.0
        longest = max(longest, soonest)
    return longest


@njit(cache=True, nogil=True)
def _sweep(
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
) -> bool:
    """Carry heads forward and tails backward along data and fixed orders; return whether anything changed."""
    changed = False
    n, d = allowed.shape
    for at in range(n):
        v = visit[at]
        for i in range(d):
            if not allowed[v, i]:
                continue
            earliest = _data_head(
                v, i, pred_indptr, pred, group, tensor_bytes, s_per_byte, delay_s, allowed, mask, least, head
            )
            if not free[v] and before[v, i] >= 0:
                u = before[v, i]
                earliest = max(earliest, head[u, i] + least[u, i])
            if earliest > head[v, i]:
                head[v, i] = earliest
                changed = True
    for at in range(n - 1, -1, -1):
        v = visit[at]
        for i in range(d):
            if not allowed[v, i]:
                continue
            rest = _data_tail(v, i, succ_indptr, succ, group, tensor_bytes, s_per_byte, delay_s, allowed, mask, tail)
            if not free[v] and after[v, i] >= 0:
                rest = max(rest, tail[after[v, i], i])
            if least[v, i] + rest > tail[v, i]:
                tail[v, i] = least[v, i] + rest
                changed = True
    return changed


@njit(cache=True, nogil=True)
def _order(
    v: int,
    w: int,
    i: int,
    limit: float,
    certain_v: bool,
    certain_w: bool,
    allowed: BoolArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    precedes: BoolArray,
) -> bool:
    """Decide what the windows of (v, i) and (w, i) decide, if one of them must be there; return whether they did."""
    changed = False
    v_first = head[v, i] + least[v, i] + tail[w, i] <= limit and not precedes[w, v]
    w_first = head[w, i] + least[w, i] + tail[v, i] <= limit and not precedes[v, w]
    if v_first and w_first:
        return False
    if not v_first and not w_first:
        # Apart: whichever need not be there is not.
        if certain_v:
            allowed[w, i] = False
        if certain_w:
            allowed[v, i] = False
        return True
    first, second = (v, w) if v_first else (w, v)
    first_certain, second_certain = (certain_v, certain_w) if v_first else (certain_w, certain_v)
    if first_certain and head[first, i] + least[first, i] > head[second, i]:
        head[second, i] = head[first, i] + least[first, i]
        changed = True
    if second_certain and least[first, i] + tail[second, i] > tail[first, i]:
        tail[first, i] = least[first, i] + tail[second, i]
        changed = True
    return changed


@njit(cache=True, nogil=True)
def _propagate(
    limit: float,
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
    precedes: BoolArray,
) -> int:
    """Tighten heads, tails and devices: 1 once nothing changes, 0 if cut short, -1 if nothing is within the limit."""
    n, d = allowed.shape
    for _ in range(_MAX_ROUNDS):
        changed = _sweep(
            visit,
            succ_indptr,
            succ,
            pred_indptr,
            pred,
            group,
            tensor_bytes,
            s_per_byte,
            delay_s,
            free,
            allowed,
            mask,
            least,
            head,
            tail,
            before,
            after,
        )
        for v in range(n):
            choices = 0
            for i in range(d):
                if allowed[v, i] and head[v, i] + tail[v, i] > limit:
                    if mask[v, i]:
                        return -1
                    allowed[v, i] = False
                    changed = True
                if not allowed[group[v], i] and allowed[v, i]:
                    allowed[v, i] = False
                    changed = True
                if not allowed[v, i] and allowed[group[v], i]:
                    allowed[group[v], i] = False
                    changed = True
                choices += allowed[v, i]
            if choices == 0:
                return -1
        for v in range(n):
            if not free[v]:
                continue
            for i in range(d):
                for w in range(n):
                    if not allowed[v, i]:
                        break
                    if w == v or not allowed[w, i] or (free[w] and w < v):
                        continue
                    certain_v = _certain(v, i, mask, allowed)
                    certain_w = _certain(w, i, mask, allowed)
                    if (certain_v or certain_w) and _order(
                        v, w, i, limit, certain_v, certain_w, allowed, least, head, tail, precedes
                    ):
                        if certain_v and certain_w and not (allowed[v, i] and allowed[w, i]):
                            return -1
                        changed = True
        if not changed:
            return 1
    return 0


@njit(cache=True, nogil=True)
def _certain(v: int, i: int, mask: IntArray, allowed: BoolArray) -> bool:
    """Return whether batch (v, i) is there in every placement of the window."""
    if mask[v, i]:
        return True
    choices = 0
    for j in range(allowed.shape[1]):
        choices += allowed[v, j]
    return bool(allowed[v, i]) and choices == 1


@njit(cache=True, nogil=True)
def _collapse(
    limit: float,
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
    precedes: BoolArray,
    early: BoolArray,
    late: BoolArray,
) -> None:
    """Find the fixed batches that nothing free can delay (`early`) or be delayed by (`late`).

    An early batch waits only for early batches and no free one can run before it on its device, so it may start at its
    head. A late one is waited for only by late ones and no free one can run after it.
    """
    n, d = allowed.shape
    for at in range(n):
        v = visit[at]
        if free[v]:
            continue
        for i in range(d):
            if not allowed[v, i]:
                continue
            good = before[v, i] < 0 or early[before[v, i], i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[q]
                if not mask[u].any():
                    good = False
                for j in range(d):
                    if mask[u, j] & mask[v, i] and not early[u, j]:
                        good = False
            for f in range(n):
                if not good:
                    break
                if free[f] and allowed[f, i] and not precedes[v, f]:
                    good = head[f, i] + least[f, i] + tail[v, i] > limit
            early[v, i] = good
    for at in range(n - 1, -1, -1):
        v = visit[at]
        if free[v]:
            continue
        for i in range(d):
            if not allowed[v, i]:
                continue
            good = after[v, i] < 0 or late[after[v, i], i]
            for q in range(succ_indptr[v], succ_indptr[v + 1]):
                w = succ[q]
                if not free[w]:
                    for j in range(d):
                        if mask[w, j] & mask[v, i] and not late[w, j]:
                            good = False
                else:
                    good = False
            for f in range(n):
                if not good:
                    break
                if free[f] and allowed[f, i] and not precedes[f, v]:
                    good = head[v, i] + least[v, i] + tail[f, i] > limit
            late[v, i] = good
