"""Compiled topological sorting with node priorities, the length of an order's edges, and moves within orders."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


@njit(cache=True, nogil=True)
def kahn(priority: FloatArray, succ_indptr: IntArray, succ: IntArray, pred_indptr: IntArray) -> IntArray:
    """Return the topological order that always takes the ready node of highest priority, smallest index first.

    Parameters
    ----------
    priority
        (n,) float64.
    succ_indptr, succ, pred_indptr
        The precedence graph.

    References
    ----------
    MTPP, Algorithm 3.
    """
    n = len(priority)
    waiting = np.diff(pred_indptr)
    heap = np.empty(n, np.int64)
    size = 0
    order = np.empty(n, np.int64)
    for v in range(n):
        if waiting[v] == 0:
            size = _push(heap, size, v, priority)
    for i in range(n):
        u = heap[0]
        size -= 1
        heap[0] = heap[size]
        _sink(heap, size, priority)
        order[i] = u
        for e in range(succ_indptr[u], succ_indptr[u + 1]):
            waiting[succ[e]] -= 1
            if waiting[succ[e]] == 0:
                size = _push(heap, size, succ[e], priority)
    return order


@njit(cache=True, nogil=True)
def levels(order: IntArray, pred_indptr: IntArray, pred: IntArray) -> IntArray:
    """Return (n,) the edges on the longest path to each node.

    Parameters
    ----------
    order
        (n,) topological.
    pred_indptr, pred
        Predecessors in CSR form.
    """
    level = np.zeros(len(order), np.int64)
    for v in order:
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            level[v] = max(level[v], level[pred[e]] + 1)
    return level


@njit(cache=True, nogil=True, inline="always")
def _before(a: int, b: int, priority: FloatArray) -> bool:
    return priority[a] > priority[b] or (priority[a] == priority[b] and a < b)


@njit(cache=True, nogil=True)
def _push(heap: IntArray, size: int, v: int, priority: FloatArray) -> int:
    i = size
    while i > 0:
        above = (i - 1) // 2
        if not _before(v, heap[above], priority):
            break
        heap[i] = heap[above]
        i = above
    heap[i] = v
    return size + 1


@njit(cache=True, nogil=True)
def _sink(heap: IntArray, size: int, priority: FloatArray) -> None:
    if size == 0:
        return
    v = heap[0]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap[child + 1], heap[child], priority):
            child += 1
        if not _before(heap[child], v, priority):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = v


@njit(cache=True, nogil=True, inline="always")
def shift(order: IntArray, place: IntArray, width: int, origin: int, target: int) -> None:
    """Move the member at one position of an order to another, in place; those between shift by one.

    Parameters
    ----------
    order
        (m,) members.
    place
        The position of each member, found at member // `width`.
    """
    member = order[origin]
    if origin < target:
        for at in range(origin, target):
            order[at] = order[at + 1]
            place[order[at] // width] = at
    else:
        for at in range(origin, target, -1):
            order[at] = order[at - 1]
            place[order[at] // width] = at
    order[target] = member
    place[member // width] = target
