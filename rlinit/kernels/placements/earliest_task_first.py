"""Compiled earliest-time-first scheduling, with devices that wait for favourite children."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.list_scheduling import APPEND, PlacementArrays, split_op, take_blocks
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count, hot_kernel


@hot_kernel
def _push(keys: FloatArray, items: IntArray, size: int, key: float, item: int) -> None:
    """Add an entry to a binary heap of `size`, smallest (key, item) first."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@hot_kernel
def _pop(keys: FloatArray, items: IntArray, size: int) -> None:
    """Remove the first entry of a binary heap of `size`."""
    last = size - 1
    key, item = keys[last], items[last]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (keys[other] < keys[child] or (keys[other] == keys[child] and items[other] < items[child])):
            child = other
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[at], items[at] = keys[child], items[child]
        at = child
    if last > 0:
        keys[at], items[at] = key, item


class _Queue(NamedTuple):
    """Ready ops and devices while scheduling; n ops, d devices.

    Of each device one heap (`late`, by arrival) holds the ops whose data arrive after it is free, and one (`soon`, by
    `rank`) the others; entries are ranks, and those of ops that were done or lost the device elsewhere go when they
    surface. `ready_at` (n, d) is when all inputs of a ready op are on a device, ``inf`` where it cannot go; `urgent_at`
    (n,) the latest of them, `options` (n,) how many there are. `ready` lists the ready ops, at `slot` each; `forced`
    those that no device takes whole. `size` (2,) counts these two.
    """

    order: IntArray
    rank: IntArray
    near: NDArray[np.bool_]
    late_key: FloatArray
    late: IntArray
    num_late: IntArray
    soon_key: FloatArray
    soon: IntArray
    num_soon: IntArray
    free: FloatArray
    room: FloatArray
    last: IntArray
    decided: NDArray[np.bool_]
    done: NDArray[np.bool_]
    ready_at: FloatArray
    urgent_at: FloatArray
    options: IntArray
    ready: IntArray
    slot: IntArray
    forced: IntArray
    size: IntArray


_READY, _FORCED = 0, 1


@njit(cache=True, nogil=True)
def _new_queue(a: PlacementArrays, order: IntArray, near: NDArray[np.bool_]) -> _Queue:
    """Return an empty queue."""
    n, d = len(a.tensor), len(a.capacity)
    rank = np.empty(n, np.int64)
    for k in range(n):
        rank[order[k]] = k
    return _Queue(
        order,
        rank,
        near,
        np.empty((d, n)),
        np.empty((d, n), np.int64),
        np.zeros(d, np.int64),
        np.empty((d, n)),
        np.empty((d, n), np.int64),
        np.zeros(d, np.int64),
        np.zeros(d),
        a.capacity.copy(),
        np.full(d, -1, np.int64),
        np.zeros(n, np.bool_),
        np.zeros(n, np.bool_),
        np.full((n, d), np.inf),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.empty(n, np.int64),
        np.full(n, -1, np.int64),
        np.empty(n, np.int64),
        np.zeros(2, np.int64),
    )


@hot_kernel
def _may_go(a: PlacementArrays, q: _Queue, v: int, i: int, mask: IntArray) -> bool:
    """Say whether all shards of v may still go to device i, where its group is if that is decided."""
    leader, s = a.group[v], a.time.shape[2] - 1
    if q.decided[leader]:
        return bool(bit_count(mask[leader, i]) == s)
    return bool(a.held_weight[leader] + s * a.held_shard[leader] <= q.room[i])


@hot_kernel
def _add(a: PlacementArrays, q: _Queue, v: int, mask: IntArray, end: FloatArray) -> None:
    """Enter an op whose predecessors are all scheduled."""
    s = a.time.shape[2] - 1
    q.slot[v] = q.size[_READY]
    q.ready[q.size[_READY]] = v
    q.size[_READY] += 1
    for i in range(len(a.capacity)):
        if q.near[v, i] and a.allowed[a.group[v], i, s] and _may_go(a, q, v, i, mask):
            at = batch_ready_time(a, v, i, (1 << s) - 1, mask, end)
            if at < np.inf:
                q.ready_at[v, i] = at
                q.urgent_at[v] = max(q.urgent_at[v], at)
                _push(q.late_key[i], q.late[i], q.num_late[i], at, q.rank[v])
                q.num_late[i] += 1
                q.options[v] += 1
    if q.options[v] == 0:
        q.forced[q.size[_FORCED]] = v
        q.size[_FORCED] += 1


@hot_kernel
def _strike(q: _Queue, v: int, i: int) -> None:
    """Note that a device no longer takes an op whole."""
    q.ready_at[v, i] = np.inf
    q.options[v] -= 1
    if q.options[v] == 0:
        q.forced[q.size[_FORCED]] = v
        q.size[_FORCED] += 1


@hot_kernel
def _first(a: PlacementArrays, q: _Queue, i: int, mask: IntArray) -> tuple[int, float]:
    """Return the op that can start first on device i, and when; -1 if there is none."""
    while q.num_late[i] > 0:
        v = q.order[q.late[i, 0]]
        fits = not q.done[v] and _may_go(a, q, v, i, mask)
        if fits and q.late_key[i, 0] > q.free[i]:
            break
        _pop(q.late_key[i], q.late[i], q.num_late[i])
        q.num_late[i] -= 1
        if fits:
            _push(q.soon_key[i], q.soon[i], q.num_soon[i], 0.0, q.rank[v])
            q.num_soon[i] += 1
        elif not q.done[v]:
            _strike(q, v, i)
    while q.num_soon[i] > 0:
        v = q.order[q.soon[i, 0]]
        if not q.done[v] and _may_go(a, q, v, i, mask):
            return v, q.free[i]
        _pop(q.soon_key[i], q.soon[i], q.num_soon[i])
        q.num_soon[i] -= 1
        if not q.done[v]:
            _strike(q, v, i)
    if q.num_late[i] > 0:
        return q.order[q.late[i, 0]], q.late_key[i, 0]
    return -1, np.inf


@hot_kernel
def _waits_for(a: PlacementArrays, q: _Queue, i: int, child: int, mask: IntArray) -> bool:
    """Say whether `child` is ready and can start on device i no later than elsewhere."""
    if child < 0 or q.slot[child] < 0 or q.ready_at[child, i] == np.inf or not _may_go(a, q, child, i, mask):
        return False
    soonest = np.inf
    for j in range(len(a.capacity)):
        soonest = min(soonest, max(q.free[j], q.ready_at[child, j]))
    return bool(max(q.free[i], q.ready_at[child, i]) <= soonest)


@hot_kernel
def _first_awake(a: PlacementArrays, q: _Queue, i: int, child: int, mask: IntArray) -> tuple[int, float]:
    """Return what device i runs next, and when, if it waits for `child`: that, or an urgent op that starts before."""
    best, at = child, max(q.free[i], q.ready_at[child, i])
    if at <= q.free[i]:
        return best, at
    for k in range(q.size[_READY]):
        v = q.ready[k]
        begin = max(q.free[i], q.urgent_at[v])
        if v == child or begin > at or q.ready_at[v, i] == np.inf:
            continue
        sooner = begin < at or (best != child and q.rank[v] < q.rank[best])
        if sooner and _may_go(a, q, v, i, mask):
            best, at = v, begin
    return best, at


@hot_kernel
def _pick(a: PlacementArrays, q: _Queue, favourite: IntArray, mask: IntArray) -> tuple[int, int]:
    """Return the op and device to start first; -1, -1 if there is none."""
    s = a.time.shape[2] - 1
    best, best_i, best_at, best_end = -1, -1, np.inf, np.inf
    for i in range(len(a.capacity)):
        v, at = _first(a, q, i, mask)
        if v < 0:
            continue
        child = favourite[q.last[i]] if q.last[i] >= 0 else -1
        if _waits_for(a, q, i, child, mask):
            v, at = _first_awake(a, q, i, child, mask)
        finish = at + a.time[v, i, s]
        if at < best_at or (at == best_at and (finish < best_end or (finish == best_end and q.rank[v] < q.rank[best]))):
            best, best_i, best_at, best_end = v, i, at, finish
    return best, best_i


@hot_kernel
def _leave(q: _Queue, v: int) -> None:
    """Take an op that is being scheduled out of the ready ones."""
    q.done[v] = True
    q.size[_READY] -= 1
    moved = q.ready[q.size[_READY]]
    q.ready[q.slot[v]] = moved
    q.slot[moved] = q.slot[v]
    q.slot[v] = -1


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
    shards of an op go to one device. An op that no device takes whole (any more) is split as soon as that is known, so
    as to end first; `near` does not bind it then.

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
    O(n d log n) without favourites; with them, a pass over the ready ops for each step of a waiting device.
    """
    n, d, s = len(a.tensor), len(a.capacity), a.time.shape[2] - 1
    q = _new_queue(a, order, near)
    waiting = a.pred_indptr[1:] - a.pred_indptr[:-1]
    count, nothing, none = np.zeros(d, np.int64), np.zeros((1, 1)), np.zeros(d, np.int64)
    for v in order:
        if waiting[v] == 0:
            _add(a, q, v, mask, end)
    left = n
    while left > 0:
        v, chosen = -1, -1
        if q.size[_FORCED] == 0:
            v, chosen = _pick(a, q, favourite, mask)
        if q.size[_FORCED] > 0:  # Perhaps only since the devices were looked at.
            q.size[_FORCED] -= 1
            v, chosen = q.forced[q.size[_FORCED]], -1
        if v < 0:
            return False
        leader = a.group[v]
        if q.decided[leader]:
            for i in range(d):
                mask[v, i] = mask[leader, i]
        else:
            if chosen >= 0:
                count[:] = 0
                count[chosen] = s
            elif not split_op(a, v, APPEND, mask, end, q.room, q.free, none, nothing, nothing, nothing, count):
                return False
            take_blocks(a, v, count, mask, q.room)
            q.decided[leader] = True
        _leave(q, v)
        for i in range(d):
            if mask[v, i]:
                begin = append_start(batch_ready_time(a, v, i, mask[v, i], mask, end), q.free[i])
                if begin == np.inf:
                    return False
                start[v, i] = begin
                end[v, i] = begin + a.time[v, i, bit_count(mask[v, i])]
                q.free[i] = end[v, i]
                q.last[i] = v
        left -= 1
        for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[e]
            waiting[w] -= 1
            if waiting[w] == 0:
                _add(a, q, w, mask, end)
    return True
