"""Compiled recombination of two schedules of whole ops: windows of one, in devices and order, put into the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.annealing import DeviceMemory
from rlinit.kernels.placements.slots import append_start, hot_kernel, ready_time, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays
from rlinit.kernels.placements.window_annealing import OpSequence, add_ends, add_tails

_NARROWEST = 4
"""Ops of the narrowest windows."""

_STRIDES = 4
"""Windows of a width that overlap at each op."""

_WIDER = 0.7
"""Width of a window over that of the next wider one."""

_BETTER = 1e-9
"""Part of the makespan by which it has to fall: more than rounding."""


class _Sides(NamedTuple):
    """What lies before and behind each of n + 1 positions on d devices, and scratch for what is tried.

    `clock` (n + 1, d) is when a device is free before a position, `rest` (n + 1, d) the seconds from the first start on
    it from there on to the end of all. `end` and `device` (n,) are those of the schedule but for the window that is
    tried, `now` (d,) is when devices are free in it.
    """

    clock: FloatArray
    rest: FloatArray
    end: FloatArray
    device: IntArray
    now: FloatArray


@njit(cache=True, nogil=True)
def take_windows(
    a: TimelineArrays, memory: DeviceMemory, s: OpSequence, sequence: IntArray, device: IntArray
) -> tuple[float, int]:
    """Put windows of another schedule into `s` where that is better, the widest first; return makespan and work.

    A window holds the ops at consecutive positions of `s`. They take the devices and the order that they have in the
    other schedule; everything else stays, so its heads and tails tell the makespan from the window alone.

    Parameters
    ----------
    a, memory
        The problem, every op whole, and what limits devices.
    s
        A schedule, changed in place; its `sequence`, `device` and `held` count.
    sequence, device
        (n,) ops of the other schedule in a topological order, and the device of each op.

    Returns
    -------
    makespan, work
        In seconds, and the number of ops that were placed.
    """
    n, d = len(s.sequence), len(s.held)
    rank = np.empty(n, np.int64)
    for at in range(n):
        rank[sequence[at]] = at
    sides = _Sides(np.zeros((n + 1, d)), np.zeros((n + 1, d)), np.empty(n), np.empty(n, np.int64), np.empty(d))
    makespan = _look_around(a, s, sides)
    work, width = n, int(n * _WIDER)
    while width >= _NARROWEST:
        stride = max(1, width // _STRIDES)
        for lo in range(0, n - width + stride, stride):
            lo = min(lo, n - width)
            ops = s.sequence[lo : lo + width]
            taken = ops[np.argsort(rank[ops])]
            if not _allowed(memory, s, taken, device, lo, sides.now):
                continue
            work += width
            if _try_window(a, s, sides, taken, device, lo) < makespan * (1.0 - _BETTER):
                for v in taken:
                    need = memory.weight[v] + memory.shard[v]
                    s.held[s.device[v]] -= need
                    s.held[device[v]] += need
                    s.device[v] = device[v]
                s.sequence[lo : lo + width] = taken
                makespan = _look_around(a, s, sides)
                work += n
        width = int(width * _WIDER)
    return makespan, work


@njit(cache=True, nogil=True)
def _look_around(a: TimelineArrays, s: OpSequence, sides: _Sides) -> float:
    """Bring everything up to date with the sequence and the devices; return the makespan."""
    n = len(s.sequence)
    s.free[:] = 0.0
    s.rest[:] = 0.0
    for at in range(n):
        s.place[s.sequence[at]] = at
        add_ends(a, at, at + 1, s.sequence, s.device, s.end, s.free)
        sides.clock[at + 1] = s.free
    for at in range(n - 1, -1, -1):
        add_tails(a, at, at + 1, s.sequence, s.device, s.tail, s.rest)
        sides.rest[at] = s.rest
    sides.end[:] = s.end
    sides.device[:] = s.device
    return float(s.end.max())


@hot_kernel
def _allowed(memory: DeviceMemory, s: OpSequence, taken: IntArray, device: IntArray, lo: int, now: FloatArray) -> bool:
    """Return whether ops may have other devices, and whether any of them has, or another order."""
    other = False
    for k in range(len(taken)):
        v = taken[k]
        other |= device[v] != s.device[v] or (k > 0 and s.place[v] < s.place[taken[k - 1]])
        w = memory.mate[v]
        while device[v] != s.device[v] and w != v:
            if not lo <= s.place[w] < lo + len(taken):
                return False
            w = memory.mate[w]
    if not other:
        return False
    for i in range(len(now)):
        now[i] = s.held[i]
    for v in taken:
        need = memory.weight[v] + memory.shard[v]
        now[s.device[v]] -= need
        now[device[v]] += need
    fits = True
    for i in range(len(now)):
        fits &= now[i] <= memory.capacity[i]
    return fits


@hot_kernel
def _try_window(a: TimelineArrays, s: OpSequence, sides: _Sides, taken: IntArray, device: IntArray, lo: int) -> float:
    """Return the longest path through a window with other devices and another order."""
    hi = lo + len(taken)
    for i in range(len(sides.now)):
        sides.now[i] = sides.clock[lo, i]
    for v in taken:
        sides.device[v] = device[v]
    longest = 0.0
    for v in taken:
        i = device[v]
        at = append_start(ready_time(a, v, i, sides.device, sides.end), sides.now[i]) + a.time[v, i, -1]
        sides.end[v] = at
        sides.now[i] = at
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[q]
            if s.place[w] < hi:
                continue
            through = at + s.tail[w]
            if s.device[w] != i:
                through += transfer_time(a, v, i, s.device[w], 1)
            longest = max(longest, through)
    for i in range(len(sides.now)):
        longest = max(longest, sides.now[i] + sides.rest[hi, i])
    for v in taken:
        sides.device[v] = s.device[v]
        sides.end[v] = s.end[v]
    return longest
