"""Compiled local search over batches: annealing inside windows of the sequence, one after another.

The counterpart of `window_annealing` for ops that may be split over devices. The sequence holds all n * d batches, also
those without shards, so that a shard can go to any device; `mask` says which shards each batch has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.annealing import (
    RUN_SHARE,
    DeviceMemory,
    PassPlan,
    accepts,
    add_member,
    batch_span,
    cooling_factor,
    draw_other_device,
    draw_run,
)
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count, hot_kernel, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays

_CHAIN_SHARE = 0.1
"""Of the moves, those that take shards of several connected ops to another device."""

_CHAIN_RUN = 0.7
"""Of these, those that take a run of shards of each op, not all that a device has."""

_DEVICE_SHARE = 0.6
"""Of the other moves, those that take shards of one op to another device; the rest change a position."""

_NEW_PLACE, _SAME_PLACE = 0.3, 0.7
"""Of the batches that get shards, those that change their position though they had some; of these, those put where the
shards come from, as far as that may be."""

_FIRST, _EDGE, _DONE = 0, 1, 2
"""Entries of `BatchSequence.at`."""

_COST, _BEST, _BEFORE, _TEMPERATURE = 0, 1, 2, 3
"""Entries of `BatchSequence.value`."""


class _Copy(NamedTuple):
    """A window's batches in sequence, (w,), their shards, (w,), and the bytes of each device, (d,)."""

    sequence: IntArray
    mask: IntArray
    held: FloatArray


class BatchSequence(NamedTuple):
    """A schedule and how far a pass along it has come; n ops, d devices.

    `sequence` (n * d,) are all batches op * d + device, each after those it depends on; `place` (n * d,) the position
    of each; `mask` (n, d) its shards as bits; `held` (d,) bytes. `end` and `tail` (n, d) are seconds from the start of
    all to a batch's end, and from its start to the end of all; `free` and `rest` (d,) the same for devices at both
    sides of the window, `nearest` (d,) each device's nearest position beyond it. `at` (3,) holds the first position of
    the window, where the positions begin that `free` does not count yet, and the moves made in the window, -1 before
    the first look at it. `value` (4,) holds the window's cost, its least cost, its cost before, and the temperature.
    `best` is the best of the window; `kept`, `clock` and `joined` are scratch.
    """

    sequence: IntArray
    place: IntArray
    mask: IntArray
    held: FloatArray
    end: FloatArray
    tail: FloatArray
    free: FloatArray
    rest: FloatArray
    nearest: IntArray
    at: IntArray
    value: FloatArray
    best: _Copy
    kept: _Copy
    clock: FloatArray
    joined: IntArray


def new_batch_sequence(sequence: IntArray, mask: IntArray, held: FloatArray) -> BatchSequence:
    """Return the state that begins at a schedule.

    Parameters
    ----------
    sequence
        (n * d,) all batches op * d + device, each after those it depends on.
    mask
        (n, d) shards of each batch as bits.
    held
        (d,) bytes of each device.
    """
    (n, d), total = mask.shape, len(sequence)
    return BatchSequence(
        sequence.copy(),
        np.empty(total, np.int64),
        mask.copy(),
        held.copy(),
        np.zeros((n, d)),
        np.zeros((n, d)),
        np.zeros(d),
        np.zeros(d),
        np.zeros(d, np.int64),
        np.zeros(3, np.int64),
        np.zeros(4),
        _Copy(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(d)),
        _Copy(np.empty(total, np.int64), np.empty(total, np.int64), np.empty(d)),
        np.empty(d),
        np.empty(n, np.int64),
    )


@njit(cache=True, nogil=True, inline="always")
def _add_end(a: TimelineArrays, s: BatchSequence, code: int, free: FloatArray) -> float:
    """Append a batch to its device; return when it ends."""
    v, i = code // len(free), code % len(free)
    ready = batch_ready_time(a, v, i, s.mask[v, i], s.mask, s.end)
    over: float = append_start(ready, free[i]) + a.time[v, i, bit_count(s.mask[v, i])]
    s.end[v, i] = over
    free[i] = over
    return over


@njit(cache=True, nogil=True, inline="always")
def _after(a: TimelineArrays, s: BatchSequence, code: int, beyond: int) -> float:
    """Return the longest way from a batch's end to the end of all by way of batches from position `beyond` on."""
    d = s.mask.shape[1]
    v, i = code // d, code % d
    longest = 0.0
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        w = a.succ[q]
        for j in range(d):
            shared = s.mask[w, j] & s.mask[v, i]
            if shared == 0 or s.place[w * d + j] < beyond:
                continue
            need = s.tail[w, j]
            if j != i:
                need += transfer_time(a, v, i, j, bit_count(shared))
            if need > longest:
                longest = need
    return longest


@njit(cache=True, nogil=True)
def begin_batch_pass(a: TimelineArrays, s: BatchSequence) -> None:
    """Put the window at the first position of the sequence.

    Parameters
    ----------
    a
        The problem.
    s
        The sequence and its window, changed in place.
    """
    d, total = s.mask.shape[1], len(s.sequence)
    for at in range(total):
        s.place[s.sequence[at]] = at
    s.free[:] = 0.0
    s.rest[:] = 0.0
    for at in range(total - 1, -1, -1):
        code = s.sequence[at]
        v, i = code // d, code % d
        if s.mask[v, i] != 0:
            s.tail[v, i] = max(_after(a, s, code, 0), s.rest[i]) + a.time[v, i, bit_count(s.mask[v, i])]
            s.rest[i] = s.tail[v, i]
    s.nearest[:] = 0
    s.at[_FIRST], s.at[_EDGE], s.at[_DONE] = 0, 0, -1


@njit(cache=True, nogil=True)
def anneal_batch_windows(
    rng: np.random.Generator, a: TimelineArrays, memory: DeviceMemory, s: BatchSequence, plan: PassPlan, moves: int
) -> bool:
    """Anneal on along a pass, forwards and in place; False when the last window is done.

    Parameters
    ----------
    rng
        Source of randomness.
    a, memory
        The problem, and what limits devices.
    s
        The schedule, after `begin_batch_pass`; calls that follow each other are as one.
    plan
        Windows, moves and temperatures of the pass.
    moves
        Most moves to make.
    """
    total = len(s.sequence)
    width = min(plan.width, total)
    left = moves
    while left > 0:
        lo, hi = s.at[_FIRST], s.at[_FIRST] + width
        if s.at[_DONE] < 0:
            _open_window(a, s, lo, hi, plan)
        now = min(left, plan.moves - s.at[_DONE])
        _anneal(rng, a, memory, s, lo, hi, now, cooling_factor(plan.hot, plan.cold, plan.moves))
        s.at[_DONE] += now
        left -= now
        if s.at[_DONE] < plan.moves:
            return True
        _close_window(s, lo, hi)
        s.at[_DONE] = -1
        if hi == total:
            return False
        s.at[_FIRST] = min(lo + plan.stride, total - width)
    return True


@njit(cache=True, nogil=True)
def end_batch_pass(a: TimelineArrays, s: BatchSequence, width: int) -> float:
    """End a pass along windows of so many positions, wherever it has come to; return the makespan.

    Computes when every batch ends.

    Parameters
    ----------
    a
        The problem.
    s
        The sequence and its window, changed in place.
    width
        Positions of a window.
    """
    d, total = s.mask.shape[1], len(s.sequence)
    if s.at[_DONE] >= 0:
        _close_window(s, s.at[_FIRST], s.at[_FIRST] + min(width, total))
        s.at[_DONE] = -1
    s.free[:] = 0.0
    makespan = 0.0
    for at in range(total):
        code = s.sequence[at]
        if s.mask[code // d, code % d] != 0:
            makespan = max(makespan, _add_end(a, s, code, s.free))
    return makespan


@njit(cache=True, nogil=True)
def _open_window(a: TimelineArrays, s: BatchSequence, lo: int, hi: int, plan: PassPlan) -> None:
    """Bring heads and tails to the sides of the window lo..hi-1, and look at its cost."""
    d, total = s.mask.shape[1], len(s.sequence)
    for at in range(s.at[_EDGE], lo):
        code = s.sequence[at]
        if s.mask[code // d, code % d] != 0:
            _add_end(a, s, code, s.free)
    s.at[_EDGE] = lo
    for i in range(d):
        at = max(s.nearest[i], hi)
        while at < total and (s.sequence[at] % d != i or s.mask[s.sequence[at] // d, i] == 0):
            at += 1
        s.nearest[i] = at
        s.rest[i] = s.tail[s.sequence[at] // d, i] if at < total else 0.0
    cost = _window_cost(a, s, lo, hi)
    s.value[_COST], s.value[_BEST], s.value[_BEFORE], s.value[_TEMPERATURE] = cost, cost, cost, plan.hot
    _copy_out(s, lo, hi, s.best)
    s.at[_DONE] = 0


@njit(cache=True, nogil=True)
def _close_window(s: BatchSequence, lo: int, hi: int) -> None:
    """Put the best of the window in its place; among equal ones the last, so that equal schedules drift."""
    cost = s.value[_COST]
    if cost > s.value[_BEFORE] or cost > s.value[_BEST]:
        _copy_back(s, lo, hi, s.best)


@hot_kernel
def _copy_out(s: BatchSequence, lo: int, hi: int, to: _Copy) -> None:
    """Copy a window out."""
    d = s.mask.shape[1]
    for at in range(hi - lo):
        code = s.sequence[lo + at]
        to.sequence[at] = code
        to.mask[at] = s.mask[code // d, code % d]
    for i in range(d):
        to.held[i] = s.held[i]


@hot_kernel
def _copy_back(s: BatchSequence, lo: int, hi: int, kept: _Copy) -> None:
    """Copy a window back."""
    d = s.mask.shape[1]
    for at in range(hi - lo):
        code = kept.sequence[at]
        s.sequence[lo + at] = code
        s.place[code] = lo + at
        s.mask[code // d, code % d] = kept.mask[at]
    for i in range(d):
        s.held[i] = kept.held[i]


@njit(cache=True, nogil=True, inline="always")
def _window_cost(a: TimelineArrays, s: BatchSequence, lo: int, hi: int) -> float:
    """Return the longest path through positions lo..hi-1, in seconds."""
    d = len(s.free)
    longest = 0.0
    for i in range(d):  # Much faster than a slice.
        s.clock[i] = s.free[i]
    for at in range(lo, hi):
        code = s.sequence[at]
        if s.mask[code // d, code % d] == 0:
            continue
        over = _add_end(a, s, code, s.clock) + _after(a, s, code, hi)
        if over > longest:
            longest = over
    for i in range(d):
        if s.clock[i] + s.rest[i] > longest:
            longest = s.clock[i] + s.rest[i]
    return longest


@hot_kernel
def _anneal(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: BatchSequence,
    lo: int,
    hi: int,
    moves: int,
    cooling: float,
) -> None:
    """Make some moves in the window lo..hi-1."""
    d = len(s.free)
    for _ in range(moves):
        s.value[_TEMPERATURE] *= cooling
        code = s.sequence[lo + int(rng.random() * (hi - lo))]
        v = code // d
        if s.mask[v, code % d] == 0:
            continue
        alone = memory.mate[v] == v
        if d > 1 and rng.random() < (_CHAIN_SHARE if alone else _DEVICE_SHARE):
            taken = _try_chain(rng, a, memory, s, code, lo, hi)
        elif alone and rng.random() < _DEVICE_SHARE and d > 1:
            taken = _try_shards(rng, a, memory, s, code, lo, hi)
        else:
            taken = _try_place(rng, a, s, code, lo, hi)
        if taken and s.value[_COST] < s.value[_BEST]:
            s.value[_BEST] = s.value[_COST]
            _copy_out(s, lo, hi, s.best)


@njit(cache=True, nogil=True, inline="always")
def _evaluate(rng: np.random.Generator, a: TimelineArrays, s: BatchSequence, lo: int, hi: int) -> bool:
    """Return whether the window as it is now is accepted; its cost is then noted."""
    tried = _window_cost(a, s, lo, hi)
    if not accepts(rng, tried, s.value[_COST], s.value[_TEMPERATURE]):
        return False
    s.value[_COST] = tried
    return True


@hot_kernel
def _try_place(rng: np.random.Generator, a: TimelineArrays, s: BatchSequence, code: int, lo: int, hi: int) -> bool:
    """Try a batch at another position."""
    origin = s.place[code]
    left, right = batch_span(a, s.mask, s.place, code, lo, hi)
    place = left + int(rng.random() * (right - left + 1))
    if place == origin:
        return False
    shift(s.sequence, s.place, 1, origin, place)
    if _evaluate(rng, a, s, lo, hi):
        return True
    shift(s.sequence, s.place, 1, place, origin)
    return False


@hot_kernel
def _try_shards(
    rng: np.random.Generator, a: TimelineArrays, memory: DeviceMemory, s: BatchSequence, code: int, lo: int, hi: int
) -> bool:
    """Try shards of a batch on another device."""
    d, num_shards = len(s.free), a.time.shape[2] - 1
    v, i = code // d, code % d
    j = draw_other_device(rng, i, d)
    other = v * d + j
    if s.place[other] < lo or s.place[other] >= hi:
        return False
    given = s.mask[v, i]
    if rng.random() < RUN_SHARE:
        given &= draw_run(rng, num_shards)
        if given == 0:
            return False
    origin, count_j, moved = s.place[other], bit_count(s.mask[v, j]), bit_count(given)
    count_i = bit_count(s.mask[v, i]) - moved
    if not (a.time[v, i, count_i] < np.inf and a.time[v, j, count_j + moved] < np.inf):
        return False
    grown = moved * memory.shard[v] + (memory.weight[v] if count_j == 0 else 0.0)
    if s.held[j] + grown > memory.capacity[j]:
        return False
    s.mask[v, i] ^= given
    s.mask[v, j] |= given
    left, right = batch_span(a, s.mask, s.place, other, lo, hi)
    place = origin
    if count_j == 0 or rng.random() < _NEW_PLACE:
        if rng.random() < _SAME_PLACE:
            place = max(left, min(right, s.place[code]))
        else:
            place = left + int(rng.random() * (right - left + 1))
    if left <= place <= right:
        shift(s.sequence, s.place, 1, origin, place)
        if _evaluate(rng, a, s, lo, hi):
            s.held[i] -= moved * memory.shard[v] + (memory.weight[v] if count_i == 0 else 0.0)
            s.held[j] += grown
            return True
        shift(s.sequence, s.place, 1, place, origin)
    s.mask[v, i] |= given
    s.mask[v, j] ^= given
    return False


@hot_kernel
def _try_chain(
    rng: np.random.Generator, a: TimelineArrays, memory: DeviceMemory, s: BatchSequence, code: int, lo: int, hi: int
) -> bool:
    """Try the same shards of several connected ops on another device."""
    d, num_shards = len(s.free), a.time.shape[2] - 1
    v, i = code // d, code % d
    j = draw_other_device(rng, i, d)
    _copy_out(s, lo, hi, s.kept)
    given = s.mask[v, i]
    if rng.random() < _CHAIN_RUN:
        given &= draw_run(rng, num_shards)
    most = 2 + int(rng.random() * rng.random() * (hi - lo) / d)
    if given != 0:
        count = _connected(rng, a, memory, s, v, i, j, given, most, lo, hi)
        inside = lo <= s.place[v * d + j] < hi
        if (
            inside
            and count > 0
            and _take_over(a, memory, s, count, i, j, given, lo, hi)
            and _evaluate(rng, a, s, lo, hi)
        ):
            return True
    _copy_back(s, lo, hi, s.kept)
    return False


@hot_kernel
def _connected(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: BatchSequence,
    first: int,
    i: int,
    j: int,
    given: int,
    most: int,
    lo: int,
    hi: int,
) -> int:
    """Write `most` ops at most into `joined` that edges connect to the first, and their mates; return how many.

    All have some of the shards `given` on device i, and their batches on i and j are in the window lo..hi-1; 0 where
    those of an op that has to go with one are not.
    """
    d = s.mask.shape[1]
    s.joined[0] = first
    count, head = 1, 0
    while head < count and count < most:
        w = s.joined[head]
        head += 1
        downwards = rng.random() < 0.5
        for turn in range(2):
            indptr, near = (a.succ_indptr, a.succ) if downwards == (turn == 0) else (a.pred_indptr, a.pred)
            for q in range(indptr[w], indptr[w + 1]):
                x = near[q]
                if s.mask[x, i] & given == 0 or count >= most:
                    continue
                if lo <= s.place[x * d + i] < hi and lo <= s.place[x * d + j] < hi:
                    count = add_member(s.joined, count, x)
    for k in range(count):
        w = s.joined[k]
        x = memory.mate[w]
        while x != w:
            if not (lo <= s.place[x * d + i] < hi and lo <= s.place[x * d + j] < hi):
                return 0
            count = add_member(s.joined, count, x)
            x = memory.mate[x]
    return count


@hot_kernel
def _take_over(
    a: TimelineArrays,
    memory: DeviceMemory,
    s: BatchSequence,
    count: int,
    i: int,
    j: int,
    given: int,
    lo: int,
    hi: int,
) -> bool:
    """Give device j the shards `given` that i has of the ops joined; False, with the state spoilt, if it cannot."""
    d = s.mask.shape[1]
    for k in range(count):
        w = s.joined[k]
        moved = s.mask[w, i] & given
        count_i, count_j, shards = bit_count(s.mask[w, i]), bit_count(s.mask[w, j]), bit_count(moved)
        if not (a.time[w, i, count_i - shards] < np.inf and a.time[w, j, count_j + shards] < np.inf):
            return False
        s.held[i] -= shards * memory.shard[w] + (memory.weight[w] if count_i == shards else 0.0)
        s.held[j] += shards * memory.shard[w] + (memory.weight[w] if count_j == 0 else 0.0)
        if count_j == 0:
            # Beside the batch it comes from: what goes before and after that one goes before and after this one.
            here, there = s.place[w * d + j], s.place[w * d + i]
            shift(s.sequence, s.place, 1, here, there if here < there else there + 1)
        s.mask[w, i] ^= moved
        s.mask[w, j] |= moved
    if s.held[j] > memory.capacity[j]:
        return False
    for k in range(count):
        code = s.joined[k] * d + j
        left, right = batch_span(a, s.mask, s.place, code, lo, hi)
        if not left <= s.place[code] <= right:
            return False
    return True
