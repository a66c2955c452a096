"""Compiled decisions on pairs of batches: which are too late, which of two comes first, what nothing free can delay.

Two batches of one device that are both certain run one after the other. Where the windows of heads and tails leave one
order only, that order moves them; where they leave none, one of the two is not there.
"""

from __future__ import annotations

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.analysis.batches import BatchState, DataFlow
from rlinit.kernels.compiled import njit


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
        settled, beside = (early, state.before) if forward else (late, state.after)
        indptr, others = (flow.pred_indptr, flow.pred) if forward else (flow.succ_indptr, flow.succ)
        near = others[indptr[v] : indptr[v + 1]]
        for i in range(d):
            if state.allowed[v, i] and _all_settled(state, near, beside, v, i, settled):
                settled[v, i] = _free_of(state, v, i, limit, forward)


@njit(cache=True, nogil=True)
def _all_settled(state: BatchState, near: IntArray, beside: IntArray, v: int, i: int, settled: BoolArray) -> bool:
    """Return whether fixed batch (v, i) has only settled batches beside it on its device and along data.

    `near` are its producers or its consumers, `beside` (n, d) the batch before or after each on its device.
    """
    if beside[v, i] >= 0 and not settled[beside[v, i], i]:
        return False
    for u in near:
        if state.free[u]:
            return False
        for j in range(state.allowed.shape[1]):
            if state.mask[u, j] & state.mask[v, i] and not settled[u, j]:
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
