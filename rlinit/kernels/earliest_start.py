"""Compiled earliest-time-first scheduling, with devices that wait for favourite children."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rlinit.kernels.list_scheduling import APPEND, PlacementArrays, arrival, count_bits, split_op, take_blocks
from rlinit.stages import FloatArray, IntArray

__all__ = ["schedule_earliest_start"]


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _may_go(a: PlacementArrays, v: int, i: int, decided: NDArray[np.bool_], mask: IntArray, room: FloatArray) -> bool:
    """Say whether all shards of v may still go to device i, where its group is if that is decided."""
    leader, s = a.group[v], a.time.shape[2] - 1
    if decided[leader]:
        return bool(count_bits(mask[leader, i]) == s)
    return bool(a.held_weight[leader] + s * a.held_shard[leader] <= room[i])


@njit(cache=True, nogil=True)
def _pick_awake(
    i: int,
    favourite: int,
    free: FloatArray,
    ready_at: FloatArray,
    urgent_at: FloatArray,
    ready: IntArray,
    num_ready: int,
    a: PlacementArrays,
    rank: IntArray,
    decided: NDArray[np.bool_],
    mask: IntArray,
    room: FloatArray,
) -> tuple[int, float]:
    """Return what a device that waits for `favourite` runs next and when: that, or an urgent op before it."""
    best, at = favourite, max(free[i], ready_at[favourite, i])
    if at <= free[i]:
        return best, at
    for k in range(num_ready):
        v = ready[k]
        begin = max(free[i], urgent_at[v])
        if v == favourite or begin > at or ready_at[v, i] == np.inf:
            continue
        sooner = begin < at or (best != favourite and rank[v] < rank[best])
        if sooner and _may_go(a, v, i, decided, mask, room):
            best, at = v, begin
    return best, at


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

    Ties go to the earlier end, then to the earlier op in `order`. All shards of an op go to one device. An op that no
    device takes whole (any more) is split as soon as it is ready, so as to end first; `near` does not bind it then.

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
    Of each device one heap holds the ops whose data arrive after it is free, by arrival, and one the others, by order:
    O(n d log n) without favourites, and a pass over the ready ops for each step of a waiting device with them.
    """
    n, d, s = len(a.tensor), len(a.capacity), a.time.shape[2] - 1
    full = (1 << s) - 1
    rank = np.empty(n, np.int64)
    for k in range(n):
        rank[order[k]] = k
    late_key, late = np.empty((d, n)), np.empty((d, n), np.int64)
    soon_key, soon = np.empty((d, n)), np.empty((d, n), np.int64)
    num_late, num_soon = np.zeros(d, np.int64), np.zeros(d, np.int64)
    free, room = np.zeros(d), a.capacity.copy()
    last = np.full(d, -1, np.int64)
    decided, done = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    waiting = a.pred_indptr[1:] - a.pred_indptr[:-1]
    ready_at, urgent_at = np.full((n, d), np.inf), np.zeros(n)
    options = np.zeros(n, np.int64)
    ready, slot, num_ready = np.empty(n, np.int64), np.full(n, -1, np.int64), 0
    fresh, num_fresh = np.empty(n, np.int64), 0
    forced, num_forced = np.empty(n, np.int64), 0
    count, nothing, none = np.zeros(d, np.int64), np.zeros((1, 1)), np.zeros(d, np.int64)
    for k in range(n - 1, -1, -1):
        if waiting[order[k]] == 0:
            fresh[num_fresh] = order[k]
            num_fresh += 1
    left = n
    while left > 0:
        while num_fresh > 0:
            num_fresh -= 1
            v = fresh[num_fresh]
            slot[v] = num_ready
            ready[num_ready] = v
            num_ready += 1
            for i in range(d):
                if near[v, i] and a.allowed[a.group[v], i, s] and _may_go(a, v, i, decided, mask, room):
                    at = arrival(a, v, i, full, mask, end)
                    if at < np.inf:
                        ready_at[v, i] = at
                        urgent_at[v] = max(urgent_at[v], at)
                        _push(late_key[i], late[i], num_late[i], at, rank[v])
                        num_late[i] += 1
                        options[v] += 1
            if options[v] == 0:
                forced[num_forced] = v
                num_forced += 1
        best, best_i, best_at, best_end = -1, -1, np.inf, np.inf
        if num_forced > 0:
            num_forced -= 1
            best = forced[num_forced]
        else:
            for i in range(d):
                # Bring the heaps of the device up to date: nothing done, unfitting, or late that is not late any more.
                while num_late[i] > 0:
                    v = order[late[i, 0]]
                    fits = not done[v] and _may_go(a, v, i, decided, mask, room)
                    if fits and late_key[i, 0] > free[i]:
                        break
                    _pop(late_key[i], late[i], num_late[i])
                    num_late[i] -= 1
                    if fits:
                        _push(soon_key[i], soon[i], num_soon[i], 0.0, rank[v])
                        num_soon[i] += 1
                    elif not done[v]:
                        ready_at[v, i] = np.inf
                        options[v] -= 1
                        if options[v] == 0:
                            forced[num_forced] = v
                            num_forced += 1
                while num_soon[i] > 0:
                    v = order[soon[i, 0]]
                    if not done[v] and _may_go(a, v, i, decided, mask, room):
                        break
                    _pop(soon_key[i], soon[i], num_soon[i])
                    num_soon[i] -= 1
                    if not done[v]:
                        ready_at[v, i] = np.inf
                        options[v] -= 1
                        if options[v] == 0:
                            forced[num_forced] = v
                            num_forced += 1
                if num_soon[i] > 0:
                    v, at = order[soon[i, 0]], free[i]
                elif num_late[i] > 0:
                    v, at = order[late[i, 0]], late_key[i, 0]
                else:
                    continue
                child = favourite[last[i]] if last[i] >= 0 else -1
                if child >= 0 and slot[child] >= 0 and not done[child] and ready_at[child, i] < np.inf:
                    here = max(free[i], ready_at[child, i])
                    first = _may_go(a, child, i, decided, mask, room)
                    for j in range(d):
                        if max(free[j], ready_at[child, j]) < here:
                            first = False
                    if first:
                        v, at = _pick_awake(
                            i, child, free, ready_at, urgent_at, ready, num_ready, a, rank, decided, mask, room
                        )
                finish = at + a.time[v, i, s]
                if at < best_at or (
                    at == best_at and (finish < best_end or (finish == best_end and rank[v] < rank[best]))
                ):
                    best, best_i, best_at, best_end = v, i, at, finish
            if num_forced > 0:
                continue
            if best < 0:
                return False
        v = best
        leader = a.group[v]
        if decided[leader]:
            for i in range(d):
                mask[v, i] = mask[leader, i]
        else:
            if best_i >= 0:
                count[:] = 0
                count[best_i] = s
            elif not split_op(a, v, APPEND, mask, end, room, free, none, nothing, nothing, nothing, count):
                return False
            take_blocks(a, v, count, mask, room)
            decided[leader] = True
        for i in range(d):
            if mask[v, i]:
                begin = max(free[i], arrival(a, v, i, mask[v, i], mask, end))
                if begin == np.inf:
                    return False
                start[v, i] = begin
                end[v, i] = begin + a.time[v, i, count_bits(mask[v, i])]
                free[i] = end[v, i]
                last[i] = v
        done[v] = True
        left -= 1
        num_ready -= 1
        moved = ready[num_ready]
        ready[slot[v]] = moved
        slot[moved] = slot[v]
        slot[v] = -1
        for e in range(a.succ_indptr[v + 1] - 1, a.succ_indptr[v] - 1, -1):
            w = a.succ[e]
            waiting[w] -= 1
            if waiting[w] == 0:
                fresh[num_fresh] = w
                num_fresh += 1
    return True
