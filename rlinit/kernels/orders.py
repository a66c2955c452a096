"""Compiled topological sorting with node priorities, and the total length of an order's edges."""

from __future__ import annotations

import numpy as np
from numba import njit

from rlinit.stages import FloatArray, IntArray

__all__ = ["arrangement_cost", "kahn"]


@njit(cache=True, nogil=True)
def kahn(priority: FloatArray, succ_indptr: IntArray, succ: IntArray, pred_indptr: IntArray) -> IntArray:
    """Return the topological order that always takes the ready node of highest priority, smallest index first.

    Parameters
    ----------
    priority
        (n,) any numbers.
    succ_indptr, succ, pred_indptr
        The precedence graph, each edge once.

    References
    ----------
    MTPP, Algorithm 3.
    """
    n = len(priority)
    waiting = np.empty(n, np.int64)
    heap = np.empty(n, np.int64)
    order = np.empty(n, np.int64)
    size = 0
    for v in range(n):
        waiting[v] = pred_indptr[v + 1] - pred_indptr[v]
        if waiting[v] == 0:
            _rise(heap, size, v, priority)
            size += 1
    for i in range(n):
        u = heap[0]
        size -= 1
        if size > 0:
            _sink(heap, size, heap[size], priority)
        order[i] = u
        for e in range(succ_indptr[u], succ_indptr[u + 1]):
            waiting[succ[e]] -= 1
            if waiting[succ[e]] == 0:
                _rise(heap, size, succ[e], priority)
                size += 1
    return order


@njit(cache=True, nogil=True)
def _before(u: int, v: int, priority: FloatArray) -> bool:
    """Return whether u is taken before v."""
    return priority[u] > priority[v] or (priority[u] == priority[v] and u < v)


@njit(cache=True, nogil=True)
def _rise(heap: IntArray, i: int, v: int, priority: FloatArray) -> None:
    """Place node v at the open end i of the heap or above it."""
    while i > 0:
        above = (i - 1) // 2
        if not _before(v, heap[above], priority):
            break
        heap[i] = heap[above]
        i = above
    heap[i] = v


@njit(cache=True, nogil=True)
def _sink(heap: IntArray, size: int, v: int, priority: FloatArray) -> None:
    """Place node v at the open root of the heap or below it."""
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


@njit(cache=True, nogil=True)
def arrangement_cost(order: IntArray, tail: IntArray, head: IntArray, weight: FloatArray) -> float:
    """Return the sum over edges (tail, head) of weight times distance in the order (MTPP, C.1)."""
    position = np.empty(len(order), np.int64)
    for i in range(len(order)):
        position[order[i]] = i
    total = 0.0
    for e in range(len(tail)):
        total += weight[e] * (position[head[e]] - position[tail[e]])
    return total
