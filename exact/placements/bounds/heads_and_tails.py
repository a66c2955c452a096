"""Compiled earliest starts and least remaining times of the batches of a placement problem, and reachability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["device_heads", "device_tails", "reachability", "reachable_sums"]


@njit(cache=True, nogil=True)
def device_heads(
    order: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    least_s: FloatArray,
    floor_s: FloatArray,
    tensor_bytes: FloatArray,
    delay_s: FloatArray,
    s_per_byte: FloatArray,
) -> FloatArray:
    """Return (n, d) the earliest start of a batch of each op on each device, ``inf`` where it cannot run.

    A batch shares a shard with one batch of each predecessor, which is on some device, took at least `least_s` there
    and sends at least one shard: ``r[v, i] = max_u min_j r[u, j] + least_s[u, j] + transfer(u, j, i)``. Both ops of an
    edge within a group are on the same device. No start is before `floor_s` ((n,)).
    """
    n, d = least_s.shape
    head = np.zeros((n, d))
    for v in order:
        for i in range(d):
            if least_s[v, i] == np.inf:
                head[v, i] = np.inf
                continue
            start = floor_s[v]
            for e in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[e]
                ready = head[u, i] + least_s[u, i]
                if group[u] != group[v]:
                    for j in range(d):
                        if j != i and delay_s[j, i] < np.inf:
                            transfer = delay_s[j, i] + tensor_bytes[u] * s_per_byte[j, i]
                            ready = min(ready, head[u, j] + least_s[u, j] + transfer)
                start = max(start, ready)
            head[v, i] = start
    return head


@njit(cache=True, nogil=True)
def device_tails(
    order: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    group: IntArray,
    least_s: FloatArray,
    floor_s: FloatArray,
    tensor_bytes: FloatArray,
    delay_s: FloatArray,
    s_per_byte: FloatArray,
) -> FloatArray:
    """Return (n, d) the least time between the end of a batch of each op on each device and the makespan.

    ``q[v, i] = max_w min_j transfer(v, i, j) + least_s[w, j] + q[w, j]``, the mirror image of :func:`device_heads`.
    """
    n, d = least_s.shape
    tail = np.zeros((n, d))
    for v in order[::-1]:
        for i in range(d):
            if least_s[v, i] == np.inf:
                tail[v, i] = np.inf
                continue
            rest = floor_s[v]
            for e in range(succ_indptr[v], succ_indptr[v + 1]):
                w = succ[e]
                after = least_s[w, i] + tail[w, i]
                if group[w] != group[v]:
                    for j in range(d):
                        if j != i and delay_s[i, j] < np.inf:
                            transfer = delay_s[i, j] + tensor_bytes[v] * s_per_byte[i, j]
                            after = min(after, transfer + least_s[w, j] + tail[w, j])
                rest = max(rest, after)
            tail[v, i] = rest
    return tail


@njit(cache=True, nogil=True)
def reachability(order: IntArray, succ_indptr: IntArray, succ: IntArray) -> NDArray[np.bool_]:
    """Return (n, n) whether a path of at least one edge leads from row to column."""
    n = len(order)
    reach = np.zeros((n, n), np.bool_)
    for v in order[::-1]:
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[e]
            reach[v, w] = True
            for x in range(n):
                reach[v, x] |= reach[w, x]
    return reach


@njit(cache=True, nogil=True)
def reachable_sums(order: IntArray, pred_indptr: IntArray, pred: IntArray, weight: FloatArray) -> FloatArray:
    """Return (n,) for each op the sum of `weight` over the ops from which it can be reached, itself left out.

    With successors for `pred` and the order reversed, over those that it can reach. Takes (n + m) n / 64 word
    operations and n^2 / 8 bytes.
    """
    n = len(order)
    words = (n + 63) // 64
    known = np.zeros((n, words), np.uint64)
    total = np.zeros(n)
    place = np.empty(n, np.int64)
    for k in range(n):
        place[order[k]] = k
    for v in order:
        row = known[v]
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[e]
            for k in range((place[u] >> 6) + 1):
                row[k] |= known[u, k]
            row[place[u] >> 6] |= np.uint64(1) << np.uint64(place[u] & 63)
        amount = 0.0
        for k in range((place[v] >> 6) + 1):
            word = row[k]
            bit = 0
            while word != np.uint64(0):
                if word & np.uint64(1):
                    amount += weight[order[64 * k + bit]]
                word >>= np.uint64(1)
                bit += 1
        total[v] = amount
    return total
