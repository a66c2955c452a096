"""Compiled search for the best way to give consecutive parts of an order to devices, each device one part at most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit


class Cuts(NamedTuple):
    """Tables of the dynamic programs: (subsets, d, p + 1) for the devices used, the last of them and a cut.

    `total` is the least seconds up to the cut (``inf``: not reached), `since` where the last device's part begins,
    `came` the device before it (-1: none). Where devices come in turn there is one row for all subsets.
    """

    total: FloatArray
    since: IntArray
    came: IntArray


def new_cuts(num_subsets: int, num_devices: int, num_blocks: int) -> Cuts:
    """Return empty tables.

    Parameters
    ----------
    num_subsets
        Subsets of the devices told apart: 2^d, or 1 where devices come in turn.
    num_devices, num_blocks
        d and p.
    """
    shape = (num_subsets, num_devices, num_blocks + 1)
    return Cuts(np.full(shape, np.inf), np.zeros(shape, np.int64), np.full(shape, -1, np.int64))


@njit(cache=True, nogil=True)
def extend_cuts(
    cuts: Cuts,
    first: int,
    last: int,
    work: FloatArray,
    barred: IntArray,
    held: FloatArray,
    capacity: FloatArray,
    move: FloatArray,
) -> None:
    """Fill in the rows of subsets first..last-1, those before being filled in: exact over all subsets and turns.

    Takes O(d^2 p^2) steps a subset.

    Parameters
    ----------
    cuts
        Tables of 2^d subsets.
    first, last
        Subsets as bits, from 1 on.
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
    """
    total, since, came = cuts
    d, p = work.shape[0], work.shape[1] - 1
    for used in range(first, last):
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


@njit(cache=True, nogil=True)
def extend_cuts_in_turn(
    cuts: Cuts,
    first: int,
    last: int,
    work: FloatArray,
    barred: IntArray,
    held: FloatArray,
    capacity: FloatArray,
    move: FloatArray,
) -> None:
    """Let devices first..last-1 follow those before, in the order of their numbers, any of them left out.

    Takes O(d p^2) steps a device, so it serves for many devices.

    Parameters
    ----------
    cuts
        Tables of one row.
    first, last
        Devices, from 0 on.
    work, barred, held, capacity, move
        As for `extend_cuts`.
    """
    total, since, came = cuts.total[0], cuts.since[0], cuts.came[0]
    for a in range(first, last):
        for i in range(1, work.shape[1]):
            for j in range(i - 1, -1, -1):
                if held[i] - held[j] > capacity[a] or barred[a, i] > barred[a, j]:
                    break
                seconds = work[a, i] - work[a, j]
                if j == 0 and seconds < total[a, i]:
                    total[a, i], since[a, i], came[a, i] = seconds, 0, -1
                for b in range(a if j > 0 else 0):
                    if total[b, j] + move[j, b, a] + seconds < total[a, i]:
                        total[a, i], since[a, i], came[a, i] = total[b, j] + move[j, b, a] + seconds, j, b


@njit(cache=True, nogil=True)
def best_cuts(cuts: Cuts) -> tuple[IntArray, float]:
    """Return the device of each of p consecutive blocks, and the total time, of the best way found so far.

    Returns
    -------
    device, seconds
        (p,) devices, all 0 where nothing fits, and the total, ``inf`` where nothing fits.
    """
    total, since, came = cuts
    subsets, d, p = total.shape[0], total.shape[1], total.shape[2] - 1
    device = np.zeros(p, np.int64)
    best, last, used = np.inf, 0, 0
    for subset in range(subsets):
        for a in range(d):
            if total[subset, a, p] < best:
                best, last, used = total[subset, a, p], a, subset
    i = p
    while i > 0 and best < np.inf:
        j, b = since[used, last, i], came[used, last, i]
        device[j:i] = last
        if subsets > 1:
            used ^= 1 << last
        i, last = j, b
    return device, best
