"""Compiled reachability in the graph of a placement problem, and sums over what leads to an op."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.budget import reserve
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import bit_count


def reachability(order: IntArray, succ_indptr: IntArray, succ: IntArray) -> BoolArray:
    """Return (n, n) whether a path of at least one edge leads from row to column.

    Parameters
    ----------
    order
        (n,) topological.
    succ_indptr, succ
        Successors in CSR form.

    Raises
    ------
    OutOfMemory
        The memory that is left has no room for it.
    """
    reserve(float(len(order)) ** 2, f"which of {len(order):,} ops lead to which")
    return np.asarray(_reachability(order, succ_indptr, succ))


@njit(cache=True, nogil=True)
def _reachability(order: IntArray, succ_indptr: IntArray, succ: IntArray) -> BoolArray:
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

    Parameters
    ----------
    order
        (n,) topological.
    pred_indptr, pred
        Predecessors in CSR form.
    weight
        (n,) of each op, in any unit.
    """
    n = len(order)
    words = (n + 63) // 64
    known = np.zeros((n, words), np.uint64)
    total = np.zeros(n)
    place = np.empty(n, np.int64)
    full = np.zeros(words)
    for k in range(n):
        place[order[k]] = k
        full[k >> 6] += weight[order[k]]
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
            if word == ~np.uint64(0):
                amount += full[k]
                continue
            bit = 0
            while word != np.uint64(0):
                if word & np.uint64(1):
                    amount += weight[order[64 * k + bit]]
                word >>= np.uint64(1)
                bit += 1
        total[v] = amount
    return total


def in_words(flags: BoolArray) -> IntArray:
    """Return (n, ceil(n / 32)) rows of (n, n) flags as bits of words, flag j as bit ``j % 32`` of word ``j // 32``."""
    n = len(flags)
    words = np.zeros((n, (n + 31) // 32), "<u4")
    packed = np.packbits(flags, axis=1, bitorder="little")
    words.view(np.uint8)[:, : packed.shape[1]] = packed
    return words.astype(np.int64)


@njit(cache=True, nogil=True)
def _weight_between(below: IntArray, above: IntArray, first: int, last: int, weight: FloatArray, most: int) -> float:
    """Return the weight of the ops in both of two rows of bits; ``-inf`` where they are more than `most`."""
    number = 0
    for k in range(first >> 5, (last >> 5) + 1):
        number += bit_count(below[k] & above[k])
        if number > most:
            return -np.inf
    amount = 0.0
    for k in range(first >> 5, (last >> 5) + 1):
        word = below[k] & above[k]
        if word != 0:
            for bit in range(32):
                if (word >> bit) & 1:
                    amount += weight[32 * k + bit]
    return amount


@njit(cache=True, nogil=True)
def work_between(
    rows: tuple[int, int],
    descendants: IntArray,
    ancestors: IntArray,
    least: FloatArray,
    most: int,
    work: FloatArray,
) -> None:
    """Set rows of (n, n) work to the sum of `least` of the ops between row and column.

    Parameters
    ----------
    rows
        First row, and the first one that is not set.
    descendants, ancestors
        Rows of bits as of `in_words`; ops are numbered in topological order.
    least
        (n,) seconds of each op.
    most
        Pairs with more ops between them are left as they are, like those that no path joins.
    """
    for u in range(rows[0], rows[1]):
        for v in range(u + 1, len(least)):
            if (descendants[u, v >> 5] >> (v & 31)) & 1:
                work[u, v] = _weight_between(descendants[u], ancestors[v], u, v, least, most)
