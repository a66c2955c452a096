"""What makes an op urgent when stages are filled, and what devices are worth, from arrays alone."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

FEATURES = ("reach", "tail", "work", "degree", "spread", "order")
"""Features of an op, each scaled to 0 ... 1, in the order of a priority's weights: work of it and all that must
follow; longest path from it; its own work; direct successors; ratio of its slowest device to its fastest;
earliness in the natural order."""


@njit(cache=True, nogil=True)
def longest_tails(order: IntArray, succ_indptr: IntArray, succ: IntArray, work: FloatArray) -> FloatArray:
    """Return (n,) the work on the longest path from each op, itself included; `order` is topological.

    Parameters
    ----------
    order
        (n,) topological.
    succ_indptr, succ
        Successors in CSR form.
    work
        (n,) seconds.
    """
    tail = work.copy()
    for i in range(len(order) - 1, -1, -1):
        v = order[i]
        longest = 0.0
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            longest = max(longest, tail[succ[e]])
        tail[v] += longest
    return tail


@njit(cache=True, nogil=True)
def reach_sums(order: IntArray, succ_indptr: IntArray, succ: IntArray, work: FloatArray) -> FloatArray:
    """Return (n,) the work of each op and all its descendants; `order` is topological. Cost grows as n squared.

    Parameters
    ----------
    order
        (n,) topological.
    succ_indptr, succ
        Successors in CSR form.
    work
        (n,) seconds.
    """
    n = len(order)
    words = (n + 63) // 64
    reach = np.zeros((n, words), np.uint64)
    total = np.zeros(n)
    one = np.uint64(1)
    for i in range(n - 1, -1, -1):
        v = order[i]
        reach[v, v >> 6] |= one << np.uint64(v & 63)
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            for w in range(words):
                reach[v, w] |= reach[succ[e], w]
        for u in range(n):
            if reach[v, u >> 6] >> np.uint64(u & 63) & one:
                total[v] += work[u]
    return total


@njit(cache=True, nogil=True)
def balance_prices(work: FloatArray, class_count: IntArray, rounds: int) -> FloatArray:
    """Return (c,) prices of a stage of each class, 1 on average, that nearly maximise what every assignment pays.

    With each op on the class where price times work is least, the sum of these over the sum of prices bounds the
    bottleneck from below. Prices of loaded classes rise, those of idle ones fall (multiplicative weights); the best
    prices are returned.

    Parameters
    ----------
    work
        (c, n) seconds, inf where forbidden.
    class_count
        (c,) stages of each class.
    rounds
        Changes of prices.
    """
    num_classes, n = work.shape
    price = np.ones(num_classes)
    best, best_price = -1.0, price.copy()
    load = np.empty(num_classes)
    for i in range(rounds):
        load[:] = 0.0
        paid = 0.0
        for v in range(n):
            least, at = np.inf, -1
            for c in range(num_classes):
                if class_count[c] > 0 and price[c] * work[c, v] < least:
                    least, at = price[c] * work[c, v], c
            if at >= 0:
                load[at] += work[at, v]
                paid += least
        capacity = 0.0
        for c in range(num_classes):
            capacity += price[c] * class_count[c]
        if paid > best * capacity:
            best = paid / capacity
            best_price[:] = price
        level = paid / capacity
        if level <= 0.0:
            break
        step = 0.3 / (1.0 + 0.1 * i)
        for c in range(num_classes):
            if class_count[c] > 0:
                over = load[c] / (class_count[c] * level) - 1.0
                price[c] *= np.exp(step * min(1.0, max(-1.0, over)))
    capacity = 0.0
    for c in range(num_classes):
        capacity += best_price[c] * class_count[c]
    best_price *= class_count.sum() / capacity
    return best_price
