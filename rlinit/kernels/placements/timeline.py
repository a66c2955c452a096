"""Compiled list scheduling of placements: who starts when, given devices and a sequence."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["BLOCKING", "EXCLUSIVE", "PARALLEL", "bit_count", "earliest_finish", "list_ops", "run_batches"]

PARALLEL, EXCLUSIVE, BLOCKING = 0, 1, 2


@njit(cache=True, nogil=True, inline="always")
def bit_count(mask: int) -> int:
    """Return the number of bits set in a non-negative integer."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True, nogil=True)
def list_ops(
    sequence: IntArray,
    device: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    end: FloatArray,
    free: FloatArray,
) -> float:
    """Schedule ops (not batches) in sequence, transfers in parallel; return the makespan.

    Parameters
    ----------
    sequence
        (n,) ops in a topological order.
    device
        (n,) device of each op.
    time_s
        (n, d) seconds of an op on a device.
    end, free
        (n,) and (d,) work arrays: when each op ends, and when each device is free.
    """
    free[:] = 0.0
    makespan = 0.0
    for v in sequence:
        i = device[v]
        start = free[i]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            j = device[u]
            ready = end[u]
            if j != i:
                ready += delay_s[j, i] + tensor_bytes[u] * s_per_byte[j, i]
            if ready > start:
                start = ready
        start += time_s[v, i]
        end[v] = start
        free[i] = start
        if start > makespan:
            makespan = start
    return makespan


@njit(cache=True, nogil=True)
def earliest_finish(
    sequence: IntArray,
    group: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    need_bytes: FloatArray,
    capacity: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    device: IntArray,
    end: FloatArray,
) -> bool:
    """Give each op of a sequence the device where it ends first, appended to what is there; transfers in parallel.

    Parameters
    ----------
    need_bytes
        (n,) memory of an op, or, at the index of its group, of the whole group.
    device, end
        (n,) out; `device` holds -1 where an op fits nowhere, and the result is then False.
    """
    d = len(capacity)
    free, room = np.zeros(d), capacity.copy()
    device[:] = -1
    for v in sequence:
        leader = group[v]
        best, at_best = -1, np.inf
        for i in range(d):
            if device[leader] >= 0:
                if leader != v and device[leader] != i:
                    continue
            elif need_bytes[leader] > room[i]:
                continue
            start = free[i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[q]
                ready = end[u]
                if device[u] != i:
                    ready += delay_s[device[u], i] + tensor_bytes[u] * s_per_byte[device[u], i]
                if ready > start:
                    start = ready
            if start + time_s[v, i] < at_best:
                best, at_best = i, start + time_s[v, i]
        if best < 0:
            return False
        if device[leader] < 0:
            room[best] -= need_bytes[leader]
            device[leader] = best
        device[v], end[v], free[best] = best, at_best, at_best
    return True


@njit(cache=True, nogil=True)
def _needed(v: int, i: int, j: int, mask: IntArray, succ_indptr: IntArray, succ: IntArray) -> int:
    """Return the shards of batch (v, i) that batches on device j use."""
    wanted = np.int64(0)
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        wanted |= mask[succ[q], j]
    shards: int = wanted & mask[v, i]
    return shards


@njit(cache=True, nogil=True)
def _receive(
    u: int,
    j: int,
    i: int,
    ready: float,
    shards: int,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
) -> float:
    arrived: float = ready + (delay_s[j, i] + shards * tensor_bytes[u] * s_per_byte[j, i])
    return arrived


@njit(cache=True, nogil=True)
def run_batches(
    mode: int,
    sequence: IntArray,
    mask: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    start: FloatArray,
    arrival: FloatArray,
    sent: FloatArray,
) -> float:
    """Schedule batches in sequence, each as early as its data and its device allow; return the makespan.

    Parameters
    ----------
    mode
        PARALLEL, EXCLUSIVE or BLOCKING.
    sequence
        (b,) batches op * d + device, each after those it depends on; batches without shards are passed over.
    mask
        (n, d) shards of each batch as bits.
    time_s
        (n, d, s + 1) seconds of a batch of c shards.
    start
        (n, d) out: start of each batch; NaN where there is none.
    arrival, sent
        (n, d, d) out, for other modes than PARALLEL: when the transfer of batch (v, i) to device j ends and starts;
        NaN where there is none. (0, 0, 0) arrays for PARALLEL.
    """
    n, d = mask.shape
    free = np.zeros(d)
    link = np.zeros((d, d))
    end = np.full((n, d), np.nan)
    start[:] = np.nan
    arrival[:] = np.nan
    sent[:] = np.nan
    makespan = 0.0
    for code in sequence:
        v, i = code // d, code % d
        held = mask[v, i]
        if held == 0:
            continue
        if mode == BLOCKING:
            _fetch(
                v,
                i,
                held,
                mask,
                tensor_bytes,
                s_per_byte,
                delay_s,
                pred_indptr,
                pred,
                succ_indptr,
                succ,
                end,
                free,
                arrival,
                sent,
            )
        ready = free[i]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            for j in range(d):
                shared = mask[u, j] & held
                if shared == 0:
                    continue
                if j == i:
                    at = end[u, i]
                elif mode == PARALLEL:
                    at = _receive(u, j, i, end[u, j], bit_count(shared), tensor_bytes, s_per_byte, delay_s)
                else:
                    at = arrival[u, j, i]
                if at > ready or np.isnan(at):  # NaN: the data never comes, whatever else does
                    ready = at
        start[v, i] = ready
        over = ready + time_s[v, i, bit_count(held)]
        if np.isnan(over):
            return np.nan  # The sequence contradicts a dependency.
        end[v, i] = over
        free[i] = over
        if over > makespan:
            makespan = over
        if mode == EXCLUSIVE:
            for j in range(d):
                if j == i:
                    continue
                wanted = _needed(v, i, j, mask, succ_indptr, succ)
                if wanted != 0:
                    sent[v, i, j] = max(link[i, j], over)
                    link[i, j] = _receive(v, i, j, sent[v, i, j], bit_count(wanted), tensor_bytes, s_per_byte, delay_s)
                    arrival[v, i, j] = link[i, j]
    return makespan


@njit(cache=True, nogil=True)
def _fetch(
    v: int,
    i: int,
    held: int,
    mask: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    end: FloatArray,
    free: FloatArray,
    arrival: FloatArray,
    sent: FloatArray,
) -> None:
    """Receive what batch (v, i) needs and device i does not have, in the order in which it was made."""
    d = len(free)
    while True:
        first_u, first_j, first_end = -1, -1, np.inf
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            for j in range(d):
                if j == i or mask[u, j] & held == 0 or not np.isnan(arrival[u, j, i]):
                    continue
                if first_u < 0 or end[u, j] < first_end:
                    first_u, first_j, first_end = u, j, end[u, j]
        if first_u < 0:
            return
        shards = bit_count(_needed(first_u, first_j, i, mask, succ_indptr, succ))
        sent[first_u, first_j, i] = max(free[i], first_end)
        free[i] = _receive(first_u, first_j, i, sent[first_u, first_j, i], shards, tensor_bytes, s_per_byte, delay_s)
        arrival[first_u, first_j, i] = free[i]
