"""Compiled list scheduling of placements: split an op over devices, find an idle slot, earliest time first.

Everything is planned as if transfers ran in parallel. A *mask* holds, as bits, which shards of an op a device runs. A
split gives device 0 the first shards, device 1 the next, and so on: one order for all ops, so that equal splits need no
transfers. Ops of one group take the mask of the member that is placed first, which takes the memory of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import (
    SLOT_BLOCK,
    append_start,
    batch_ready_time,
    bit_count,
    insert_batch,
    insert_start,
    ready_time,
)

DURATION, APPEND, INSERT = 0, 1, 2
"""What a split minimises: its longest batch; when it ends, appended; when it ends, with insertion into idle slots."""


class PlacementArrays(NamedTuple):
    """A placement problem as kernels take it; n ops, d devices, s shards.

    `held_weight` and `held_shard` (n,) are the bytes of a whole group, at its member of smallest index; `allowed`
    (n, d, s + 1) says at the same place whether every member may run as a batch of c shards. `lost` (n, d, s + 1) is
    how many seconds the other members of an op's group take more in such a batch than on their best devices.
    """

    time: FloatArray
    tensor: FloatArray
    held_weight: FloatArray
    held_shard: FloatArray
    capacity: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    group: IntArray
    allowed: NDArray[np.bool_]
    lost: FloatArray


class StorageArrays(NamedTuple):
    """Storages of tensors as a schedule counts them that is built in one order; T of them.

    `size` (T,) bytes; `reads` (T,) ops that read one, and one more where it stays to the end;
    `read_indptr`, `read` CSR op -> what it reads; `made_indptr`, `made` CSR op -> what it makes.
    """

    size: FloatArray
    reads: IntArray
    read_indptr: IntArray
    read: IntArray
    made_indptr: IntArray
    made: IntArray


NO_STORAGES = StorageArrays(np.zeros(0), *(np.zeros(size, np.int64) for size in (0, 1, 0, 1, 0)))
"""Where weights alone count."""


@njit(cache=True, nogil=True)
def split_op(
    a: PlacementArrays,
    v: int,
    rule: int,
    mask: IntArray,
    end: FloatArray,
    room: FloatArray,
    free: FloatArray,
    size: IntArray,
    starts: FloatArray,
    ends: FloatArray,
    widest: FloatArray,
    count: IntArray,
) -> bool:
    """Write into `count` (d,) the split of v that `rule` likes best, of those the least seconds in total.

    A batch also costs what the other members of its group lose on the device.

    Least over devices i = 0, 1, ... and blocks of c shards after the first k - c: ``F[i, k] = min over c of
    max(F[i - 1, k - c], cost of the block on i)``; then the same for the sum of seconds, over blocks that cost no more
    than the optimum. False where nothing fits.

    Parameters
    ----------
    a
        The problem.
    v
        The op, first of its group.
    rule
        DURATION, APPEND or INSERT.
    mask, end
        (n, d) shards of each batch as bits, and when it ends; NaN where there is none.
    room
        (d,) bytes that are free.
    free
        (d,) when the last batch of each device ends.
    size, starts, ends, widest
        Room for the splits that are compared.
    count
        (d,) to be filled: shards of v on each device.
    """
    d, s, leader = len(a.capacity), a.time.shape[2] - 1, a.group[v]
    cost = np.full((d, s + 1, s + 1), np.inf)
    for i in range(d):
        for c in range(1, s + 1):
            need = a.held_weight[leader] + c * a.held_shard[leader]
            if not a.allowed[leader, i, c] or need > room[i]:
                continue
            length = a.time[v, i, c]
            for low in range(s - c + 1):
                ready = batch_ready_time(a, v, i, ((1 << c) - 1) << low, mask, end)
                if ready == np.inf:
                    continue
                if rule == DURATION:
                    cost[i, low, c] = length
                elif rule == APPEND:
                    cost[i, low, c] = append_start(ready, free[i]) + length
                else:
                    cost[i, low, c] = insert_start(ready, length, size[i], starts[i], ends[i], widest[i])[1] + length
                cost[i, low, c] += a.lost[v, i, c]
    worst = np.full((d + 1, s + 1), np.inf)
    worst[0, 0] = 0.0
    for i in range(d):
        for k in range(s + 1):
            least = worst[i, k]
            for c in range(1, k + 1):
                least = min(least, max(worst[i, k - c], cost[i, k - c, c]))
            worst[i + 1, k] = least
    limit = worst[d, s]
    if limit == np.inf:
        return False
    total = np.full((d + 1, s + 1), np.inf)
    total[0, 0] = 0.0
    taken = np.zeros((d + 1, s + 1), np.int64)
    for i in range(d):
        for k in range(s + 1):
            total[i + 1, k] = total[i, k]
            for c in range(1, k + 1):
                if cost[i, k - c, c] <= limit and total[i, k - c] + a.time[v, i, c] < total[i + 1, k]:
                    total[i + 1, k] = total[i, k - c] + a.time[v, i, c]
                    taken[i + 1, k] = c
    k = s
    for i in range(d, 0, -1):
        count[i - 1] = taken[i, k]
        k -= taken[i, k]
    return True


@njit(cache=True, nogil=True)
def take_blocks(a: PlacementArrays, v: int, count: IntArray, mask: IntArray, room: FloatArray) -> None:
    """Give v, the first of its group, the blocks `count` and reserve memory for the group; others read its mask.

    Parameters
    ----------
    a
        The problem.
    v
        The op, first of its group.
    count
        (d,) shards on each device.
    mask
        (n, d) shards of each batch as bits, changed in place.
    room
        (d,) bytes that are free, changed in place.
    """
    leader, low = a.group[v], 0
    for i in range(len(count)):
        if count[i] > 0:
            bits = ((1 << count[i]) - 1) << low
            mask[v, i] = bits
            mask[leader, i] = bits
            room[i] -= a.held_weight[leader] + count[i] * a.held_shard[leader]
            low += count[i]


@njit(cache=True, nogil=True)
def list_schedule(
    a: PlacementArrays, order: IntArray, rule: int, mask: IntArray, start: FloatArray, end: FloatArray
) -> bool:
    """Place the ops in a topological order, each split by `rule`; False where an op fits nowhere.

    Parameters
    ----------
    a
        The problem.
    order
        (n,) topological order.
    rule
        ``DURATION`` (scheduled as for ``APPEND``), ``APPEND`` or ``INSERT``.
    mask, start, end
        (n, d) results: shards of each batch, and when it runs. `mask` is zero on entry.
    """
    n, d = len(a.tensor), len(a.capacity)
    slots = n if rule == INSERT else 1
    starts, ends = np.empty((d, slots)), np.empty((d, slots))
    widest = np.zeros((d, slots // SLOT_BLOCK + 1))
    size, free, room = np.zeros(d, np.int64), np.zeros(d), a.capacity.copy()
    count = np.zeros(d, np.int64)
    decided = np.zeros(n, np.bool_)
    # The mask of a leader is set before the leader itself is scheduled: it must not be read as a finished op's, and is
    # not, since only predecessors are read and those are scheduled.
    for v in order:
        leader = a.group[v]
        if decided[leader]:
            for i in range(d):
                mask[v, i] = mask[leader, i]
        else:
            if not split_op(a, v, rule, mask, end, room, free, size, starts, ends, widest, count):
                return False
            take_blocks(a, v, count, mask, room)
            decided[leader] = True
        for i in range(d):
            if mask[v, i]:
                ready = batch_ready_time(a, v, i, mask[v, i], mask, end)
                if ready == np.inf:
                    return False
                length = a.time[v, i, bit_count(mask[v, i])]
                if rule == INSERT:
                    at, begin = insert_start(ready, length, size[i], starts[i], ends[i], widest[i])
                    insert_batch(at, begin, begin + length, size[i], starts[i], ends[i], widest[i])
                    size[i] += 1
                else:
                    begin = append_start(ready, free[i])
                    free[i] = begin + length
                start[v, i] = begin
                end[v, i] = begin + length
    return True


@njit(cache=True, nogil=True)
def earliest_finish(
    a: PlacementArrays, storages: StorageArrays, sequence: IntArray, device: IntArray, end: FloatArray
) -> bool:
    """Give each whole op of a sequence the device where it ends first, appended to what is there.

    The first of a group goes where that and the seconds that the other members lose there are least together. A device
    has room for the weights that it was given and for the most bytes of storages that it has held at once, each from
    the op of the sequence that makes it, or that reads it on another device, to its last reader.

    Parameters
    ----------
    a
        The problem; `tensor` holds the bytes of all shards.
    storages
        What ops read and make; without ops and storages, where only weights count.
    sequence
        (n,) topological order.
    device, end
        (n,) out; `device` holds -1 where an op fits nowhere, and the result is then False.
    """
    d, s, counted = len(a.capacity), a.time.shape[2] - 1, len(storages.read_indptr) - 1
    free, room = np.zeros(d), a.capacity.copy()
    here, reads = np.zeros((len(storages.size), d), np.bool_), storages.reads.copy()
    live, most, more = np.zeros(d), np.zeros(d), np.zeros(d)
    device[:] = -1
    for v in sequence:
        leader = a.group[v]
        need = a.held_weight[leader] + s * a.held_shard[leader] if device[leader] < 0 else 0.0
        best, best_end, least = -1, np.inf, np.inf
        for i in range(d):
            if device[leader] >= 0 and device[leader] != i:
                continue
            more[i] = live[i]
            if v < counted:
                for at in range(storages.made_indptr[v], storages.made_indptr[v + 1]):
                    more[i] += storages.size[storages.made[at]]
                for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
                    if not here[storages.read[at], i]:
                        more[i] += storages.size[storages.read[at]]
            if need + max(most[i], more[i]) > room[i]:
                continue
            over = append_start(ready_time(a, v, i, device, end), free[i]) + a.time[v, i, s]
            if over + a.lost[v, i, s] < least:
                best, best_end, least = i, over, over + a.lost[v, i, s]
        if best < 0:
            return False
        room[best] -= need
        device[leader] = best
        device[v], end[v], free[best] = best, best_end, best_end
        live[best], most[best] = more[best], max(most[best], more[best])
        if v >= counted:
            continue
        for at in range(storages.made_indptr[v], storages.made_indptr[v + 1]):
            here[storages.made[at], best] = True
        for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
            here[storages.read[at], best] = True
        for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
            read = storages.read[at]
            reads[read] -= 1
            if reads[read] == 0:
                for i in range(d):
                    if here[read, i]:
                        live[i] -= storages.size[read]
    return True


@njit(cache=True, nogil=True)
def depth_first(storages: StorageArrays, succ_indptr: IntArray, succ: IntArray, pred_indptr: IntArray) -> IntArray:
    """Return (n,) the topological order that goes on with what became ready last, least growth of live bytes first.

    In trees and branches it holds one way from the root at a time, where a breadth-first order holds a level.

    Parameters
    ----------
    storages
        What ops read and make.
    succ_indptr, succ, pred_indptr
        The precedence graph.
    """
    n, counted = len(pred_indptr) - 1, len(storages.read_indptr) - 1
    waiting, reads = np.diff(pred_indptr), storages.reads.copy()
    growth = np.zeros(n)
    stack, order = np.empty(n, np.int64), np.empty(n, np.int64)
    size = 0
    for v in range(n - 1, -1, -1):
        if waiting[v] == 0:
            stack[size] = v
            size += 1
    for k in range(n):
        size -= 1
        v = stack[size]
        order[k] = v
        if v < counted:
            for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
                reads[storages.read[at]] -= 1
        first = size
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[e]
            waiting[w] -= 1
            if waiting[w] > 0:
                continue
            if w < counted:
                for at in range(storages.made_indptr[w], storages.made_indptr[w + 1]):
                    growth[w] += storages.size[storages.made[at]]
                for at in range(storages.read_indptr[w], storages.read_indptr[w + 1]):
                    if reads[storages.read[at]] == 1:
                        growth[w] -= storages.size[storages.read[at]]
            stack[size] = w
            size += 1
        if size - first > 1:
            ready = stack[first:size].copy()
            stack[first:size] = ready[np.argsort(-growth[ready], kind="mergesort")]
    return order


@njit(cache=True, nogil=True)
def fill_devices(a: PlacementArrays, order: IntArray, quota: FloatArray, mask: IntArray) -> bool:
    """Fill one device after another up to its quota, in a topological order; False where an op fits nowhere.

    An op goes whole to the first device from the current one on that may run it and whose quota takes it, else to the
    first whose memory does, else (no device takes all its shards) it is split by ``DURATION``. The current device moves
    on once its quota refuses an op.

    Parameters
    ----------
    a
        The problem.
    order
        (n,) topological order.
    quota
        (d,) bytes.
    mask
        (n, d) result, zero on entry.
    """
    n, d, s = len(a.tensor), len(a.capacity), a.time.shape[2] - 1
    room, left, count = a.capacity.copy(), quota.copy(), np.zeros(d, np.int64)
    decided = np.zeros(n, np.bool_)
    nothing, none = np.zeros((1, 1)), np.zeros(d, np.int64)
    end = np.zeros((n, d))
    current = 0
    for v in order:
        leader = a.group[v]
        if decided[leader]:
            for i in range(d):
                mask[v, i] = mask[leader, i]
                if mask[v, i] and batch_ready_time(a, v, i, mask[v, i], mask, end) == np.inf:
                    return False
            continue
        need = a.held_weight[leader] + s * a.held_shard[leader]
        while current < d - 1 and a.allowed[leader, current, s] and need > left[current]:
            current += 1
        target = -1
        for strict in (True, False):
            for i in range(current if strict else 0, d):
                fits = need <= room[i] and (need <= left[i] or not strict)
                if target >= 0 or not fits or not a.allowed[leader, i, s]:
                    continue
                if batch_ready_time(a, v, i, (1 << s) - 1, mask, end) < np.inf:
                    target = i
        if target >= 0:
            count[:] = 0
            count[target] = s
        elif not split_op(a, v, DURATION, mask, end, room, room, none, nothing, nothing, nothing, count):
            return False
        take_blocks(a, v, count, mask, room)
        decided[leader] = True
        for i in range(d):
            if count[i] > 0:
                left[i] -= a.held_weight[leader] + count[i] * a.held_shard[leader]
    return True


@njit(cache=True, nogil=True)
def upward_rank(
    order: IntArray, work: FloatArray, transfer: FloatArray, succ_indptr: IntArray, succ: IntArray
) -> FloatArray:
    """Return (n,) ``rank(v) = work(v) + max over w of (transfer(v) + rank(w))`` (HEFT, eq. 8 and 9).

    Parameters
    ----------
    order
        (n,) a topological order.
    work
        (n,) seconds of each op.
    transfer
        (n,) seconds to move each op's output.
    succ_indptr, succ
        Successors of op v: ``succ[succ_indptr[v]:succ_indptr[v + 1]]``.
    """
    rank = np.zeros(len(work))
    for k in range(len(order) - 1, -1, -1):
        v = order[k]
        longest = 0.0
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            longest = max(longest, transfer[v] + rank[succ[e]])
        rank[v] = work[v] + longest
    return rank
