"""Compiled propagation of heads and tails along data, where nothing is fixed but what may run.

Let r be the head and q the tail of a batch: no earlier start, and no less time from its end to the makespan (Carlier's
tail: without the batch itself). With i and j the devices of an op and of one of its producers or consumers, and the
transfer of one shard::

    r[v, i] >= min over j of r[u, j] + least[u, j] + transfer(u, j, i)      for each producer u
    q[v, i] >= min over j of transfer(v, i, j) + least[w, j] + q[w, j]      for each consumer w

Ops of one group are on one device. Producers of an op that are on its device run one after another there, all others
send their tensors.

References
----------
Carlier, "The one-machine sequencing problem" (1982), for heads and tails.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.analysis.batches import DataFlow
from rlinit.kernels.compiled import njit

_JOINED = 64
"""Producers of an op on its own device, or consumers, up to which they are put one after another."""


@njit(cache=True, nogil=True)
def _by_end(able: BoolArray, start: FloatArray, least: FloatArray, end: FloatArray, order: IntArray) -> int:
    """Write the ends (d,) of an op's batches and the devices that may run it, soonest first; return how many may."""
    count = 0
    for i in range(len(able)):
        end[i] = np.inf
        if not able[i]:
            continue
        end[i] = start[i] + least[i]
        at = count
        while at > 0 and end[order[at - 1]] > end[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
        count += 1
    return count


@njit(cache=True, nogil=True)
def _soonest(
    end: FloatArray, order: IntArray, i: int, size: float, s_per_byte: FloatArray, delay_s: FloatArray
) -> float:
    """Return when a tensor of an op with these ends, soonest first in `order`, can be on device i."""
    at = end[i]
    for j in order:
        if end[j] >= at:
            break
        at = min(at, end[j] + (delay_s[j, i] + size * s_per_byte[j, i]))
    return float(at)


@njit(cache=True, nogil=True)
def _beside(
    near: IntArray,
    v: int,
    i: int,
    group: IntArray,
    size: FloatArray,
    ends: tuple[FloatArray, IntArray, IntArray],
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    who: IntArray,
    away: FloatArray,
) -> tuple[float, int]:
    """Return when the tensors of some ops can be on device i, each by itself, and how many come soonest from i itself.

    These are written into `who`, those with the latest arrival from elsewhere, which goes into `away`, first. `size`
    (n,) are bytes of what each op passes; `ends` are the ends of the batches of each op, its devices by these, and how
    many may run it.
    """
    end, order, count = ends
    earliest, number = 0.0, 0
    for u in near:
        here, together = end[u, i], group[u] == group[v]
        at = here if together else _soonest(end[u], order[u, : count[u]], i, size[u], s_per_byte, delay_s)
        earliest = max(earliest, at)
        if at == here and at < np.inf:
            who[number % len(who)] = u
            number += 1
    if number < 2 or number > len(who):
        return earliest, 0
    for k in range(number):
        u, far = who[k], np.inf
        if group[u] != group[v]:
            for j in order[u, : count[u]]:
                if end[u, j] >= far:
                    break
                if j != i:
                    far = min(far, end[u, j] + (delay_s[j, i] + size[u] * s_per_byte[j, i]))
        at = k
        while at > 0 and away[at - 1] < far:
            who[at], away[at] = who[at - 1], away[at - 1]
            at -= 1
        who[at], away[at] = u, far
    return earliest, number


@njit(cache=True, nogil=True)
def _joined(
    earliest: float,
    number: int,
    i: int,
    who: IntArray,
    away: FloatArray,
    start: FloatArray,
    least: FloatArray,
) -> float:
    """Return when the tensors of all of `who` can be on device i, which runs one op at a time.

    The ops that others send later than that ran on i, one after another: the least time for which they can have. In
    the order of their starts they are done soonest.
    """
    best = max(earliest, away[0])
    for k in range(1, number + 1):
        at = k - 1  # `who` up to here is put in the order of starts.
        u = who[at]
        while at > 0 and start[who[at - 1], i] > start[u, i]:
            who[at] = who[at - 1]
            at -= 1
        who[at] = u
        done = 0.0
        for x in range(k):
            done = max(done, start[who[x], i]) + least[who[x], i]
        if done >= best:
            break
        best = min(best, max(earliest, done, away[k] if k < number else 0.0))
    return float(best)


@njit(cache=True, nogil=True)
def carry_open(flow: DataFlow, able: BoolArray, least: FloatArray, head: FloatArray, tail: FloatArray) -> None:
    """Carry heads forward and tails backward along data, where nothing is fixed but what may run.

    Producers of an op that are on its device run one after another there, all others send their tensors: the head is
    the least time for which that can be; tails alike, by the consumers.

    Parameters
    ----------
    flow
        The problem.
    able, least, head, tail
        (n, d) whether a batch may run, its seconds, and what to raise in place.

    Notes
    -----
    Devices are tried by when they can be done, so that mostly few of them are: some ``m d`` steps instead of ``m d^2``.
    """
    n, d = able.shape
    end, order, count = np.empty((n, d)), np.empty((n, d), np.int64), np.zeros(n, np.int64)
    rate, delay = np.ascontiguousarray(flow.s_per_byte.T), np.ascontiguousarray(flow.delay_s.T)
    who, away, size = np.empty(_JOINED, np.int64), np.empty(_JOINED), flow.tensor_bytes
    for v in flow.visit:
        near = flow.pred[flow.pred_indptr[v] : flow.pred_indptr[v + 1]]
        for i in range(d):
            if not able[v, i]:
                continue
            at, number = _beside(
                near, v, i, flow.group, size, (end, order, count), flow.s_per_byte, flow.delay_s, who, away
            )
            if number > 0:
                at = _joined(at, number, i, who, away, head, least)
            head[v, i] = max(head[v, i], at)
        count[v] = _by_end(able[v], head[v], least[v], end[v], order[v])
    same = np.empty(n)
    for v in flow.visit[::-1]:
        near = flow.succ[flow.succ_indptr[v] : flow.succ_indptr[v + 1]]
        for w in near:
            same[w] = size[v]
        for i in range(d):
            if not able[v, i]:
                continue
            at, number = _beside(near, v, i, flow.group, same, (end, order, count), rate, delay, who, away)
            if number > 0:
                at = _joined(at, number, i, who, away, tail, least)
            tail[v, i] = max(tail[v, i], at)
        count[v] = _by_end(able[v], tail[v], least[v], end[v], order[v])
