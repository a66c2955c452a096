"""Compiled search for the devices of the ops of one segment, under multipliers of devices: depth first, order relaxed.

The *length* of a choice of devices is a lower bound on the makespan of any order: the longest path with transfers, and
for each device what starts no earlier than h and leaves at least q behind it, ``h + load + q``.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


@njit(cache=True, nogil=True)
def _remaining(
    time_s: FloatArray, comm_s: FloatArray, excess: FloatArray, succ_indptr: IntArray, succ: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (n, d) least time and least weighted time after an op, and the latter (m, d) by edge from its start."""
    n, d = time_s.shape
    tail, weighted = np.zeros((n, d)), np.zeros((n, d))
    step = np.zeros((len(succ), d))
    for v in range(n - 1, -1, -1):
        for i in range(d):
            for e in range(succ_indptr[v], succ_indptr[v + 1]):
                w = succ[e]
                shortest, cheapest = np.inf, np.inf
                for j in range(d):
                    if time_s[w, j] < np.inf:
                        reach = comm_s[v, i, j] + time_s[w, j]
                        shortest = min(shortest, reach + tail[w, j])
                        cheapest = min(cheapest, reach + excess[w, j] + weighted[w, j])
                step[e, i] = cheapest
                tail[v, i] = max(tail[v, i], shortest)
                weighted[v, i] = max(weighted[v, i], cheapest)
    return tail, weighted, step


@njit(cache=True, nogil=True)
def _with_intervals(
    length: float, v: int, i: int, head_v: float, time_s: FloatArray, head: FloatArray, tail: FloatArray, dev: IntArray
) -> float:
    """Return the larger of `length` and what intervals of device i prove, with op v as the last one placed."""
    load = time_s[v, i]
    if load <= 0.0:
        return length
    for u in range(v):
        if dev[u] == i:
            load += time_s[u, i]
    for a in range(v + 1):
        if a < v and (dev[a] != i or head[a] > head_v):
            continue
        first = head[a] if a < v else head_v
        for b in range(v + 1):
            if b < v and (dev[b] != i or tail[b, i] > tail[v, i]):
                continue
            last = tail[b, i]
            if first + load + last <= length:
                continue
            inside = time_s[v, i]
            for u in range(v):
                if dev[u] == i and head[u] >= first and tail[u, i] >= last:
                    inside += time_s[u, i]
            length = max(length, first + inside + last)
    return length


@njit(cache=True, nogil=True)
def _length(
    time_s: FloatArray,
    comm_s: FloatArray,
    succ_indptr: IntArray,
    succ: IntArray,
    head: FloatArray,
    dev: IntArray,
    behind: FloatArray,
) -> float:
    """Return the length of a choice of devices; `behind` is room for (n,) tails."""
    n, d = time_s.shape
    length = 0.0
    load = np.zeros(d)
    for v in range(n - 1, -1, -1):
        behind[v] = 0.0
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[e]
            behind[v] = max(behind[v], comm_s[v, dev[v], dev[w]] + time_s[w, dev[w]] + behind[w])
        load[dev[v]] += time_s[v, dev[v]]
        length = max(length, head[v] + time_s[v, dev[v]] + behind[v])
    for a in range(n):
        i = dev[a]
        for b in range(n):
            if dev[b] != i or head[a] + load[i] + behind[b] <= length:
                continue
            inside = 0.0
            for u in range(n):
                if dev[u] == i and head[u] >= head[a] and behind[u] >= behind[b]:
                    inside += time_s[u, i]
            if inside > 0.0:
                length = max(length, head[a] + inside + behind[b])
    return length


@njit(cache=True, nogil=True)
def cheapest_devices(
    time_s: FloatArray,
    comm_s: FloatArray,
    multiplier: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    leader: IntArray,
    cutoff: float,
    node_limit: int,
    best: IntArray,
) -> tuple[float, float, float, int]:
    """Minimise length plus multipliers over the devices of the ops of a segment.

    Parameters
    ----------
    time_s
        (n, d) seconds of ops in topological order, ``inf`` where one may not run.
    comm_s
        (n, d, d) seconds to move each op's output.
    multiplier
        (n, d) seconds, at least 0, that an op costs on a device besides its time.
    pred_indptr, pred, succ_indptr, succ
        The edges.
    leader
        (n,) first op of each op's group: they share a device.
    cutoff
        Only smaller sums are looked for.
    node_limit
        Most ops placed, over all partial choices.
    best
        (n,) set to the devices of the best choice found, if one is below the cutoff.

    Returns
    -------
    A lower bound (at most the cutoff), the sum of the best choice (or the cutoff), its length, and the ops placed.
    """
    n, d = time_s.shape
    excess = np.zeros((n, d))
    base = 0.0
    for v in range(n):
        least = np.inf
        for i in range(d):
            if time_s[v, i] < np.inf:
                least = min(least, multiplier[v, i])
        if least == np.inf:
            return cutoff, cutoff, np.inf, 0
        base += least
        for i in range(d):
            excess[v, i] = multiplier[v, i] - least
    tail, weighted, step = _remaining(time_s, comm_s, excess, succ_indptr, succ)
    dev = np.full(n, -1, np.int64)
    head, end, behind = np.zeros(n), np.zeros(n), np.empty(n)
    spent = np.zeros(n + 1)
    bound = np.empty((n, d))
    choice = np.empty((n, d), np.int64)
    at, number = np.zeros(n, np.int64), np.zeros(n, np.int64)
    value, length, left = cutoff, np.inf, np.inf
    nodes, v, fresh = 0, 0, True
    while v >= 0:
        if fresh:
            nodes += 1
            at[v], number[v] = 0, 0
            waiting = 0.0
            for u in range(v):
                for e in range(succ_indptr[u], succ_indptr[u + 1]):
                    if succ[e] > v:
                        waiting = max(waiting, end[u] + step[e, dev[u]])
            for i in range(d):
                if time_s[v, i] == np.inf or (leader[v] < v and dev[leader[v]] != i):
                    continue
                ready = 0.0
                for e in range(pred_indptr[v], pred_indptr[v + 1]):
                    u = pred[e]
                    ready = max(ready, end[u] + comm_s[u, dev[u], i])
                least = max(waiting, ready + time_s[v, i] + weighted[v, i])
                paid = spent[v] + excess[v, i] + base
                if least + paid < value:
                    least = _with_intervals(least, v, i, ready, time_s, head, tail, dev)
                if least + paid < value:
                    c = number[v]
                    while c > 0 and bound[v, c - 1] > least + paid:
                        bound[v, c], choice[v, c] = bound[v, c - 1], choice[v, c - 1]
                        c -= 1
                    bound[v, c], choice[v, c] = least + paid, i
                    number[v] += 1
        if at[v] >= number[v] or bound[v, at[v]] >= value:
            dev[v] = -1
            v -= 1
            fresh = False
            continue
        if nodes >= node_limit:
            for u in range(v + 1):
                if at[u] < number[u]:
                    left = min(left, bound[u, at[u]])
            break
        i = choice[v, at[v]]
        at[v] += 1
        dev[v] = i
        head[v] = 0.0
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            head[v] = max(head[v], end[pred[e]] + comm_s[pred[e], dev[pred[e]], i])
        end[v] = head[v] + time_s[v, i]
        spent[v + 1] = spent[v] + excess[v, i]
        fresh = v < n - 1
        if fresh:
            v += 1
            continue
        found = _length(time_s, comm_s, succ_indptr, succ, head, dev, behind)
        total = found + float(spent[n]) + base
        if total < value:
            value, length = total, found
            best[:] = dev
        dev[v] = -1
    return min(value, left), value, length, nodes
