"""Compiled propagation of the heads and tails of batches; see :mod:`rlinit.exact.placements.analysis.time_windows`.

Let r be the head and q the tail of a batch: no earlier start, and no less time from its end to the makespan (Carlier's
tail: without the batch itself). Along data, with i and j the devices of an op and of one of its producers or consumers,
and the transfer of one shard (or of the shared ones where they are known)::

    r[v, i] >= min over j of r[u, j] + least[u, j] + transfer(u, j, i)      for each producer u
    q[v, i] >= min over j of transfer(v, i, j) + least[w, j] + q[w, j]      for each consumer w

Ops of one group are on one device. Fixed batches follow one another in their order.

References
----------
Carlier, "The one-machine sequencing problem" (1982), for heads and tails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import bit_count
from rlinit.placements.problem import PlacementProblem

__all__ = [
    "BatchState",
    "DataFlow",
    "carry",
    "carry_open",
    "close_orders",
    "collapse",
    "data_flow",
    "drop_late",
    "order_pairs",
]


_JOINED = 64
"""Producers of an op on its own device, or consumers, up to which they are put one after another."""


class DataFlow(NamedTuple):
    """What passes between the batches of a problem: n ops, m edges, d devices.

    ``visit`` is an order of the ops in which heads are carried forward, ``group`` as in a problem.
    """

    visit: IntArray
    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray
    group: IntArray
    tensor_bytes: FloatArray
    s_per_byte: FloatArray
    delay_s: FloatArray


class BatchState(NamedTuple):
    """What is known of the batches, changed in place; the fields as in `BatchWindows`."""

    free: BoolArray
    allowed: BoolArray
    mask: IntArray
    least: FloatArray
    head: FloatArray
    tail: FloatArray
    before: IntArray
    after: IntArray
    precedes: BoolArray


def data_flow(problem: PlacementProblem, visit: IntArray | None = None) -> DataFlow:
    """Return what the kernels need of a problem; `visit` is an order of its ops, the natural one if None.

    Parameters
    ----------
    problem
        The problem.
    visit
        (n,) a topological order; None: the natural one.
    """
    order = problem.order if visit is None else visit
    return DataFlow(
        visit=order.astype(np.int64),
        succ_indptr=problem.succ_indptr,
        succ=problem.succ,
        pred_indptr=problem.pred_indptr,
        pred=problem.pred,
        group=problem.group,
        tensor_bytes=problem.tensor_bytes,
        s_per_byte=problem.s_per_byte,
        delay_s=problem.delay_s,
    )


@njit(cache=True, nogil=True)
def close_orders(flow: DataFlow, before: IntArray, ancestors: BoolArray) -> None:
    """Set ``ancestors[v, u]`` where u comes before v by data and by the fixed orders.

    Parameters
    ----------
    flow
        What the kernels need of the problem.
    before
        The fixed orders of batches.
    ancestors
        (n, n) to be filled.
    """
    for v in flow.visit:
        for q in range(flow.pred_indptr[v], flow.pred_indptr[v + 1]):
            ancestors[v, flow.pred[q]] = True
            ancestors[v] |= ancestors[flow.pred[q]]
        for u in before[v]:
            if u >= 0:
                ancestors[v, u] = True
                ancestors[v] |= ancestors[u]


@njit(cache=True, nogil=True)
def _shared(group: IntArray, mask: IntArray, v: int, i: int, w: int, j: int) -> int:
    """Return how many shards batches (v, i) and (w, j) share: -1 where that is open, -2 for all of them."""
    if group[v] == group[w]:
        return -2 if i == j else 0
    if mask[v, i] and mask[w, j]:
        return bit_count(mask[v, i] & mask[w, j])
    return -1


@njit(cache=True, nogil=True)
def _transfer(
    v: int, i: int, j: int, shards: int, tensor_bytes: FloatArray, s_per_byte: FloatArray, delay_s: FloatArray
) -> float:
    """Return the seconds of moving some shards of an op, at least one, between two devices."""
    if i == j:
        return 0.0
    seconds: float = delay_s[i, j] + max(shards, 1) * tensor_bytes[v] * s_per_byte[i, j]
    return seconds


@njit(cache=True, nogil=True)
def _data_head(
    v: int,
    i: int,
    producers: IntArray,
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
    for u in producers:
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[u, j]:
                continue
            shared = _shared(group, mask, u, j, v, i)
            if shared == 0:
                continue
            at = head[u, j] + least[u, j] + _transfer(u, j, i, shared, tensor_bytes, s_per_byte, delay_s)
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
    consumers: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    tail: FloatArray,
) -> float:
    """Return the least seconds between the end of (v, i) and the makespan that its consumers need."""
    longest = 0.0
    for w in consumers:
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[w, j]:
                continue
            shared = _shared(group, mask, v, i, w, j)
            if shared == 0:
                continue
            rest = _transfer(v, i, j, shared, tensor_bytes, s_per_byte, delay_s) + (least[w, j] + tail[w, j])
            if shared == -1:
                soonest = min(soonest, rest)
            else:
                longest = max(longest, rest)
                soonest = 0.0
        longest = max(longest, soonest)
    return longest


@njit(cache=True, nogil=True)
def carry(flow: DataFlow, state: BatchState) -> bool:
    """Carry heads forward and tails backward along data and fixed orders; return whether anything changed.

    Parameters
    ----------
    flow
        What the kernels need of the problem.
    state
        Batches, heads, tails and orders, changed in place.
    """
    # Handing on single arrays costs nothing in the innermost loops; handing on all of them does.
    group, size, rate, delay = flow.group, flow.tensor_bytes, flow.s_per_byte, flow.delay_s
    allowed, mask, least, head, tail = state.allowed, state.mask, state.least, state.head, state.tail
    free, before, after = state.free, state.before, state.after
    changed = False
    n, d = allowed.shape
    for v in flow.visit:
        producers = flow.pred[flow.pred_indptr[v] : flow.pred_indptr[v + 1]]
        for i in range(d):
            if not allowed[v, i]:
                continue
            earliest = _data_head(v, i, producers, group, size, rate, delay, allowed, mask, least, head)
            if not free[v] and before[v, i] >= 0:
                u = before[v, i]
                earliest = max(earliest, head[u, i] + least[u, i])
            if earliest > head[v, i]:
                head[v, i] = earliest
                changed = True
    for at in range(n - 1, -1, -1):
        v = flow.visit[at]
        consumers = flow.succ[flow.succ_indptr[v] : flow.succ_indptr[v + 1]]
        for i in range(d):
            if not allowed[v, i]:
                continue
            rest = _data_tail(v, i, consumers, group, size, rate, delay, allowed, mask, least, tail)
            if not free[v] and after[v, i] >= 0:
                w = after[v, i]
                rest = max(rest, least[w, i] + tail[w, i])
            if rest > tail[v, i]:
                tail[v, i] = rest
                changed = True
    return changed


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
    """Carry heads forward and tails backward along data as `carry` does, where nothing is fixed but what may run.

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


@njit(cache=True, nogil=True)
def _may_precede(
    v: int,
    w: int,
    i: int,
    limit: float,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    precedes: BoolArray,
) -> bool:
    """Return whether batch (v, i) may run before batch (w, i) within the limit."""
    rest = least[w, i] + tail[w, i]
    return bool(head[v, i] + least[v, i] + rest <= limit) and not precedes[w, v]


@njit(cache=True, nogil=True)
def _order(
    v: int,
    w: int,
    i: int,
    limit: float,
    certain: tuple[bool, bool],
    allowed: BoolArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    precedes: BoolArray,
) -> bool:
    """Decide what the windows of (v, i) and (w, i) decide, if one of them must be there; return whether they did."""
    v_first = _may_precede(v, w, i, limit, least, head, tail, precedes)
    w_first = _may_precede(w, v, i, limit, least, head, tail, precedes)
    if v_first and w_first:
        return False
    if not v_first and not w_first:
        # Apart: whichever need not be there is not.
        if certain[0]:
            allowed[w, i] = False
        if certain[1]:
            allowed[v, i] = False
        return True
    changed = False
    first, second = (v, w) if v_first else (w, v)
    first_certain, second_certain = certain if v_first else (certain[1], certain[0])
    end = head[first, i] + least[first, i]
    if first_certain and end > head[second, i]:
        head[second, i] = end
        changed = True
    rest = least[second, i] + tail[second, i]
    if second_certain and rest > tail[first, i]:
        tail[first, i] = rest
        changed = True
    return changed


@njit(cache=True, nogil=True)
def drop_late(flow: DataFlow, state: BatchState, limit: float) -> int:
    """Drop batches that do not fit the limit: -1 if an op has none left, 1 if any was dropped, else 0.

    Parameters
    ----------
    flow
        What the kernels need of the problem.
    state
        Batches, heads, tails and orders, changed in place.
    limit
        Seconds within which all must end.
    """
    n, d = state.allowed.shape
    allowed, group = state.allowed, flow.group
    changed = 0
    for v in range(n):
        choices = 0
        for i in range(d):
            if allowed[v, i] and state.head[v, i] + (state.least[v, i] + state.tail[v, i]) > limit:
                if state.mask[v, i]:
                    return -1
                allowed[v, i] = False
                changed = 1
            if not allowed[group[v], i] and allowed[v, i]:
                allowed[v, i] = False
                changed = 1
            if not allowed[v, i] and allowed[group[v], i]:
                allowed[group[v], i] = False
                changed = 1
            choices += allowed[v, i]
        if choices == 0:
            return -1
    return changed


@njit(cache=True, nogil=True)
def order_pairs(state: BatchState, limit: float, first: int, last: int) -> int:
    """Decide the orders of pairs of batches with a free one: -1 if none is left, 1 if anything changed, else 0.

    The free one is of op `first` or a later one before `last`.

    Parameters
    ----------
    state
        Batches, heads, tails and orders, changed in place.
    limit
        Seconds within which all must end.
    first, last
        Ops: the first, and the one after the last.
    """
    n, d = state.allowed.shape
    allowed, free, mask = state.allowed, state.free, state.mask
    least, head, tail, precedes = state.least, state.head, state.tail, state.precedes
    changed = 0
    for v in range(first, last):
        if not free[v]:
            continue
        for i in range(d):
            for w in range(n):
                if not allowed[v, i]:
                    break
                if w == v or not allowed[w, i] or (free[w] and w < v):
                    continue
                certain = (_certain(mask, allowed, v, i), _certain(mask, allowed, w, i))
                if not certain[0] and not certain[1]:
                    continue
                if _order(v, w, i, limit, certain, allowed, least, head, tail, precedes):
                    if certain[0] and certain[1] and not (allowed[v, i] and allowed[w, i]):
                        return -1
                    changed = 1
    return changed


@njit(cache=True, nogil=True)
def _certain(mask: IntArray, allowed: BoolArray, v: int, i: int) -> bool:
    """Return whether batch (v, i) is there in every placement of the window."""
    if mask[v, i]:
        return True
    choices = 0
    for j in range(allowed.shape[1]):
        choices += allowed[v, j]
    return bool(allowed[v, i]) and choices == 1


@njit(cache=True, nogil=True)
def collapse(flow: DataFlow, state: BatchState, limit: float, early: BoolArray, late: BoolArray) -> None:
    """Find the fixed batches that nothing free can delay (`early`) or be delayed by (`late`).

    An early batch waits only for early batches and no free one can run before it on its device, so it may start at its
    head. A late one is waited for only by late ones and no free one can run after it.

    Parameters
    ----------
    flow
        What the kernels need of the problem.
    state
        Batches, heads, tails and orders.
    limit
        Seconds within which all must end.
    early, late
        To be filled, a truth value a batch.
    """
    n, d = state.allowed.shape
    for at in range(2 * n):
        forward = at < n
        v = flow.visit[at] if forward else flow.visit[2 * n - 1 - at]
        if state.free[v]:
            continue
        for i in range(d):
            if not state.allowed[v, i]:
                continue
            if forward:
                early[v, i] = _nothing_before(flow, state, v, i, early) and _free_of(state, v, i, limit, True)
            else:
                late[v, i] = _nothing_after(flow, state, v, i, late) and _free_of(state, v, i, limit, False)


@njit(cache=True, nogil=True)
def _nothing_before(flow: DataFlow, state: BatchState, v: int, i: int, early: BoolArray) -> bool:
    """Return whether fixed batch (v, i) follows early batches only, by its device and by data."""
    if state.before[v, i] >= 0 and not early[state.before[v, i], i]:
        return False
    for q in range(flow.pred_indptr[v], flow.pred_indptr[v + 1]):
        u = flow.pred[q]
        if not state.mask[u].any():
            return False
        for j in range(state.allowed.shape[1]):
            if state.mask[u, j] & state.mask[v, i] and not early[u, j]:
                return False
    return True


@njit(cache=True, nogil=True)
def _nothing_after(flow: DataFlow, state: BatchState, v: int, i: int, late: BoolArray) -> bool:
    """Return whether fixed batch (v, i) is followed by late batches only, on its device and by data."""
    if state.after[v, i] >= 0 and not late[state.after[v, i], i]:
        return False
    for q in range(flow.succ_indptr[v], flow.succ_indptr[v + 1]):
        w = flow.succ[q]
        if state.free[w]:
            return False
        for j in range(state.allowed.shape[1]):
            if state.mask[w, j] & state.mask[v, i] and not late[w, j]:
                return False
    return True


@njit(cache=True, nogil=True)
def _free_of(state: BatchState, v: int, i: int, limit: float, before: bool) -> bool:
    """Return whether no free batch can run before (or else after) fixed batch (v, i) on its device."""
    for f in range(len(state.free)):
        if state.free[f] and state.allowed[f, i]:
            first, second = (f, v) if before else (v, f)
            if _may_precede(first, second, i, limit, state.least, state.head, state.tail, state.precedes):
                return False
    return True
