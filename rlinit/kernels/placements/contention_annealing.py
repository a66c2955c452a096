"""Compiled annealing over (sequence, device) where transfers exclude each other: every move runs the whole timeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.annealing import DeviceMemory, accepts, draw_other_device
from rlinit.kernels.placements.timeline import TimelineArrays, Transfers, no_transfers, run_batches

_DEVICE_SHARE, _ONLY_DEVICE_SHARE = 0.6, 0.45
"""Of the moves, those that draw a device; those of them that draw no position."""

_REACH = 20
"""Positions an op moves at most: far along the sequence little changes until much does."""

_COST, _BEST, _TEMPERATURE = 0, 1, 2


class TimelineSearch(NamedTuple):
    """A search's state; n ops of one shard, d devices.

    `sequence` (n,) batches op * d + device, `place` (n,) the position of each op, `mask` (n, d) 1 where an op is,
    `held` (d,) bytes. `best_sequence` and `best_held` are those of the best timeline. `value` (3,) holds makespan, best
    makespan and temperature in seconds. `start` and `moved` are scratch.
    """

    sequence: IntArray
    place: IntArray
    mask: IntArray
    held: FloatArray
    best_sequence: IntArray
    best_held: FloatArray
    value: FloatArray
    start: FloatArray
    moved: Transfers


@njit(cache=True, nogil=True)
def new_timeline_search(
    a: TimelineArrays, mode: int, sequence: IntArray, held: FloatArray, hot: float
) -> TimelineSearch:
    """Return a search that begins at a schedule.

    Parameters
    ----------
    a
        The problem; every op has one shard.
    mode
        EXCLUSIVE or BLOCKING, see `rlinit.kernels.placements.timeline`.
    sequence
        (n,) batches op * d + device in a topological order.
    held
        (d,) bytes of each device.
    hot
        First temperature in seconds.
    """
    n, d = a.time.shape[0], a.time.shape[1]
    mask, place = np.zeros((n, d), np.int64), np.empty(n, np.int64)
    for at in range(n):
        place[sequence[at] // d] = at
        mask[sequence[at] // d, sequence[at] % d] = 1
    start, moved = np.empty((n, d)), no_transfers(mode, n, d)
    cost = run_batches(a, mode, sequence, mask, start, moved)
    value = np.array([cost, cost, hot])
    return TimelineSearch(sequence.copy(), place, mask, held.copy(), sequence.copy(), held.copy(), value, start, moved)


@njit(cache=True, nogil=True)
def _draw_move(
    rng: np.random.Generator, a: TimelineArrays, memory: DeviceMemory, s: TimelineSearch, at: int
) -> tuple[int, int]:
    """Return device and position to try for the op at a position; those it has where the move is not possible."""
    n, d = s.mask.shape
    v, i = s.sequence[at] // d, s.sequence[at] % d
    j, spot = i, at
    kind = rng.random()
    if kind < _DEVICE_SHARE and memory.movable[v] and d > 1:
        j = draw_other_device(rng, i, d)
        if not a.time[v, j, 1] < np.inf or s.held[j] + (memory.weight[v] + memory.shard[v]) > memory.capacity[j]:
            return i, at
    if kind > _ONLY_DEVICE_SHARE:
        left, right = 0, n - 1
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            left = max(left, s.place[a.pred[q]] + 1)
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            right = min(right, s.place[a.succ[q]] - 1)
        left, right = max(left, at - _REACH), min(right, at + _REACH)
        spot = left + int(rng.random() * (right - left + 1))
    return j, spot


@njit(cache=True, nogil=True)
def anneal_timeline(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    mode: int,
    s: TimelineSearch,
    moves: int,
    cooling: float,
) -> float:
    """Anneal on for some moves; return the best makespan so far.

    Parameters
    ----------
    rng
        Source of randomness.
    a, memory, mode
        The problem, what limits devices, and EXCLUSIVE or BLOCKING.
    s
        The state, changed in place; calls that follow each other are as one.
    moves
        Timelines run at most.
    cooling
        Factor of the temperature before each move.
    """
    n, d = s.mask.shape
    for _ in range(moves):
        s.value[_TEMPERATURE] *= cooling
        at = int(rng.random() * n)
        code = s.sequence[at]
        v, i = code // d, code % d
        j, spot = _draw_move(rng, a, memory, s, at)
        if j == i and spot == at:
            continue
        s.sequence[at] = v * d + j
        s.mask[v, i], s.mask[v, j] = 0, 1
        shift(s.sequence, s.place, d, at, spot)
        tried = run_batches(a, mode, s.sequence, s.mask, s.start, s.moved)
        if (tried < np.inf or s.value[_COST] == np.inf) and accepts(rng, tried, s.value[_COST], s.value[_TEMPERATURE]):
            s.value[_COST] = tried
            s.held[i] -= memory.weight[v] + memory.shard[v]
            s.held[j] += memory.weight[v] + memory.shard[v]
            if tried < s.value[_BEST]:
                s.value[_BEST] = tried
                s.best_sequence[:] = s.sequence
                s.best_held[:] = s.held
        else:
            shift(s.sequence, s.place, d, spot, at)
            s.mask[v, j], s.mask[v, i] = 0, 1
            s.sequence[at] = code
    best: float = s.value[_BEST]
    return best
