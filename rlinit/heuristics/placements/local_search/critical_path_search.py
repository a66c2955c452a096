"""Compiled tabu search over (sequence, device) of whole ops: ops of critical paths move to other devices and places.

An op is *critical* where the longest path through it is the makespan. A step takes some critical ops out of the
schedule in turn, estimates the longest path through each at every place between its producers and its consumers on
every device, and makes the best of those moves, whether or not it is better; an op that moved stays for some steps. Ops
that have to be on the same device move to another one together.

References
----------
Nowicki, Smutnicki: A fast taboo search algorithm for the job shop problem, Management Science 42, 1996: critical paths.
Balas, Vazacopoulos: Guided local search with shifting bottleneck for job shop scheduling, Management Science 44, 1998:
estimates of insertions from heads and tails. Mastrolilli, Gambardella: Effective neighbourhood functions for the
flexible job shop problem, Journal of Scheduling 3, 2000: reinsertion on any machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.annealing import DeviceMemory
from rlinit.kernels.placements.slots import append_start, hot_kernel, ready_time, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays

_STEP, _WORK = 0, 1
"""Entries of `CriticalSearch.at`."""

_PAIR_COST = 8
"""Ops in a pass of windows that take about as long as a pair of op and device here."""

_VALUE, _BEST = 0, 1
"""Entries of `CriticalSearch.value`."""


class CriticalSearch(NamedTuple):
    """A search's schedule and the best so far; n whole ops, d devices.

    `sequence` (n,) is a topological order, `place` (n,) the position of each op, `device` (n,), `held` (d,) bytes.
    `line` (d, n) and `size` (d,) are each device's ops in that order, `spot` (n,) where an op is in its line. `end` and
    `tail` (n,) are seconds from the start of all to an op's end, and from its start to the end of all. `until` (n,) is
    the step before which an op stays where it is. `best_sequence`, `best_device` (n,) are the best, `value` (2,)
    the makespan and the least so far, `at` (2,) the number of the step and the work so far: pairs of op and device that
    were looked at, and ops whose times were computed anew. `stale` (n,) and `critical` (n,) are scratch.
    """

    sequence: IntArray
    place: IntArray
    device: IntArray
    held: FloatArray
    line: IntArray
    size: IntArray
    spot: IntArray
    end: FloatArray
    tail: FloatArray
    until: IntArray
    best_sequence: IntArray
    best_device: IntArray
    value: FloatArray
    at: IntArray
    stale: IntArray
    critical: IntArray


@njit(cache=True, nogil=True)
def new_critical_search(a: TimelineArrays, sequence: IntArray, device: IntArray, held: FloatArray) -> CriticalSearch:
    """Return a search that begins at a schedule.

    Parameters
    ----------
    a
        The problem; the last time of an op on a device is that of the whole op.
    sequence, device
        (n,) ops in a topological order, and the device of each op.
    held
        (d,) bytes of each device.
    """
    n, d = len(sequence), len(held)
    place, spot = np.empty(n, np.int64), np.empty(n, np.int64)
    size, line = np.zeros(d, np.int64), np.zeros((d, n), np.int64)
    for at in range(n):
        v = sequence[at]
        place[v] = at
        i = device[v]
        line[i, size[i]] = v
        spot[v] = size[i]
        size[i] += 1
    s = CriticalSearch(
        sequence.copy(),
        place,
        device.copy(),
        held.copy(),
        line,
        size,
        spot,
        np.zeros(n),
        np.zeros(n),
        np.zeros(n, np.int64),
        sequence.copy(),
        device.copy(),
        np.zeros(2),
        np.zeros(2, np.int64),
        np.ones(n, np.int64),
        np.empty(n, np.int64),
    )
    _update_ends(a, s, 0, n)
    s.stale[:] = 1
    _update_tails(a, s, n - 1, n)
    s.value[:] = s.end.max()
    return s


@hot_kernel
def _update_ends(a: TimelineArrays, s: CriticalSearch, first: int, waiting: int) -> None:
    """Bring `end` up to date from a position on, where `waiting` ops are marked as stale."""
    at, n = first, len(s.sequence)
    while waiting > 0 and at < n:
        v = s.sequence[at]
        at += 1
        if s.stale[v] == 0:
            continue
        s.stale[v] = 0
        waiting -= 1
        s.at[_WORK] += 1
        i, k = s.device[v], s.spot[v]
        over = ready_time(a, v, i, s.device, s.end)
        if k > 0:
            over = append_start(over, s.end[s.line[i, k - 1]])
        over += a.time[v, i, -1]
        if over == s.end[v]:
            continue
        s.end[v] = over
        if k + 1 < s.size[i]:
            waiting += _mark(s, s.line[i, k + 1])
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            waiting += _mark(s, a.succ[q])


@hot_kernel
def _update_tails(a: TimelineArrays, s: CriticalSearch, last: int, waiting: int) -> None:
    """Bring `tail` up to date from a position back, where `waiting` ops are marked as stale."""
    at = last
    while waiting > 0 and at >= 0:
        v = s.sequence[at]
        at -= 1
        if s.stale[v] == 0:
            continue
        s.stale[v] = 0
        waiting -= 1
        s.at[_WORK] += 1
        i, k = s.device[v], s.spot[v]
        over = _seconds_after(a, s, v, i)
        if k + 1 < s.size[i]:
            over = append_start(over, s.tail[s.line[i, k + 1]])
        over += a.time[v, i, -1]
        if over == s.tail[v]:
            continue
        s.tail[v] = over
        if k > 0:
            waiting += _mark(s, s.line[i, k - 1])
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            waiting += _mark(s, a.pred[q])


@njit(cache=True, nogil=True, inline="always")
def _mark(s: CriticalSearch, v: int) -> int:
    """Mark an op as stale; return 1 where it was not."""
    fresh: int = 1 - s.stale[v]
    s.stale[v] = 1
    return fresh


@njit(cache=True, nogil=True, inline="always")
def _seconds_after(a: TimelineArrays, s: CriticalSearch, v: int, i: int) -> float:
    """Return the seconds from the end of v, were it on device i, to the end of all by way of its consumers."""
    longest = 0.0
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        w = a.succ[q]
        left = s.tail[w]
        if s.device[w] != i:
            left += transfer_time(a, v, i, s.device[w], 1)
        if left > longest:
            longest = left
    return longest


@hot_kernel
def _collect_critical(s: CriticalSearch, a: TimelineArrays) -> int:
    """Write the critical ops into `critical`; return how many."""
    least = s.value[_VALUE] * (1.0 - ROUNDING)
    count = 0
    for v in range(len(s.sequence)):
        if s.end[v] + s.tail[v] - a.time[v, s.device[v], -1] >= least:
            s.critical[count] = v
            count += 1
    return count


@hot_kernel
def _best_on_other(
    a: TimelineArrays, s: CriticalSearch, v: int, i: int, left: int, right: int, limit: float
) -> tuple[float, int]:
    """Return the least estimate for v on another device i, and where in its line; ``inf`` where none is under `limit`.

    `left` and `right` are the positions between which v may be.
    """
    ready, after = ready_time(a, v, i, s.device, s.end), _seconds_after(a, s, v, i)
    length = a.time[v, i, -1]
    if ready + length + after >= limit:
        return np.inf, 0
    low, high = 0, s.size[i]
    while low < high:  # the first of the line behind `left`
        middle = (low + high) // 2
        if s.place[s.line[i, middle]] < left:
            low = middle + 1
        else:
            high = middle
    best, spot = limit, -1
    begin = ready
    if low > 0:
        begin = append_start(begin, s.end[s.line[i, low - 1]])
    for k in range(low, s.size[i] + 1):
        over = begin + length
        if over + after >= best:
            break  # it can only begin later from here on
        if k < s.size[i]:
            x = s.line[i, k]
            through = over + max(after, s.tail[x])
            if through < best:
                best, spot = through, k
            if s.place[x] > right:
                break
            begin = append_start(begin, s.end[x])
        elif over + after < best:
            best, spot = over + after, k
    return (best, spot) if spot >= 0 else (np.inf, 0)


@hot_kernel
def _best_on_same(
    a: TimelineArrays, s: CriticalSearch, v: int, left: int, right: int, limit: float
) -> tuple[float, int]:
    """Return the least estimate for v elsewhere on its device, and the spot it takes; see `_best_on_other`."""
    i, at = s.device[v], s.spot[v]
    ready, after = ready_time(a, v, i, s.device, s.end), _seconds_after(a, s, v, i)
    length = a.time[v, i, -1]
    best, spot = limit, -1
    begin = s.end[s.line[i, at - 1]] if at > 0 else 0.0
    for k in range(at + 1, s.size[i]):  # behind x, which then begins without v
        x = s.line[i, k]
        if s.place[x] > right:
            break
        begin = append_start(ready_time(a, x, i, s.device, s.end), begin) + a.time[x, i, -1]
        rest = after
        if k + 1 < s.size[i]:
            rest = max(rest, s.tail[s.line[i, k + 1]])
        through = append_start(ready, begin) + length + rest
        if through < best:
            best, spot = through, k
        if begin + length + after >= best:
            break
    rest = s.tail[s.line[i, at + 1]] if at + 1 < s.size[i] else 0.0
    for k in range(at - 1, -1, -1):  # before x, which then ends without v
        x = s.line[i, k]
        if s.place[x] < left:
            break
        rest = max(_seconds_after(a, s, x, i), rest) + a.time[x, i, -1]
        begin = ready
        if k > 0:
            begin = append_start(begin, s.end[s.line[i, k - 1]])
        through = begin + length + max(after, rest)
        if through < best:
            best, spot = through, k
        if ready + length + rest >= best:
            break
    return (best, spot) if spot >= 0 else (np.inf, 0)


@hot_kernel
def _range_of(a: TimelineArrays, s: CriticalSearch, v: int) -> tuple[int, int]:
    """Return the first and the last position that v may have between its producers and its consumers."""
    left, right = 0, len(s.sequence) - 1
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        left = max(left, s.place[a.pred[q]] + 1)
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        right = min(right, s.place[a.succ[q]] - 1)
    return left, right


@hot_kernel
def _best_together(a: TimelineArrays, memory: DeviceMemory, s: CriticalSearch, v: int, j: int, limit: float) -> float:
    """Return the longest path through v or an op that shares its device, estimated with all of them on another one.

    Each is estimated with the others where they are in the sequence; ``inf`` where they do not fit, or not under
    `limit`.
    """
    i, u, need, able = s.device[v], v, 0.0, True
    while able:
        able = a.time[u, j, -1] < np.inf
        need += memory.weight[u] + memory.shard[u]
        s.device[u] = j
        u = memory.mate[u]
        if u == v:
            break
    longest = 0.0 if able and s.held[j] + need <= memory.capacity[j] else np.inf
    while longest < limit:
        s.at[_WORK] += 1
        left, right = _range_of(a, s, u)
        through, _ = _best_on_other(a, s, u, j, left, right, limit)
        longest = max(longest, through)
        u = memory.mate[u]
        if u == v:
            break
    u = v
    while s.device[u] == j:
        s.device[u] = i
        u = memory.mate[u]
    return longest


@hot_kernel
def _move_together(a: TimelineArrays, memory: DeviceMemory, s: CriticalSearch, v: int, j: int) -> None:
    """Put v, and all that have to be on its device, on device j at their best spots, and bring all up to date."""
    u, waiting = v, 0
    while s.device[u] != j:
        need = memory.weight[u] + memory.shard[u]
        s.held[s.device[u]] -= need
        s.held[j] += need
        waiting += _take_out(s, u)
        s.device[u] = j
        u = memory.mate[u]
    while True:
        left, right = _range_of(a, s, u)
        _, k = _best_on_other(a, s, u, j, left, right, np.inf)
        # Where in the sequence: behind the op that will be before it, or before the one behind it.
        old = target = s.place[u]
        if k < s.size[j] and s.place[s.line[j, k]] <= right:
            target = s.place[s.line[j, k]]
            target -= target > old
        elif k > 0 and s.place[s.line[j, k - 1]] >= left:
            target = s.place[s.line[j, k - 1]]
            target += target < old
        waiting += _put_in(a, s, u, k, target)
        u = memory.mate[u]
        if u == v:
            break
    _refresh(a, s, waiting)


@hot_kernel
def _move_along(a: TimelineArrays, s: CriticalSearch, v: int, k: int) -> None:
    """Put v at another spot of its line, as numbered with v in it, and bring all up to date."""
    target = s.place[s.line[s.device[v], k]]
    waiting = _take_out(s, v)
    _refresh(a, s, waiting + _put_in(a, s, v, k, target))


@hot_kernel
def _take_out(s: CriticalSearch, v: int) -> int:
    """Take v out of its line; return how many ops became stale."""
    i, at = s.device[v], s.spot[v]
    waiting = _mark(s, v)
    if at + 1 < s.size[i]:
        waiting += _mark(s, s.line[i, at + 1])
    if at > 0:
        waiting += _mark(s, s.line[i, at - 1])
    for x in range(at, s.size[i] - 1):
        s.line[i, x] = s.line[i, x + 1]
        s.spot[s.line[i, x]] = x
    s.size[i] -= 1
    return waiting


@hot_kernel
def _put_in(a: TimelineArrays, s: CriticalSearch, v: int, k: int, target: int) -> int:
    """Put v at spot k of its device's line, and at a place of the sequence; return how many ops became stale."""
    j, waiting = s.device[v], 0
    for x in range(s.size[j], k, -1):
        s.line[j, x] = s.line[j, x - 1]
        s.spot[s.line[j, x]] = x
    s.line[j, k] = v
    s.spot[v] = k
    s.size[j] += 1
    shift(s.sequence, s.place, 1, s.place[v], target)
    if k + 1 < s.size[j]:
        waiting += _mark(s, s.line[j, k + 1])
    if k > 0:
        waiting += _mark(s, s.line[j, k - 1])
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        waiting += _mark(s, a.succ[q])
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        waiting += _mark(s, a.pred[q])
    return waiting


@hot_kernel
def _refresh(a: TimelineArrays, s: CriticalSearch, waiting: int) -> None:
    """Recompute ends and tails around stale ops."""
    n = len(s.sequence)
    low, high, count = n, -1, 0
    for at in range(n):
        if s.stale[s.sequence[at]] == 1:
            s.critical[count] = s.sequence[at]
            count += 1
            low, high = min(low, at), at
            if count == waiting:
                break
    _update_ends(a, s, low, waiting)
    for x in range(count):
        s.stale[s.critical[x]] = 1
    _update_tails(a, s, high, waiting)
    longest = 0.0
    for v in range(n):
        longest = max(longest, s.end[v])
    s.value[_VALUE] = longest


@njit(cache=True, nogil=True)
def tabu_steps(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: CriticalSearch,
    steps: int,
    sample: int,
    tenure: int,
) -> float:
    """Make some steps; return the least makespan so far.

    Parameters
    ----------
    rng
        Source of randomness.
    a, memory
        The problem, every op whole, and what limits devices.
    s
        The search; calls that follow each other are as one.
    steps
        Moves to make.
    sample
        Critical ops looked at in a step, at least 1.
    tenure
        Steps for which an op that moved stays, at least; at most twice as many.
    """
    d = len(s.held)
    for _ in range(steps):
        s.at[_STEP] += 1
        count = _collect_critical(s, a)
        least, op, to, spot = np.inf, -1, 0, 0
        s.at[_WORK] += min(sample, count)
        for drawn in range(min(sample, count)):
            other = drawn + int(rng.random() * (count - drawn))
            v = s.critical[other]
            s.critical[other] = s.critical[drawn]
            s.critical[drawn] = v
            limit = least
            if s.until[v] > s.at[_STEP]:
                limit = min(least, s.value[_BEST])
            left, right = _range_of(a, s, v)
            i = s.device[v]
            through, k = _best_on_same(a, s, v, left, right, limit)
            if through < limit:
                least, op, to, spot, limit = through, v, i, k, through
            for j in range(d):
                if j != i:
                    through = _best_together(a, memory, s, v, j, limit)
                    if through < limit:
                        least, op, to, limit = through, v, j, through
        if op < 0:
            continue
        until = s.at[_STEP] + tenure + int(rng.random() * tenure)
        s.until[op] = until
        if to == s.device[op]:
            _move_along(a, s, op, spot)
        else:
            _move_together(a, memory, s, op, to)
            u = memory.mate[op]
            while u != op:
                s.until[u] = until
                u = memory.mate[u]
        if s.value[_VALUE] < s.value[_BEST]:
            s.value[_BEST] = s.value[_VALUE]
            s.best_sequence[:] = s.sequence
            s.best_device[:] = s.device
    best: float = s.value[_BEST]
    return best


def work_of(s: CriticalSearch) -> int:
    """Return the work of a search so far, in ops placed in windows that take about as long."""
    return _PAIR_COST * int(s.at[_WORK])
