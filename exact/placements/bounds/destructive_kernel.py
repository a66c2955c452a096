"""Compiled propagation of what a trial makespan leaves: windows, loads of ancestors, intervals, orders, memory.

Let L be the trial, and for op v on device i, with p its time there, ``head`` and ``tail`` as in
:mod:`~rlinit.exact.placements.analysis.time_windows`: in a placement of makespan at most L the op starts in
``[head, L - tail - p]``. Multipliers ``lambda >= 0`` of the devices have the sum 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import NOTABLE, ROUNDING, BoolArray, FloatArray, IntArray
from rlinit.exact.effort import QUOTA
from rlinit.exact.placements.analysis.batches import DataFlow
from rlinit.exact.placements.analysis.open_propagation import carry_open
from rlinit.kernels.compiled import njit

SETTLED, REFUTED, CHANGED, STANDS, STOPPED = 0, 1, 2, 3, 4
"""What a round of propagation comes to, or a search that does not refute: some choice stands, or it was stopped."""


class Trial(NamedTuple):
    """What does not change while makespans are tried: n ops, d devices, g groups.

    ``least`` (n, d) seconds, ``weight`` (d,) multipliers, ``ancestors`` and ``descendants`` (n, words) as bits, 32 a
    word, or (0, 0) where they are not looked at, ``indptr`` (g + 1,) and ``members`` (n,) the ops of each group,
    ``held`` (n,) bytes of an op, ``capacity`` (d,) with room for rounding, ``kind`` (d,) the first of the devices alike
    to each, and ``most_ends`` of intervals on each side. ``lag_ends`` (k, 2) are ops in the order of time, -1 for the
    start and the end, of which ``lag_s`` (k, d, d) are least seconds from start to start by the devices of both.
    """

    least: FloatArray
    weight: FloatArray
    ancestors: IntArray
    descendants: IntArray
    indptr: IntArray
    members: IntArray
    held: FloatArray
    capacity: FloatArray
    kind: IntArray
    most_ends: int
    lag_ends: IntArray
    lag_s: FloatArray


@njit(cache=True, nogil=True)
def is_before(ancestors: IntArray, u: int, v: int) -> bool:
    """Return whether op u leads to op v, as far as is known.

    Parameters
    ----------
    ancestors
        As in `Trial`.
    u, v
        Ops.
    """
    return len(ancestors) > 0 and (ancestors[v, u >> 5] >> (u & 31)) & 1 != 0


@njit(cache=True, nogil=True)
def _drop_beyond(
    able: BoolArray, least: FloatArray, head: FloatArray, tail: FloatArray, group: IntArray, limit: float
) -> int:
    """Forbid what cannot end within the limit, in all of a group: -1 if nothing is left of an op, else how many."""
    n, d = able.shape
    most = limit * (1.0 + ROUNDING)
    dropped = 0
    for v in range(n):
        for i in range(d):
            if able[v, i] and not head[v, i] + least[v, i] + tail[v, i] <= most:
                able[v, i] = False
                dropped += 1
                able[group[v], i] = False
    for v in range(n):
        left = False
        for i in range(d):
            able[v, i] = able[v, i] and able[group[v], i]
            left |= able[v, i]
        if not left:
            return -1
    return dropped


@njit(cache=True, nogil=True)
def _lift(
    known: IntArray, able: BoolArray, weight: FloatArray, least: FloatArray, window: FloatArray, step: float
) -> bool:
    """Raise heads by what leads to each op, or tails by what it leads to; return whether one rose by a step.

    ``head(v) >= h + sum of min_i lambda_i p(u, i)`` over the ancestors u of v that start at h or later, for every h.
    """
    n, d = able.shape
    floor, load = np.full(n, np.inf), np.full(n, np.inf)
    for v in range(n):
        for i in range(d):
            if able[v, i]:
                floor[v] = min(floor[v], window[v, i])
                load[v] = min(load[v], weight[i] * least[v, i] * (1.0 - ROUNDING))
    order = np.argsort(-floor)
    notable = False
    for v in range(n):
        total, row, best = 0.0, known[v], floor[v]
        for u in order:
            if (row[u >> 5] >> (u & 31)) & 1:
                total += load[u]
                best = max(best, floor[u] + total)
        if best > floor[v]:
            notable |= best > floor[v] + step
            for i in range(d):
                window[v, i] = max(window[v, i], best)
    return notable


@njit(cache=True, nogil=True)
def _inside(begin: float, end: float, seconds: float, head: float, latest: float) -> float:
    """Return the least seconds in which [begin, end] holds what starts in [head, latest]."""
    inside = min(min(seconds, end - begin), head + seconds - begin)
    return max(0.0, min(inside, end - latest))


@njit(cache=True, nogil=True)
def _needs(
    trial: Trial,
    begin: float,
    end: float,
    able: BoolArray,
    head: FloatArray,
    latest: FloatArray,
    groups: IntArray,
    need: FloatArray,
    lowest: FloatArray,
) -> tuple[float, int]:
    """Return the least weighted seconds that groups need in an interval, and how many of them may need any.

    Those are put first in `groups`, their seconds by device into `need` (g, d), and the least of these into `lowest`.
    """
    least, indptr, members, weight = trial.least, trial.indptr, trial.members, trial.weight
    in_all, number = 0.0, 0
    for g in groups:
        low, high = np.inf, 0.0
        for i in range(len(weight)):
            need[g, i] = np.inf
            if not able[members[indptr[g]], i]:
                continue
            total = 0.0
            for at in range(indptr[g], indptr[g + 1]):
                v = members[at]
                total += _inside(begin, end, least[v, i], head[v, i], latest[v, i])
            need[g, i] = weight[i] * total
            low, high = min(low, need[g, i]), max(high, need[g, i])
        if high > 0.0:
            groups[number], lowest[g] = g, low
            in_all += low
            number += 1
    return in_all, number


@njit(cache=True, nogil=True)
def _ends(window: FloatArray, able: BoolArray, most: int) -> FloatArray:
    """Return 0 and the distinct least heads (or tails) of ops, sorted; some of them, spread evenly, where too many."""
    n, d = able.shape
    floor = np.zeros(n + 1)
    for v in range(n):
        floor[v] = np.inf
        for i in range(d):
            if able[v, i]:
                floor[v] = min(floor[v], window[v, i])
    floor = np.unique(floor)
    if len(floor) <= most:
        return floor
    picked = np.empty(most)
    for k in range(most):
        picked[k] = floor[k * (len(floor) - 1) // (most - 1)]
    return picked


@njit(cache=True, nogil=True)
def _widest(trial: Trial, able: BoolArray) -> float:
    """Return the most that the choice of a device changes of the weighted seconds of a group."""
    widest = 0.0
    for g in range(len(trial.indptr) - 1):
        for i in range(able.shape[1]):
            total = 0.0
            for v in trial.members[trial.indptr[g] : trial.indptr[g + 1]]:
                if able[v, i]:
                    total += trial.least[v, i]
            widest = max(widest, trial.weight[i] * total)
    return widest


@njit(cache=True, nogil=True)
def _forbid(trial: Trial, able: BoolArray, groups: IntArray, need: FloatArray, lowest: FloatArray, room: float) -> int:
    """Forbid the devices on which a group needs more than its least and the room of an interval; return how many."""
    indptr, members = trial.indptr, trial.members
    forbidden = 0
    for g in groups:
        for i in range(need.shape[1]):
            if need[g, i] < np.inf and need[g, i] - lowest[g] > room:
                forbidden += 1
                for at in range(indptr[g], indptr[g + 1]):
                    able[members[at], i] = False
    return forbidden


@njit(cache=True, nogil=True)
def _energy(trial: Trial, able: BoolArray, head: FloatArray, tail: FloatArray, limit: float) -> int:
    """Hold the energy of intervals against their length: -1 if one needs more, else how many devices were forbidden.

    In ``[a, b]`` device i is busy at most ``b - a``, and an op of it at least what both of its extreme starts have
    inside, so ``sum over groups of min over i of lambda_i overlap <= b - a``. Where the least sum with op v on device i
    instead is above that, v is not there. An interval inside of another has no less room than that one less what it is
    shorter by, and is passed over where this room is above all that a device can change; so are groups that need
    nothing there.
    """
    latest = limit - tail - trial.least
    ends = limit - _ends(tail, able, trial.most_ends)
    widest, size = _widest(trial, able), len(trial.indptr) - 1
    need, lowest, groups = np.empty((size, able.shape[1])), np.empty(size), np.empty(size, np.int64)
    forbidden, later = 0, np.full(len(ends), -np.inf)  # what [a, end] has no less room than, with a added
    for a in _ends(head, able, trial.most_ends):
        groups[:] = np.arange(size)
        number, earlier = size, -np.inf  # what [a, b] has no less room than, less b
        for k in range(len(ends)):
            b = ends[k]
            if b <= a or max(earlier + b, later[k] - a) >= widest:
                continue
            total, number = _needs(trial, a, b, able, head, latest, groups[:number], need, lowest)
            room = (b - a) + ROUNDING * (limit + total) - total
            if room < 0.0:
                return -1
            earlier, later[k] = max(earlier, room - b), room + a
            if room >= widest:
                continue
            fell = _forbid(trial, able, groups[:number], need, lowest, room)
            if fell > 0:  # what is left of other devices needs more
                forbidden, earlier = forbidden + fell, -np.inf
                later[:] = -np.inf
    return forbidden


@njit(cache=True, nogil=True)
def order_ops(
    ops: IntArray, i: int, least: FloatArray, head: FloatArray, tail: FloatArray, limit: float, work: int
) -> int:
    """Put ops of device i in the only order that their windows leave: -1 if there is none, 1 if a window changed.

    Where op w starts no earlier than op v ends at the latest, ``head(w) >= limit - tail(v)``, v is first and no window
    changes, as both fit into theirs. So only ops whose windows overlap are compared.

    Parameters
    ----------
    ops, i
        Those that only device i may run.
    least, head, tail
        (n, d) seconds of each op, and its window, narrowed in place.
    limit
        Seconds.
    work
        Pairs to compare, about.
    """
    most, changed = limit * (1.0 + ROUNDING), 0
    earliest = np.empty(len(ops))
    for a in range(len(ops)):
        earliest[a] = head[ops[a], i]
    by_head = np.argsort(earliest)
    for a in range(len(ops)):
        v = ops[by_head[a]]
        if not head[v, i] + least[v, i] + tail[v, i] <= most:
            return -1
        for b in range(a + 1, len(ops)):
            w = ops[by_head[b]]
            if earliest[by_head[b]] >= most - tail[v, i]:
                break
            work -= 1
            both = least[v, i] + least[w, i]
            v_first = head[v, i] + both + tail[w, i] <= most
            w_first = head[w, i] + both + tail[v, i] <= most
            if v_first and w_first:
                continue
            if not v_first and not w_first:
                return -1
            first, second = (v, w) if v_first else (w, v)
            ready, rest = head[first, i] + least[first, i], least[second, i] + tail[second, i]
            if ready > head[second, i] or rest > tail[first, i]:
                head[second, i], tail[first, i] = max(head[second, i], ready), max(tail[first, i], rest)
                changed = 1
        if work < 0:
            break
    return changed


@njit(cache=True, nogil=True)
def _of_device(i: int, able: BoolArray, least: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the ops with a time that only device i may run, and those that another may run as well."""
    n, d = able.shape
    only, free = np.empty(n, np.int64), np.empty(n, np.int64)
    k, f = 0, 0
    for v in range(n):
        if able[v, i] and least[v, i] > 0.0:
            number = 0
            for j in range(d):
                number += able[v, j]
            if number == 1:
                only[k] = v
                k += 1
            else:
                free[f] = v
                f += 1
    return only[:k], free[:f]


@njit(cache=True, nogil=True)
def _one_device(
    i: int, able: BoolArray, least: FloatArray, head: FloatArray, tail: FloatArray, group: IntArray, limit: float
) -> int:
    """Hold the ops that only device i may run against its intervals; forbid it those that do not fit beside them.

    -1 if they do not fit themselves, else how many windows and devices changed.
    """
    only, free = _of_device(i, able, least)
    work = QUOTA // able.shape[1]
    changed = order_ops(only, i, least, head, tail, limit, work)
    if changed < 0:
        return -1
    widest = 0.0
    for v in free:
        widest = max(widest, least[v, i])
    stride = 1 + len(only) // max(1, int((work / max(1, len(only) + len(free))) ** 0.5))
    for a in only[::stride]:
        begin = head[a, i]
        for b in only[::stride]:
            end = limit - tail[b, i]
            if end <= begin:
                continue
            room = (end - begin) + ROUNDING * limit
            for v in only:
                room -= _inside(begin, end, least[v, i], head[v, i], limit - tail[v, i] - least[v, i])
            if room < 0.0:
                return -1
            if room >= widest:
                continue
            for v in free:
                latest = limit - tail[v, i] - least[v, i]
                if able[v, i] and _inside(begin, end, least[v, i], head[v, i], latest) > room:
                    able[v, i] = able[group[v], i] = False
                    changed += 1
    return changed


@njit(cache=True, nogil=True)
def _memory(trial: Trial, able: BoolArray) -> int:
    """Hold what is certain to be on each device against its capacity: -1 if it is too much, else how many fell."""
    indptr, members = trial.indptr, trial.members
    fell, left = 0, 0.0
    for i in range(able.shape[1]):
        if trial.capacity[i] == np.inf:
            continue
        for certain in (True, False):
            room = trial.capacity[i] if certain else left
            for g in range(len(indptr) - 1):
                own = members[indptr[g] : indptr[g + 1]]
                if not able[own[0], i]:
                    continue
                alone, need = able[own[0]].sum() == 1, trial.held[own].sum()
                if certain and alone:
                    room -= need
                elif not certain and not alone and need * (1.0 - ROUNDING) > room:
                    fell += 1
                    for v in own:
                        able[v, i] = False
            left = room + ROUNDING * trial.capacity[i]
            if left < 0.0:
                return -1
    return fell


@njit(cache=True, nogil=True)
def _carry_lags(trial: Trial, able: BoolArray, head: FloatArray, tail: FloatArray) -> None:
    """Raise heads and tails by what is known of the time between ops: ``start(b) - start(a) >= lag(x_a, x_b)``.

    At the start and the end there is device 0 alone.
    """
    least, d, k = trial.least, able.shape[1], len(trial.lag_ends)
    for at in range(k):
        a, b = trial.lag_ends[at]
        for j in range(d):
            if b < 0 or not able[b, j]:
                continue
            soonest = np.inf
            for i in range(d if a >= 0 else 1):
                if a < 0 or able[a, i]:
                    soonest = min(soonest, (head[a, i] if a >= 0 else 0.0) + trial.lag_s[at, i, j])
            head[b, j] = max(head[b, j], soonest)
    for at in range(k - 1, -1, -1):
        a, b = trial.lag_ends[at]
        for i in range(d):
            if a < 0 or not able[a, i]:
                continue
            rest = np.inf
            for j in range(d if b >= 0 else 1):
                if b < 0 or able[b, j]:
                    rest = min(rest, trial.lag_s[at, i, j] + (least[b, j] + tail[b, j] if b >= 0 else 0.0))
            tail[a, i] = max(tail[a, i], rest - least[a, i])


@njit(cache=True, nogil=True)
def tighten(
    flow: DataFlow,
    trial: Trial,
    able: BoolArray,
    head: FloatArray,
    tail: FloatArray,
    limit: float,
    pairs: IntArray,
) -> int:
    """Narrow windows and forbid devices in one round of all rules.

    Parameters
    ----------
    flow, trial
        The problem.
    able, head, tail
        (n, d) which device may run an op, and its window, changed in place.
    limit
        Seconds.
    pairs
        (k, 2) ops of one device each, the first of which runs before the second; -1 for none.

    Returns
    -------
    `REFUTED`, `CHANGED` where another round may narrow more, or `SETTLED`.
    """
    least, group = trial.least, flow.group
    d = able.shape[1]
    fell = 1
    while fell > 0:
        for v, w in pairs:
            for i in range(d):
                if v >= 0 and able[v, i] and able[w, i]:
                    head[w, i] = max(head[w, i], head[v, i] + least[v, i])
                    tail[v, i] = max(tail[v, i], least[w, i] + tail[w, i])
        _carry_lags(trial, able, head, tail)
        carry_open(flow, able, least, head, tail)
        fell = _drop_beyond(able, least, head, tail, group, limit)
        if fell < 0:
            return REFUTED
    changed = False
    if len(trial.ancestors) > 0:
        changed |= _lift(trial.ancestors, able, trial.weight, least, head, NOTABLE * limit)
        changed |= _lift(trial.descendants, able, trial.weight, least, tail, NOTABLE * limit)
    for i in range(d):
        fell = _one_device(i, able, least, head, tail, group, limit)
        if fell < 0:
            return REFUTED
        changed |= fell > 0
    if _drop_beyond(able, least, head, tail, group, limit) < 0:
        return REFUTED
    fell, full = _energy(trial, able, head, tail, limit), _memory(trial, able)
    if fell < 0 or full < 0 or _drop_beyond(able, least, head, tail, group, limit) < 0:
        return REFUTED
    return CHANGED if changed or fell + full > 0 else SETTLED
