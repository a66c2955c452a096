"""Compiled reachability in the graph of a placement problem, and sums over what leads to an op."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["reachability", "reachable_sums"]


@njit(cache=True, nogil=True)
def reachability(order: IntArray, succ_indptr: IntArray, succ: IntArray) -> BoolArray:
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
