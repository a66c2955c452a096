"""Compiled annealing over (sequence, device) where transfers exclude each other: every move runs the whole timeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.annealing import (
    DEVICE_SHARE,
    ONLY_DEVICE_SHARE,
    RUN_SHARE,
    DeviceMemory,
    accepts,
    batch_span,
    draw_other_device,
    draw_run,
)
from rlinit.kernels.placements.slots import bit_count
from rlinit.kernels.placements.timeline import TimelineArrays, Transfers, no_transfers, run_batches

_REACH = 20
"""Ops that a batch passes at most: far along the sequence little changes until much does."""

_COST, _BEST, _TEMPERATURE = 0, 1, 2
"""Places of what the compiled loop changes, all in seconds."""


class TimelineSearch(NamedTuple):
    """A search's state; n ops, d devices.

    `sequence` (n * d,) are all batches op * d + device, those without shards among them; `place` (n * d,) the position
    of each, `mask` (n, d) its shards as bits, `held` (d,) bytes. `best_sequence` and `best_mask` are those of the best
    timeline. `value` (3,) holds makespan, best makespan and temperature in seconds. `start` and `moved` are scratch.
    """

    sequence: IntArray
    place: IntArray
    mask: IntArray
    held: FloatArray
    best_sequence: IntArray
    best_mask: IntArray
    value: FloatArray
    start: FloatArray
    moved: Transfers


@njit(cache=True, nogil=True)
def new_timeline_search(
    a: TimelineArrays, mode: int, sequence: IntArray, mask: IntArray, held: FloatArray, hot: float
) -> TimelineSearch:
    """Return a search that begins at a schedule.

    Parameters
    ----------
    a
        The problem.
    mode
        EXCLUSIVE or BLOCKING, see `rlinit.kernels.placements.timeline`.
    sequence
        (n * d,) all batches op * d + device, each after those it depends on.
    mask
        (n, d) shards of each batch as bits.
    held
        (d,) bytes of each device.
    hot
        First temperature in seconds.
    """
    n, d = mask.shape
    place = np.empty(n * d, np.int64)
    for at in range(n * d):
        place[sequence[at]] = at
    start, moved = np.empty((n, d)), no_transfers(mode, n, a.time.shape[2] - 1, d)
    cost = run_batches(a, mode, sequence, mask, start, moved)
    value = np.array([cost, cost, hot])
    return TimelineSearch(
        sequence.copy(), place, mask.copy(), held.copy(), sequence.copy(), mask.copy(), value, start, moved
    )


@njit(cache=True, nogil=True)
def _draw_shards(
    rng: np.random.Generator, a: TimelineArrays, memory: DeviceMemory, s: TimelineSearch, v: int, i: int, j: int
) -> int:
    """Return shards of op v to move from device i to j as bits; 0 where these may not."""
    given: int = s.mask[v, i]
    if rng.random() < RUN_SHARE:
        given &= draw_run(rng, a.time.shape[2] - 1)
    moved, count_j = bit_count(given), bit_count(s.mask[v, j])
    count_i = bit_count(s.mask[v, i]) - moved
    grown = moved * memory.shard[v] + (memory.weight[v] if count_j == 0 else 0.0)
    able = a.time[v, i, count_i] < np.inf and a.time[v, j, count_j + moved] < np.inf
    return given if able and s.held[j] + grown <= memory.capacity[j] else 0


@njit(cache=True, nogil=True)
def _give(memory: DeviceMemory, s: TimelineSearch, v: int, i: int, j: int, given: int) -> None:
    """Move shards of op v from device i to j."""
    moved = bit_count(given)
    s.held[j] += moved * memory.shard[v] + (memory.weight[v] if s.mask[v, j] == 0 else 0.0)
    s.mask[v, i] ^= given
    s.mask[v, j] |= given
    s.held[i] -= moved * memory.shard[v] + (memory.weight[v] if s.mask[v, i] == 0 else 0.0)


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
    d, total = s.mask.shape[1], len(s.sequence)
    for _ in range(moves):
        s.value[_TEMPERATURE] *= cooling
        at = int(rng.random() * total)
        while s.mask[s.sequence[at] // d, s.sequence[at] % d] == 0:
            at = int(rng.random() * total)
        code = s.sequence[at]
        v, i = code // d, code % d
        j, given, kind = i, 0, rng.random()
        if kind < DEVICE_SHARE and memory.mate[v] == v and d > 1:
            j = draw_other_device(rng, i, d)
            given = _draw_shards(rng, a, memory, s, v, i, j)
            if given == 0:
                continue
            _give(memory, s, v, i, j, given)
        batch = v * d + j
        origin = s.place[batch]
        spot = origin
        left, right = batch_span(a, s.mask, s.place, batch, 0, total)
        if kind > ONLY_DEVICE_SHARE:
            near, far = max(left, at - _REACH * d), min(right, at + _REACH * d)
            spot = near + int(rng.random() * (far - near + 1))
        elif not left <= origin <= right or s.mask[v, j] == given:
            spot = max(left, min(right, at))
        if (given == 0 and spot == origin) or not left <= spot <= right:
            if given != 0:
                _give(memory, s, v, j, i, given)
            continue
        shift(s.sequence, s.place, 1, origin, spot)
        tried = run_batches(a, mode, s.sequence, s.mask, s.start, s.moved)
        if (tried < np.inf or s.value[_COST] == np.inf) and accepts(rng, tried, s.value[_COST], s.value[_TEMPERATURE]):
            s.value[_COST] = tried
            if tried < s.value[_BEST]:
                s.value[_BEST] = tried
                s.best_sequence[:] = s.sequence
                s.best_mask[:] = s.mask
        else:
            shift(s.sequence, s.place, 1, spot, origin)
            if given != 0:
                _give(memory, s, v, j, i, given)
    best: float = s.value[_BEST]
    return best
