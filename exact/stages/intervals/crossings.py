"""Tensors that cross every boundary of an interval of ideals, found as disjoint paths through its undecided nodes.

A boundary I with inner <= I <= outer has every node of `inner` before it and none outside `outer`. A path from a node
before to one behind it crosses it at some tensor. Paths that share no tensor's capacity cross at different ones, so
together they cost at least what flows along them, whatever I is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray, WordArray
from rlinit.budget import Budget, reserve
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import TensorArrays
from rlinit.stages.passes import run_in_chunks

_ENTRY_BYTES = 120.0
"""Bytes that an entry takes beside those found so far: in one array, and that array by columns."""


class Crossings(NamedTuple):
    """What crosses the boundaries of each of p intervals, in CSR form.

    Parameters
    ----------
    indptr
        (p + 1,) where each interval's entries begin.
    tensor
        A tensor that crosses as a whole, or -1 for a path.
    tail, head
        A node before every boundary and one behind; of a tensor its producer and one of its consumers.
    cost
        Seconds.
    total
        (p,) their sums.
    """

    indptr: IntArray
    tensor: IntArray
    tail: IntArray
    head: IntArray
    cost: FloatArray
    total: FloatArray


class _Scratch(NamedTuple):
    """What is left of each tensor, and the depth-first search: when touched, dead nodes, tensors and consumers."""

    left: FloatArray
    touched: IntArray
    dead: IntArray
    path: IntArray
    cursor: IntArray


@njit(cache=True, nogil=True)
def has(bits: WordArray, i: int, v: int) -> bool:
    """Return whether set i of a table of bits holds v.

    Parameters
    ----------
    bits
        (p, words) sets.
    i, v
        The set, and the member.
    """
    return bool((bits[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0)


@njit(cache=True, nogil=True)
def _path(
    t: int, i: int, inner: WordArray, outer: WordArray, tensors: TensorArrays, cost: FloatArray, scratch: _Scratch
) -> tuple[int, int]:
    """Find a path with capacity from tensor t to a node outside `outer`; return (that node or -1, last place)."""
    left, touched, dead, path, cursor = scratch
    path[0], cursor[0], depth = t, tensors.indptr[t], 0
    while depth >= 0:
        at = path[depth]
        if cursor[depth] >= tensors.indptr[at + 1]:
            if depth > 0:
                left[at] = 0.0
            depth -= 1
            continue
        v = tensors.dst[cursor[depth]]
        if not has(outer, i, v):
            return v, depth
        following = -1
        if not has(inner, i, v) and dead[v] != i:
            for q in range(tensors.out_indptr[v], tensors.out_indptr[v + 1]):
                made = tensors.out_tensor[q]
                if touched[made] != i:
                    touched[made], left[made] = i, cost[made]
                if left[made] > 0.0:
                    following = made
                    break
            if following < 0:
                dead[v] = i
        if following < 0:
            cursor[depth] += 1
            continue
        depth += 1
        path[depth], cursor[depth] = following, tensors.indptr[following]
    return -1, -1


@njit(cache=True, nogil=True)
def _crossings_of(
    i: int,
    inner: WordArray,
    outer: WordArray,
    tensors: TensorArrays,
    cost: FloatArray,
    scratch: _Scratch,
    entries: IntArray,
    amounts: FloatArray,
) -> int:
    """Write (tensor or -1, tail, head) and seconds of interval i; return how many there are."""
    left, touched, _, path, _ = scratch
    size = 0
    for t in range(len(cost)):
        maker = tensors.src[t]
        if cost[t] <= 0.0 or not has(inner, i, maker):
            continue
        crosses, behind = False, -1
        for q in range(tensors.indptr[t], tensors.indptr[t + 1]):
            v = tensors.dst[q]
            crosses = crosses or not has(inner, i, v)
            if not has(outer, i, v):
                behind = v
                break
        if behind >= 0:
            entries[size, 0], entries[size, 1], entries[size, 2] = t, maker, behind
            amounts[size] = cost[t]
            size += 1
            continue
        left[t], touched[t] = cost[t], i
        while crosses and left[t] > 0.0 and size < len(amounts):
            behind, last = _path(t, i, inner, outer, tensors, cost, scratch)
            if behind < 0:
                break
            flow = left[t]
            for d in range(last + 1):
                flow = min(flow, left[path[d]])
            for d in range(last + 1):
                left[path[d]] -= flow
            entries[size, 0], entries[size, 1], entries[size, 2] = -1, maker, behind
            amounts[size] = flow
            size += 1
    return size


@njit(cache=True, nogil=True)
def _crossings(
    first: int, last: int, inner: WordArray, outer: WordArray, tensors: TensorArrays, cost: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return (count of each, entries, seconds) of the intervals first..last-1."""
    m, n = len(cost), len(tensors.out_indptr) - 1
    scratch = _Scratch(
        np.zeros(m), np.full(m, -1, np.int64), np.full(n, -1, np.int64), np.empty(n + 1, np.int64),
        np.empty(n + 1, np.int64),
    )  # fmt: skip
    count = np.zeros(last - first, np.int64)
    row, amounts = np.empty((2 * m + 1, 3), np.int64), np.empty(2 * m + 1)
    entries, seconds = np.empty((64, 3), np.int64), np.empty(64)
    total = 0
    for i in range(first, last):
        size = _crossings_of(i, inner, outer, tensors, cost, scratch, row, amounts)
        while total + size > len(seconds):
            entries = np.concatenate((entries, np.empty_like(entries)))
            seconds = np.concatenate((seconds, np.empty_like(seconds)))
        for q in range(size):
            for x in range(3):
                entries[total, x] = row[q, x]
            seconds[total] = amounts[q]
            total += 1
        count[i - first] = size
    return count, entries[:total].copy(), seconds[:total].copy()


def crossings(
    inner: WordArray, outer: WordArray, tensors: TensorArrays, cost: FloatArray, budget: Budget
) -> Crossings | None:
    """Return what crosses every boundary of each interval at least; None if the budget ended first.

    Parameters
    ----------
    inner, outer
        (p, words) nodes of the least and of the largest ideal of each interval.
    tensors
        Who makes and who reads what.
    cost
        (m,) seconds of each tensor.
    budget
        When to stop.
    """
    found: list[tuple[IntArray, IntArray, FloatArray]] = []

    def call(first: int, last: int) -> None:
        found.append(_crossings(first, last, inner, outer, tensors, cost))
        have = sum(len(part) for _, _, part in found)
        reserve(have * _ENTRY_BYTES, f"{have:,} crossings of intervals")

    if not run_in_chunks(call, len(inner), budget):
        return None
    count, entries, seconds = (np.concatenate(part) for part in zip(*found, strict=True))
    indptr = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    owner = np.repeat(np.arange(len(inner)), count)
    tensor, tail, head = np.ascontiguousarray(entries.T)
    total = np.asarray(np.bincount(owner, weights=seconds, minlength=len(inner)), np.float64)
    return Crossings(indptr, tensor, tail, head, seconds, total)
