"""Compiled search for the best way to give consecutive parts of an order to devices, each device one part at most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.list_scheduling import StorageArrays


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
    forbidden: IntArray,
    need: FloatArray,
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
    forbidden
        (d, p + 1) number of blocks before each cut that may not run on a device.
    need
        (p + 1, p + 1) bytes of the blocks between two cuts, which only grow with more blocks.
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
                    if need[j, i] > capacity[a] or forbidden[a, i] > forbidden[a, j]:
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
    forbidden: IntArray,
    need: FloatArray,
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
    work, forbidden, need, capacity, move
        As for `extend_cuts`.
    """
    total, since, came = cuts.total[0], cuts.since[0], cuts.came[0]
    for a in range(first, last):
        for i in range(1, work.shape[1]):
            for j in range(i - 1, -1, -1):
                if need[j, i] > capacity[a] or forbidden[a, i] > forbidden[a, j]:
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


@njit(cache=True, nogil=True)
def live_bytes(
    storages: StorageArrays, order: IntArray, held: FloatArray, cuts: IntArray, most: float, steps: int
) -> FloatArray:
    """Return (p + 1, p + 1) bytes that a device needs for what runs between two cuts of an order, one op at a time.

    That is `held`, and the most bytes of storages at once: those that are made before are there from the first op to
    their last reader between the cuts, others from the op that makes them, those that stay to the last op.

    Parameters
    ----------
    storages
        What ops read and make.
    order
        (n,) topological order.
    held
        (n + 1,) other bytes of the ops before each place.
    cuts
        (p + 1,) places where the order may be cut, ascending, both ends among them.
    most
        Bytes from which on it does not matter how many they are; ``inf`` stands there.
    steps
        Places gone through after which ``inf`` stands for all that is left.
    """
    n, p, counted = len(order), len(cuts) - 1, len(storages.read_indptr) - 1
    made_at = np.zeros(len(storages.size), np.int64)
    left = storages.reads.copy()
    for k in range(n):
        v = order[k]
        if v < counted:
            for at in range(storages.made_indptr[v], storages.made_indptr[v + 1]):
                made_at[storages.made[at]] = k
            for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
                left[storages.read[at]] -= 1
    need = np.full((p + 1, p + 1), np.inf)
    since = np.empty(len(storages.size), np.int64)
    live = np.empty(n)
    for a in range(p):
        first, b, stay, peak = cuts[a], a + 1, 0.0, 0.0
        since[:] = first
        for k in range(first, n):
            v = order[k]
            live[k] = stay
            if v < counted:
                for at in range(storages.made_indptr[v], storages.made_indptr[v + 1]):
                    made = storages.made[at]
                    live[k] += storages.size[made]
                    since[made] = k + 1
                    if left[made] > 0:
                        stay += storages.size[made]
                for at in range(storages.read_indptr[v], storages.read_indptr[v + 1]):
                    read = storages.read[at]
                    if left[read] > 0 and made_at[read] >= first:
                        continue
                    steps -= k + 1 - since[read]
                    for place in range(since[read], k + 1):
                        live[place] += storages.size[read]
                        peak = max(peak, live[place])
                    since[read] = k + 1
            peak = max(peak, live[k])
            if held[k + 1] - held[first] + peak >= most or steps <= 0:
                break
            if k + 1 == cuts[b]:
                need[a, b] = held[k + 1] - held[first] + peak
                b += 1
    return need
