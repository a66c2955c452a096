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

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.exact.placements.analysis.batches import BatchState, DataFlow
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import bit_count


@njit(cache=True, nogil=True)
def _shared(group: IntArray, mask: IntArray, v: int, i: int, w: int, j: int) -> int:
    """Return how many shards batches (v, i) and (w, j) share: -1 where that is open, -2 for all of them."""
    if group[v] == group[w]:
        return -2 if i == j else 0
    if mask[v, i] and mask[w, j]:
        return bit_count(mask[v, i] & mask[w, j])
    return -1


@njit(cache=True, nogil=True)
def _along_data(
    v: int,
    i: int,
    near: IntArray,
    flow: DataFlow,
    allowed: BoolArray,
    mask: IntArray,
    least: FloatArray,
    reach: FloatArray,
    forward: bool,
) -> float:
    """Return the head of (v, i) that its producers ask for, or else the tail that its consumers do.

    By each of `near` by its soonest batch, by all of its batches where it is known which share something with (v, i);
    `reach` (n, d) are their heads or tails.
    """
    group, size, rate, delay = flow.group, flow.tensor_bytes, flow.s_per_byte, flow.delay_s
    longest = 0.0
    for u in near:
        soonest = np.inf
        for j in range(allowed.shape[1]):
            if not allowed[u, j]:
                continue
            shared = _shared(group, mask, u, j, v, i)
            if shared == 0:
                continue
            at = reach[u, j] + least[u, j]
            if i != j:
                sender, a, b = (u, j, i) if forward else (v, i, j)
                at += delay[a, b] + max(shared, 1) * size[sender] * rate[a, b]
            if shared == -1:
                soonest = min(soonest, at)
            else:
                longest = max(longest, at)
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
    allowed, mask, least = state.allowed, state.mask, state.least
    changed = False
    n, d = allowed.shape
    for at in range(2 * n):
        forward = at < n
        v = flow.visit[at] if forward else flow.visit[2 * n - 1 - at]
        reach, beside = (state.head, state.before) if forward else (state.tail, state.after)
        indptr, others = (flow.pred_indptr, flow.pred) if forward else (flow.succ_indptr, flow.succ)
        for i in range(d):
            if not allowed[v, i]:
                continue
            longest = _along_data(v, i, others[indptr[v] : indptr[v + 1]], flow, allowed, mask, least, reach, forward)
            if not state.free[v] and beside[v, i] >= 0:
                u = beside[v, i]
                longest = max(longest, reach[u, i] + least[u, i])
            if longest > reach[v, i]:
                reach[v, i] = longest
                changed = True
    return changed
