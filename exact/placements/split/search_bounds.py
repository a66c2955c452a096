"""Compiled parts of a block's model: multipliers of the devices, and longest paths to what a block is timed by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.kernels.compiled import njit

MAX_MULTIPLIER_DEVICES = 3
"""Devices for which the best multipliers are found by a search in one dimension within another."""

_GOLDEN = 0.6180339887498949
"""Part of an interval that a step of a search in one dimension leaves; it ends where `SAFETY` of it is left."""


@njit(cache=True, nogil=True)
def _weighted_work(time_s: FloatArray, around_s: FloatArray, multiplier: FloatArray) -> float:
    total = 0.0
    for j in range(len(multiplier)):
        if around_s[j] < np.inf:
            total += multiplier[j] * around_s[j]
    for v in range(len(time_s)):
        least = np.inf
        for j in range(len(multiplier)):
            if time_s[v, j] < np.inf:
                least = min(least, multiplier[j] * time_s[v, j])
        if least < np.inf:
            total += least
    return total


@njit(cache=True, nogil=True)
def _split_rest(time_s: FloatArray, around_s: FloatArray, multiplier: FloatArray, a: int, b: int, rest: float) -> float:
    """Share `rest` between devices a and b for the most weighted work, by golden section (it is concave)."""
    low, high = 0.0, rest
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    multiplier[a], multiplier[b] = left, rest - left
    at_left = _weighted_work(time_s, around_s, multiplier)
    multiplier[a], multiplier[b] = right, rest - right
    at_right = _weighted_work(time_s, around_s, multiplier)
    while high - low > SAFETY * rest:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            multiplier[a], multiplier[b] = left, rest - left
            at_left = _weighted_work(time_s, around_s, multiplier)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            multiplier[a], multiplier[b] = right, rest - right
            at_right = _weighted_work(time_s, around_s, multiplier)
    middle = (low + high) / 2
    multiplier[a], multiplier[b] = middle, rest - middle
    return _weighted_work(time_s, around_s, multiplier)


@njit(cache=True, nogil=True)
def best_multiplier(time_s: FloatArray, around_s: FloatArray) -> FloatArray:
    """Return (d,) multipliers, at least 0 and of sum 1, under which the work is worth nearly the most.

    Parameters
    ----------
    time_s
        (n, d) op times, ``inf`` where an op cannot run; an op that can run nowhere does not count.
    around_s
        (d,) seconds before and after a device's work; ``inf`` does not count.

    Notes
    -----
    The weighted work ``sum over j of y_j around_j + sum over v of min over j of y_j time_vj`` is concave in y, and its
    maximum is that of the assignment LP's dual. Of one to three devices; O(n) evaluations, some 1,600 for three.
    """
    d = time_s.shape[1]
    multiplier = np.full(d, 1.0 / d)
    if d == 2:
        _split_rest(time_s, around_s, multiplier, 0, 1, 1.0)
    if d == 3:
        low, high = 0.0, 1.0
        left, right = 1.0 - _GOLDEN, _GOLDEN
        multiplier[0] = left
        at_left = _split_rest(time_s, around_s, multiplier, 1, 2, 1.0 - left)
        multiplier[0] = right
        at_right = _split_rest(time_s, around_s, multiplier, 1, 2, 1.0 - right)
        while high - low > SAFETY:
            if at_left >= at_right:
                high, right, at_right = right, left, at_left
                left = high - _GOLDEN * (high - low)
                multiplier[0] = left
                at_left = _split_rest(time_s, around_s, multiplier, 1, 2, 1.0 - left)
            else:
                low, left, at_left = left, right, at_right
                right = low + _GOLDEN * (high - low)
                multiplier[0] = right
                at_right = _split_rest(time_s, around_s, multiplier, 1, 2, 1.0 - right)
        multiplier[0] = (low + high) / 2
        _split_rest(time_s, around_s, multiplier, 1, 2, 1.0 - multiplier[0])
    kept: FloatArray = np.maximum(multiplier, 0.0)
    kept /= kept.sum()
    return kept


@njit(cache=True, nogil=True)
def block_tails(
    succ_indptr: IntArray,
    succ: IntArray,
    time_s: FloatArray,
    comm_s: FloatArray,
    base_s: FloatArray,
    weighted_s: FloatArray,
    with_work: bool,
) -> FloatArray:
    """Return (t, n, d) least seconds from an op's end on a device to each target's end.

    After an op come its successors, and, `with_work`, all its descendants, whose weighted work is done by when the last
    of them ends.

    Parameters
    ----------
    succ_indptr, succ
        Successors of each of n local ops, all of larger index.
    time_s, comm_s
        (n, d) and (n, d, d) seconds.
    base_s
        (t, n, d) what is known of the tails otherwise.
    weighted_s
        (y, n) least weighted time of each op.
    """
    num_targets, n, d = base_s.shape
    tail = base_s.copy()
    below = np.zeros((n, n) if with_work else (1, 1), np.bool_)
    for v in range(n - 1, -1, -1):
        for i in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[i]
            if with_work:
                below[v, w] = True
                for x in range(w + 1, n):
                    below[v, x] = below[v, x] or below[w, x]
            for t in range(num_targets):
                for j in range(d):
                    least = np.inf
                    for q in range(d):
                        least = min(least, comm_s[v, j, q] + time_s[w, q] + tail[t, w, q])
                    tail[t, v, j] = max(tail[t, v, j], least)
        if with_work and succ_indptr[v] < succ_indptr[v + 1]:
            _raise_by_work(tail, below[v], weighted_s, v)
    return tail


@njit(cache=True, nogil=True)
def _raise_by_work(tail: FloatArray, below: NDArray[np.bool_], weighted_s: FloatArray, v: int) -> None:
    """Raise the tail of op v to its descendants' weighted work and the least tail among them."""
    work = 0.0
    for y in range(len(weighted_s)):
        total = 0.0
        for x in range(v + 1, len(below)):
            if below[x]:
                total += weighted_s[y, x]
        work = max(work, total)
    for t in range(len(tail)):
        rest = np.inf
        for x in range(v + 1, len(below)):
            if below[x]:
                for j in range(tail.shape[2]):
                    rest = min(rest, tail[t, x, j])
        least = work + (rest if rest < np.inf else 0.0)
        for j in range(tail.shape[2]):
            tail[t, v, j] = max(tail[t, v, j], least)
