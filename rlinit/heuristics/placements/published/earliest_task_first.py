"""Compiled earliest-time-first scheduling, with devices that wait for favourite children."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.list_scheduling import APPEND, PlacementArrays, split_op, take_blocks
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count, hot_kernel


class _Queue(NamedTuple):
    """Ready ops and devices while scheduling; n ops, d devices.

    `ready` (n,) lists the ready ops. `ready_at` (n, d) is when all inputs of a ready op are on a device, ``inf`` where
    it may not go, `urgent_at` (n,) the latest of those. `rank` (n,) is the order of ties, `decided` (n,) whether the
    group of a leader has its devices. Of each device `free` is when it can run on, `room` its bytes left and `last` the
    op it ran last, -1 for none.
    """

    ready: IntArray
    ready_at: FloatArray
    urgent_at: FloatArray
    rank: IntArray
    decided: NDArray[np.bool_]
    free: FloatArray
    room: FloatArray
    last: IntArray


@hot_kernel
def _fits(a: PlacementArrays, q: _Queue, v: int, i: int, mask: IntArray) -> bool:
    """Say whether all shards of a ready op may go to device i, where its group is if that is decided."""
    leader, s = a.group[v], a.time.shape[2] - 1
    if q.ready_at[v, i] == np.inf:
        return False
    if q.decided[leader]:
        return bool(bit_count(mask[leader, i]) == s)
    return bool(a.held_weight[leader] + s * a.held_shard[leader] <= q.room[i])


@hot_kernel
def _add(
    a: PlacementArrays, q: _Queue, v: int, near: NDArray[np.bool_], mask: IntArray, end: FloatArray, count: int
) -> int:
    """Enter an op whose predecessors are all scheduled; return how many are ready."""
    s = a.time.shape[2] - 1
    q.ready[count] = v
    for i in range(len(a.capacity)):
        if near[v, i] and a.allowed[a.group[v], i, s]:
            q.ready_at[v, i] = batch_ready_time(a, v, i, (1 << s) - 1, mask, end)
            if _fits(a, q, v, i, mask):
                q.urgent_at[v] = max(q.urgent_at[v], q.ready_at[v, i])
    return count + 1


@hot_kernel
def _fits_nowhere(a: PlacementArrays, q: _Queue, count: int, mask: IntArray) -> int:
    """Return a ready op that no device takes whole, or -1."""
    for k in range(count):
        able = False
        for i in range(len(a.capacity)):
            able |= _fits(a, q, q.ready[k], i, mask)
        if not able:
            return int(q.ready[k])
    return -1


@hot_kernel
def _awaited(a: PlacementArrays, q: _Queue, i: int, count: int, favourite: IntArray, mask: IntArray) -> int:
    """Return the ready favourite child of the last op of device i if it can start nowhere earlier than here, or -1."""
    child = favourite[q.last[i]] if q.last[i] >= 0 else -1
    is_ready = False
    for k in range(count):
        is_ready |= q.ready[k] == child
    if not is_ready or not _fits(a, q, child, i, mask):
        return -1
    for j in range(len(a.capacity)):
        if append_start(q.ready_at[child, j], q.free[j]) < append_start(q.ready_at[child, i], q.free[i]):
            return -1
    return int(child)


@hot_kernel
def _first(a: PlacementArrays, q: _Queue, i: int, count: int, favourite: IntArray, mask: IntArray) -> tuple[int, float]:
    """Return the op that device i runs next, and when; -1 if there is none.

    A device that waits for a child runs nothing before it but ops that can start earlier whatever their device.
    """
    child = _awaited(a, q, i, count, favourite, mask)
    best, at, tie = child, np.inf, len(q.rank)
    if child >= 0:
        at, tie = append_start(q.ready_at[child, i], q.free[i]), -1
    for k in range(count):
        v = q.ready[k]
        if v == child or not _fits(a, q, v, i, mask):
            continue
        begin = append_start(q.ready_at[v, i] if child < 0 else q.urgent_at[v], q.free[i])
        if begin < at or (begin == at and q.rank[v] < tie):
            best, at, tie = v, begin, q.rank[v]
    return best, at


@hot_kernel
def _pick(a: PlacementArrays, q: _Queue, count: int, favourite: IntArray, mask: IntArray) -> tuple[int, int]:
    """Return the op and device to start first; -1, -1 if there is none."""
    s = a.time.shape[2] - 1
    best, best_i, best_at, best_end = -1, -1, np.inf, np.inf
    for i in range(len(a.capacity)):
        v, at = _first(a, q, i, count, favourite, mask)
        if v < 0:
            continue
        over = at + a.time[v, i, s]
        if at < best_at or (at == best_at and (over < best_end or (over == best_end and q.rank[v] < q.rank[best]))):
            best, best_i, best_at, best_end = v, i, at, over
    return best, best_i


@njit(cache=True, nogil=True)
def _place(a: PlacementArrays, q: _Queue, v: int, chosen: int, mask: IntArray, end: FloatArray) -> bool:
    """Give op v the devices of its group, the chosen one, or where that is -1 its best split; False if none fits."""
    leader, d = a.group[v], len(a.capacity)
    if q.decided[leader]:
        for i in range(d):
            mask[v, i] = mask[leader, i]
        return True
    blocks, nothing, none = np.zeros(d, np.int64), np.zeros((1, 1)), np.zeros(d, np.int64)
    if chosen >= 0:
        blocks[chosen] = a.time.shape[2] - 1
    elif not split_op(a, v, APPEND, mask, end, q.room, q.free, none, nothing, nothing, nothing, blocks):
        return False
    take_blocks(a, v, blocks, mask, q.room)
    q.decided[leader] = True
    return True


@njit(cache=True, nogil=True)
def schedule_earliest_start(
    a: PlacementArrays,
    order: IntArray,
    near: NDArray[np.bool_],
    favourite: IntArray,
    mask: IntArray,
    start: FloatArray,
    end: FloatArray,
) -> bool:
    """Repeat: of all ready ops and devices take the pair that can start first; False where an op fits nowhere.

    On a device ties go to the earlier op in `order`; between devices to the earlier end, then to the earlier op. All
    shards of an op go to one device. An op that no device takes whole (any more) is split at once, so as to end first;
    `near` does not bind it then.

    Parameters
    ----------
    a
        The problem.
    order
        (n,) topological order.
    near
        (n, d) devices an op may go to.
    favourite
        (n,) favourite child of each op, or -1. A device whose last op has a favourite child that is ready, and that can
        start nowhere earlier than here, runs nothing else before it but urgent ops: those that any of their devices
        could start by then.
    mask, start, end
        (n, d) results: shards of each batch, and when it runs. `mask` is zero on entry.

    Notes
    -----
    O(n d r) where at most r ops are ready at once.
    """
    n, d = len(a.tensor), len(a.capacity)
    rank = np.empty(n, np.int64)
    for k in range(n):
        rank[order[k]] = k
    q = _Queue(
        np.empty(n, np.int64),
        np.full((n, d), np.inf),
        np.zeros(n),
        rank,
        np.zeros(n, np.bool_),
        np.zeros(d),
        a.capacity.copy(),
        np.full(d, -1, np.int64),
    )
    waiting = a.pred_indptr[1:] - a.pred_indptr[:-1]
    count = 0
    for v in order:
        if waiting[v] == 0:
            count = _add(a, q, v, near, mask, end, count)
    for _ in range(n):
        v, chosen = _fits_nowhere(a, q, count, mask), -1
        if v < 0:
            v, chosen = _pick(a, q, count, favourite, mask)
        if not _place(a, q, v, chosen, mask, end):
            return False
        for k in range(count):
            if q.ready[k] == v:
                q.ready[k] = q.ready[count - 1]
        count -= 1
        for i in range(d):
            if mask[v, i]:
                begin = append_start(batch_ready_time(a, v, i, mask[v, i], mask, end), q.free[i])
                if begin == np.inf:
                    return False
                start[v, i] = begin
                end[v, i] = begin + a.time[v, i, bit_count(mask[v, i])]
                q.free[i] = end[v, i]
                q.last[i] = v
        for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[e]
            waiting[w] -= 1
            if waiting[w] == 0:
                count = _add(a, q, w, near, mask, end, count)
    return True
