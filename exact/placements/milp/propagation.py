"""Compiled propagation of the heads and tails of batches; see :mod:`rlinit.exact.placements.milp.time_windows`."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import bit_count

__all__ = ["close_orders", "collapse", "propagate"]


_MAX_ROUNDS = 30


@njit(cache=True, nogil=True)
def close_orders(
    visit: IntArray, pred_indptr: IntArray, pred: IntArray, before: IntArray, ancestors: BoolArray
) -> None:
    """Set ``ancestors[v, u]`` where u comes before v by data and by the fixed orders."""
    for at in range(len(visit)):
        v = visit[at]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            ancestors[v, pred[q]] = True
            ancestors[v] |= ancestors[pred[q]]
        for u in before[v]:
            if u >= 0:
                ancestors[v, u] = True
                ancestors[v] |= ancestors[u]


@njit(cache=True, nogil=True)
def _shared(v: int, i: int, w: int, j: int, mask: IntArray, group: IntArray) -> int:
    """Return how many shards batches (v, i) and (w, j) share: -1 where that is open, -2 for all of them."""
    if group[v] == group[w]:
        return -2 if i == j else 0
    if mask[v, i] and mask[w, j]:
        return bit_count(mask[v, i] & mask[w, j])
    return -1


@njit(cache=True, nogil=True)
def _link(
    v: int,
    i: int,
    j: int,
    shards: int,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
) -> float:
    if i == j:
        return 0.0
    seconds: float = delay_s[i, j] + max(shards, 1) * tensor_bytes[v] * s_per_byte[i, j]
    return seconds


@njit(cache=True, nogil=True)
def _data_head(
    v: int,
    i: int,
    pred_indptr: IntArray,
    pred: IntArray,
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
    for q in range(pred_indptr[v], pred_indptr[v + 1]):
        u = pred[q]
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[u, j]:
                continue
            shared = _shared(u, j, v, i, mask, group)
            if shared == 0:
                continue
            at = head[u, j] + least[u, j] + _link(u, j, i, shared, tensor_bytes, s_per_byte, delay_s)
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
    succ_indptr: IntArray,
    succ: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    allowed: BoolArray,
    mask: IntArray,
    tail: FloatArray,
) -> float:
    """Return the least seconds between the end of (v, i) and the makespan that its consumers need."""
    longest = 0.0
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        w = succ[q]
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[w, j]:
                continue
            shared = _shared(v, i, w, j, mask, group)
            if shared == 0:
                continue
            rest = _link(v, i, j, shared, tensor_bytes, s_per_byte, delay_s) + tail[w, j]
            if shared == -1:
                soonest = min(soonest, rest)
            else:
                longest = max(longest, rest)
                soonest = 0.0
        longest = max(longest, soonest)
    return longest


@njit(cache=True, nogil=True)
def _sweep(
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
) -> bool:
    """Carry heads forward and tails backward along data and fixed orders; return whether anything changed."""
    changed = False
    n, d = allowed.shape
    for at in range(n):
        v = visit[at]
        for i in range(d):
            if not allowed[v, i]:
                continue
            earliest = _data_head(
                v, i, pred_indptr, pred, group, tensor_bytes, s_per_byte, delay_s, allowed, mask, least, head
            )
            if not free[v] and before[v, i] >= 0:
                u = before[v, i]
                earliest = max(earliest, head[u, i] + least[u, i])
            if earliest > head[v, i]:
                head[v, i] = earliest
                changed = True
    for at in range(n - 1, -1, -1):
        v = visit[at]
        for i in range(d):
            if not allowed[v, i]:
                continue
            rest = _data_tail(v, i, succ_indptr, succ, group, tensor_bytes, s_per_byte, delay_s, allowed, mask, tail)
            if not free[v] and after[v, i] >= 0:
                rest = max(rest, tail[after[v, i], i])
            if least[v, i] + rest > tail[v, i]:
                tail[v, i] = least[v, i] + rest
                changed = True
    return changed


@njit(cache=True, nogil=True)
def _order(
    v: int,
    w: int,
    i: int,
    limit: float,
    certain_v: bool,
    certain_w: bool,
    allowed: BoolArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    precedes: BoolArray,
) -> bool:
    """Decide what the windows of (v, i) and (w, i) decide, if one of them must be there; return whether they did."""
    changed = False
    v_first = head[v, i] + least[v, i] + tail[w, i] <= limit and not precedes[w, v]
    w_first = head[w, i] + least[w, i] + tail[v, i] <= limit and not precedes[v, w]
    if v_first and w_first:
        return False
    if not v_first and not w_first:
        # Apart: whichever need not be there is not.
        if certain_v:
            allowed[w, i] = False
        if certain_w:
            allowed[v, i] = False
        return True
    first, second = (v, w) if v_first else (w, v)
    first_certain, second_certain = (certain_v, certain_w) if v_first else (certain_w, certain_v)
    if first_certain and head[first, i] + least[first, i] > head[second, i]:
        head[second, i] = head[first, i] + least[first, i]
        changed = True
    if second_certain and least[first, i] + tail[second, i] > tail[first, i]:
        tail[first, i] = least[first, i] + tail[second, i]
        changed = True
    return changed


@njit(cache=True, nogil=True)
def propagate(
    limit: float,
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    group: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
    precedes: BoolArray,
) -> int:
    """Tighten heads, tails and devices: 1 once nothing changes, 0 if cut short, -1 if nothing is within the limit."""
    n, d = allowed.shape
    for _ in range(_MAX_ROUNDS):
        changed = _sweep(
            visit,
            succ_indptr,
            succ,
            pred_indptr,
            pred,
            group,
            tensor_bytes,
            s_per_byte,
            delay_s,
            free,
            allowed,
            mask,
            least,
            head,
            tail,
            before,
            after,
        )
        for v in range(n):
            choices = 0
            for i in range(d):
                if allowed[v, i] and head[v, i] + tail[v, i] > limit:
                    if mask[v, i]:
                        return -1
                    allowed[v, i] = False
                    changed = True
                if not allowed[group[v], i] and allowed[v, i]:
                    allowed[v, i] = False
                    changed = True
                if not allowed[v, i] and allowed[group[v], i]:
                    allowed[group[v], i] = False
                    changed = True
                choices += allowed[v, i]
            if choices == 0:
                return -1
        for v in range(n):
            if not free[v]:
                continue
            for i in range(d):
                for w in range(n):
                    if not allowed[v, i]:
                        break
                    if w == v or not allowed[w, i] or (free[w] and w < v):
                        continue
                    certain_v = _certain(v, i, mask, allowed)
                    certain_w = _certain(w, i, mask, allowed)
                    if (certain_v or certain_w) and _order(
                        v, w, i, limit, certain_v, certain_w, allowed, least, head, tail, precedes
                    ):
                        if certain_v and certain_w and not (allowed[v, i] and allowed[w, i]):
                            return -1
                        changed = True
        if not changed:
            return 1
    return 0


@njit(cache=True, nogil=True)
def _certain(v: int, i: int, mask: IntArray, allowed: BoolArray) -> bool:
    """Return whether batch (v, i) is there in every placement of the window."""
    if mask[v, i]:
        return True
    choices = 0
    for j in range(allowed.shape[1]):
        choices += allowed[v, j]
    return bool(allowed[v, i]) and choices == 1


@njit(cache=True, nogil=True)
def collapse(
    limit: float,
    visit: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    free: BoolArray,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    before: IntArray,
    after: IntArray,
    precedes: BoolArray,
    early: BoolArray,
    late: BoolArray,
) -> None:
    """Find the fixed batches that nothing free can delay (`early`) or be delayed by (`late`).

    An early batch waits only for early batches and no free one can run before it on its device, so it may start at its
    head. A late one is waited for only by late ones and no free one can run after it.
    """
    n, d = allowed.shape
    for at in range(n):
        v = visit[at]
        if free[v]:
            continue
        for i in range(d):
            if not allowed[v, i]:
                continue
            good = before[v, i] < 0 or early[before[v, i], i]
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                u = pred[q]
                if not mask[u].any():
                    good = False
                for j in range(d):
                    if mask[u, j] & mask[v, i] and not early[u, j]:
                        good = False
            for f in range(n):
                if not good:
                    break
                if free[f] and allowed[f, i] and not precedes[v, f]:
                    good = head[f, i] + least[f, i] + tail[v, i] > limit
            early[v, i] = good
    for at in range(n - 1, -1, -1):
        v = visit[at]
        if free[v]:
            continue
        for i in range(d):
            if not allowed[v, i]:
                continue
            good = after[v, i] < 0 or late[after[v, i], i]
            for q in range(succ_indptr[v], succ_indptr[v + 1]):
                w = succ[q]
                if not free[w]:
                    for j in range(d):
                        if mask[w, j] & mask[v, i] and not late[w, j]:
                            good = False
                else:
                    good = False
            for f in range(n):
                if not good:
                    break
                if free[f] and allowed[f, i] and not precedes[f, v]:
                    good = head[v, i] + least[v, i] + tail[f, i] > limit
            late[v, i] = good
