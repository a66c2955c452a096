"""Compiled quantities that the features of a placement problem are made of."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, Floats, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import RolloutArrays
from rlinit.kernels.placements.slots import hot_kernel, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays


@njit(cache=True, nogil=True)
def optimistic_costs(a: RolloutArrays, order: IntArray, time_s: FloatArray) -> FloatArray:
    """Return (n, d) the longest way from the end of op v on device i to the end of all, were no device ever busy.

    ``inf`` where some successor is out of reach.

    Parameters
    ----------
    a
        One problem.
    order
        (n,) a topological order.
    time_s
        (n, d) seconds of each op on each device, inf where it may not run.

    References
    ----------
    Arabnejad, Barbosa: List scheduling algorithm for heterogeneous systems by an optimistic cost table, IEEE TPDS
    25(3), 2014, eq. 5 (with the devices' own transfers in place of means).
    """
    n, d = time_s.shape
    cost = np.zeros((n, d))
    for k in range(n - 1, -1, -1):
        v = order[k]
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[q]
            for i in range(d):
                least = np.inf
                for j in range(d):
                    after = time_s[w, j] + cost[w, j]
                    if j != i:
                        after += a.delay[i * d + j] + a.tensor[v] * a.s_per_byte[i * d + j]
                    least = min(least, after)
                cost[v, i] = max(cost[v, i], least)
    return cost


@njit(cache=True, nogil=True)
def least_paths(a: RolloutArrays, order: IntArray, least_s: FloatArray) -> FloatArray:
    """Return (n,) the longest path through each op, every op counted with its least time, transfers not at all.

    Parameters
    ----------
    a
        One problem.
    order
        (n,) a topological order.
    least_s
        (n,) least seconds of each op on any device.
    """
    n = len(least_s)
    down, up = np.zeros(n), np.zeros(n)
    for k in range(n):
        v = order[k]
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            down[v] = max(down[v], down[a.pred[q]] + least_s[a.pred[q]])
    for k in range(n - 1, -1, -1):
        v = order[k]
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            up[v] = max(up[v], up[a.succ[q]])
        up[v] += least_s[v]
    return down + up


MOST = 6.0
"""Features are cut off here; also what stands for an infinite one."""


@njit(cache=True, nogil=True)
def pair_features(
    a: RolloutArrays,
    seconds: FloatArray,
    after: FloatArray,
    late: FloatArray,
    device: IntArray,
    start: FloatArray,
    end: FloatArray,
    sequence: IntArray,
    reach: float,
    pair: FloatArray,
) -> None:
    """Write the features of pairs of op and device.

    In order: seconds over the op's least, seconds, whether it may run, excess of the way that remains, lateness, if
    the schedule has it there, how busy the device is before and after it, shares of producers and consumers there.

    Parameters
    ----------
    a
        One problem.
    seconds, after, late
        (n, d) seconds of ops, `optimistic_costs`, and how much later than the earliest each would end, in typical ops.
    device, start, end, sequence
        (n,) of a schedule, and its ops by start, then by end.
    reach
        Typical ops before an op starts, and after it ends, in which devices' business is looked at.
    pair
        (n, d, 10), zero, to be filled.
    """
    n, d, scale = *seconds.shape, a.scale[0]
    _busy_shares(device, start, end, sequence, reach * scale, pair)
    for v in range(n):
        least, shortest = seconds[v].min(), after[v].min()
        floor = least if least > 0.0 else scale * 1e-3
        for i in range(d):
            if seconds[v, i] != least:
                pair[v, i, 0] = squashed(seconds[v, i] / floor - 1.0)
            pair[v, i, 1] = squashed(seconds[v, i] / scale)
            pair[v, i, 2] = seconds[v, i] < np.inf
            pair[v, i, 3] = squashed((after[v, i] - (shortest if shortest < np.inf else 0.0)) / scale)
            pair[v, i, 4] = squashed(late[v, i])
        pair[v, device[v], 5] = 1.0
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            pair[v, device[a.pred[q]], 8] += 1.0 / (a.pred_indptr[v + 1] - a.pred_indptr[v])
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            pair[v, device[a.succ[q]], 9] += 1.0 / (a.succ_indptr[v + 1] - a.succ_indptr[v])


@njit(cache=True, nogil=True, inline="always")
def squashed(x: float) -> float:
    """Return log(1 + x), cut off; 0 for negative numbers. `np.log1p` takes three times as long."""
    return float(min(np.log(1.0 + x), MOST)) if x > 0.0 else 0.0


@njit(cache=True, nogil=True)
def _busy_shares(
    device: IntArray, start: FloatArray, end: FloatArray, sequence: IntArray, reach: float, pair: FloatArray
) -> None:
    """Write columns 6 and 7 of pairs, from 0 to 1."""
    n, d = pair.shape[:2]
    by_end = np.argsort(end)
    until_start, before_start, until_end, after_end = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(d):
        ops = sequence[device[sequence] == i]
        begins, work = start[ops], np.zeros(len(ops) + 1)
        for k in range(len(ops)):
            work[k + 1] = work[k] + end[ops[k]] - begins[k]
        _work_until(start, 0.0, sequence, begins, work, until_start)
        _work_until(start, -reach, sequence, begins, work, before_start)
        _work_until(end, 0.0, by_end, begins, work, until_end)
        _work_until(end, reach, by_end, begins, work, after_end)
        for v in range(n):
            pair[v, i, 6] = (until_start[v] - before_start[v]) / reach
            pair[v, i, 7] = (after_end[v] - until_end[v]) / reach


@njit(cache=True, nogil=True)
def _work_until(
    moment: FloatArray, later: float, order: IntArray, begins: FloatArray, work: FloatArray, done: FloatArray
) -> None:
    """Write the seconds a device works until so much later than each moment.

    Parameters
    ----------
    moment, later
        (n,) seconds, and what is added to all.
    order
        (n,) moments by size.
    begins, work
        (k,) when the device's ops begin, by time, and (k + 1,) its seconds of work before each and in all.
    done
        (n,) to be filled.
    """
    at, last = 0, len(begins)
    for v in order:
        now = moment[v] + later
        while at < last and begins[at] < now:
            at += 1
        done[v] = min(work[at], work[at - 1] + now - begins[at - 1]) if at > 0 else 0.0


@njit(cache=True, nogil=True)
def node_features(
    a: RolloutArrays,
    seconds: FloatArray,
    moved: FloatArray,
    path: FloatArray,
    slack: FloatArray,
    start: FloatArray,
    end: FloatArray,
    pair: FloatArray,
    fastest: IntArray,
    node: Floats,
) -> None:
    """Write an op's own features, then those of its pairs with the fastest devices.

    In order: least and mean seconds, seconds to move its output, how much shorter the longest path through it is than
    that of all, slack, producers, consumers, whether there are none of each, and how long it waits once all it reads
    has been made.

    Parameters
    ----------
    a
        One problem.
    seconds
        (n, d) seconds of ops, inf where they may not run.
    moved, path, slack
        (n,) in seconds.
    start, end
        (n,) of a schedule.
    pair, fastest
        From `pair_features`, and the devices of which nodes see pairs.
    node
        (n, 10 + len(slots) * 10), zero, to be filled.
    """
    longest, scale = path.max(), a.scale[0]
    for v in range(len(seconds)):
        total, able, least, latest = 0.0, 0, np.inf, 0.0
        for own in seconds[v]:
            if own < np.inf:
                total, able, least = total + own, able + 1, min(least, own)
        first, last = a.pred_indptr[v], a.pred_indptr[v + 1]
        for q in range(first, last):
            latest = max(latest, end[a.pred[q]])
        node[v, 0] = squashed((least if able else 0.0) / scale)
        node[v, 1] = squashed(total / max(able, 1) / scale)
        node[v, 2], node[v, 3] = squashed(moved[v] / scale), squashed((longest - path[v]) / scale)
        node[v, 4], node[v, 5] = squashed(slack[v] / scale), squashed(last - first)
        consumers = a.succ_indptr[v + 1] - a.succ_indptr[v]
        node[v, 6], node[v, 7], node[v, 8] = squashed(consumers), first == last, consumers == 0
        if first < last:
            node[v, 9] = squashed((start[v] - latest) / scale)
        for k in range(len(fastest)):
            for f in range(10):
                node[v, 10 * (k + 1) + f] = pair[v, fastest[k], f]


@hot_kernel
def add_tails(
    a: TimelineArrays,
    first: int,
    last: int,
    sequence: IntArray,
    device: IntArray,
    tail: FloatArray,
    rest: FloatArray,
) -> None:
    """Put positions last-1 down to first before those behind, in place.

    Parameters
    ----------
    a
        The problem; the last time of an op on a device is that of the whole op.
    first, last
        Positions.
    sequence, device
        (n,) ops in a topological order, and the device of each op.
    tail, rest
        (n,) from each op's start, and (d,) from the first start on each device, to the end of all.
    """
    for at in range(last - 1, first - 1, -1):
        v = sequence[at]
        i = device[v]
        after = rest[i]
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[q]
            need = tail[w]
            if device[w] != i:
                need += transfer_time(a, v, i, device[w], 1)
            if need > after:
                after = need
        tail[v] = after + a.time[v, i, -1]
        rest[i] = tail[v]
