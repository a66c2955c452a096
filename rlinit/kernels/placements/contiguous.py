"""Compiled search for the best way to give consecutive parts of an order to devices, each device one part at most."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["cut_order", "cut_order_in_turn"]


@njit(cache=True, nogil=True)
def cut_order(
    work: FloatArray, barred: IntArray, held: FloatArray, capacity: FloatArray, move: FloatArray
) -> tuple[IntArray, float]:
    """Return the device of each of p consecutive blocks, and the total time; exact over all subsets and turns.

    Parameters
    ----------
    work
        (d, p + 1) seconds of the blocks before each cut on a device.
    barred
        (d, p + 1) number of blocks before each cut that may not run on a device.
    held
        (p + 1,) bytes of the blocks before each cut.
    capacity
        (d,) bytes of each device.
    move
        (p + 1, d, d) seconds to go on after a cut on another device.

    Returns
    -------
    device, seconds
        (p,) devices, all 0 where nothing fits, and the total, ``inf`` where nothing fits. Takes O(2^d d^2 p^2) steps.
    """
    d, p = work.shape[0], work.shape[1] - 1
    total = np.full((1 << d, d, p + 1), np.inf)
    since = np.zeros((1 << d, d, p + 1), np.int64)
    came = np.full((1 << d, d, p + 1), -1, np.int64)
    for used in range(1, 1 << d):
        for a in range(d):
            if not (used >> a) & 1:
                continue
            before = used ^ (1 << a)
            for i in range(1, p + 1):
                for j in range(i - 1, -1, -1):
                    if held[i] - held[j] > capacity[a] or barred[a, i] > barred[a, j]:
                        break
                    seconds = work[a, i] - work[a, j]
                    if (before == 0) != (j == 0):
                        continue
                    if before == 0 and seconds < total[used, a, i]:
                        total[used, a, i] = seconds
                    for b in range(d):
                        if (before >> b) & 1 and total[before, b, j] + move[j, b, a] + seconds < total[used, a, i]:
                            total[used, a, i] = total[before, b, j] + move[j, b, a] + seconds
                            since[used, a, i], came[used, a, i] = j, b
    device = np.zeros(p, np.int64)
    best = np.inf
    last, used = 0, 0
    for subset in range(1, 1 << d):
        for a in range(d):
            if total[subset, a, p] < best:
                best, last, used = total[subset, a, p], a, subset
    i = p
    while i > 0 and best < np.inf:
        j, b = since[used, last, i], came[used, last, i]
        device[j:i] = last
        used ^= 1 << last
        i, last = j, b
    return device, best


@njit(cache=True, nogil=True)
def cut_order_in_turn(
    work: FloatArray, barred: IntArray, held: FloatArray, capacity: FloatArray, move: FloatArray
) -> tuple[IntArray, float]:
    """Return the same as `cut_order` for devices used in the order of their numbers, any of them left out.

    Takes O(d^2 p^2) steps, so it serves for many devices.
    """
    d, p = work.shape[0], work.shape[1] - 1
    total = np.full((d, p + 1), np.inf)
    since = np.zeros((d, p + 1), np.int64)
    came = np.full((d, p + 1), -1, np.int64)
    for a in range(d):
        for i in range(1, p + 1):
            for j in range(i - 1, -1, -1):
                if held[i] - held[j] > capacity[a] or barred[a, i] > barred[a, j]:
                    break
                seconds = work[a, i] - work[a, j]
                if j == 0 and seconds < total[a, i]:
                    total[a, i], since[a, i], came[a, i] = seconds, 0, -1
                for b in range(a if j > 0 else 0):
                    if total[b, j] + move[j, b, a] + seconds < total[a, i]:
                        total[a, i], since[a, i], came[a, i] = total[b, j] + move[j, b, a] + seconds, j, b
    device = np.zeros(p, np.int64)
    last = int(np.argmin(total[:, p]))
    best = total[last, p]
    i = p
    while i > 0 and best < np.inf:
        j, b = since[last, i], came[last, i]
        device[j:i] = last
        i, last = j, b
    return device, best
