"""One stage filled as well as it can be under a limit of cost, and whole pipelines filled stage after stage.

What only grows of a load's cost is held against the limit before an op is added, the whole cost before a load is
accepted.

References
----------
Hoffmann: Assembly line balancing with a precedence matrix, Management Science 9, 1963 (one station at a time, all
loads enumerated). Fleszar, Hindi: An enumerative heuristic and reduction methods for the assembly line balancing
problem, European Journal of Operational Research 145, 2003 (both ends).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.heuristics.stages.filling.stage_state import (
    COST,
    GROWN,
    SCORE,
    FillRule,
    StageState,
    add,
    fits,
    place,
    remove,
    reset,
)
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays

_CANDIDATES = 16
"""Candidates that do not fit, or ops that a dive begins with, that take about as long as one load."""

_REOPENED = 4
"""Ops that a dive has added last and that are chosen again, all ways of it, where its load is not full."""

_CLOSING_LOADS = 200
"""Loads looked at for that."""


class Loads(NamedTuple):
    """The best loads of one stage, w of them.

    Parameters
    ----------
    score, cost
        (w,) -inf where there is none.
    sign
        (w,) exclusive or of the ops' keys.
    size, member
        (w,) number of ops, and (w, n) the ops.
    key
        (n,) random bits of each op.
    """

    score: FloatArray
    cost: FloatArray
    sign: NDArray[np.uint64]
    size: IntArray
    member: NDArray[np.int32]
    key: NDArray[np.uint64]


@njit(cache=True, nogil=True)
def new_loads(width: int, key: NDArray[np.uint64]) -> Loads:
    """Return room for the best `width` loads.

    Parameters
    ----------
    width
        How many.
    key
        (n,) random bits of each op.
    """
    return Loads(
        np.full(width, -np.inf),
        np.full(width, np.inf),
        np.zeros(width, np.uint64),
        np.zeros(width, np.int64),
        np.zeros((width, len(key)), np.int32),
        key,
    )


@njit(cache=True, nogil=True)
def _keep(loads: Loads, score: float, cost: float, sign: np.uint64, chosen: IntArray, size: int) -> None:
    """Keep a load if it is among the best and not there yet."""
    worst = 0
    for i in range(len(loads.score)):
        if loads.score[i] > -np.inf and loads.sign[i] == sign:
            return
        if loads.score[i] < loads.score[worst]:
            worst = i
    if score > loads.score[worst]:
        loads.score[worst] = score
        loads.cost[worst] = cost
        loads.sign[worst] = sign
        loads.size[worst] = size
        for i in range(size):
            loads.member[worst, i] = chosen[i]


@njit(cache=True, nogil=True)
def _candidates(s: StageState, forward: bool) -> int:
    """List what may come next, by falling key; return how many."""
    count = 0
    waiting = s.before if forward else s.behind
    for v in range(len(s.placed)):
        if s.placed[v] == 0 and waiting[v] == 0:
            s.queue[count] = v
            count += 1
    by_key = np.argsort(-s.key[s.queue[:count]], kind="mergesort")
    s.queue[:count] = s.queue[:count][by_key]
    return count


@njit(cache=True, nogil=True)
def _released(a: StageArrays, s: StageState, forward: bool, v: int, count: int) -> int:
    """Append the ops that waited for v alone to the candidates; return how many there are then.

    Those placed from the other end wait for nothing any more, and are done.
    """
    row = a.succ if forward else a.pred
    indptr = a.succ_indptr if forward else a.pred_indptr
    waiting = s.before if forward else s.behind
    for e in range(indptr[v], indptr[v + 1]):
        if waiting[row[e]] == 0 and s.placed[row[e]] == 0:
            s.queue[count] = row[e]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _enumerate(
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rule: FillRule,
    c: int,
    limit: float,
    density: float,
    base: int,
    cap: int,
) -> int:
    """Look at loads depth first, each once, at most `cap` of them; return how many were looked at.

    They begin with the first `base` ops that are chosen and in the load. Candidates that do not fit count as well,
    `_CANDIDATES` of them as a load.

    Candidates stand in a list to which released ops are appended; a load is the ops chosen from it in rising position.
    A part of a load is given up where even a full stage at `density` (value per second) would not be among the best.
    """
    s.length[base] = _candidates(s, rule.forward)
    s.start[base] = 0
    s.saved[base] = s.now
    depth, visited, passed = base, 0, 0
    sign = np.uint64(0)
    for i in range(base):
        sign ^= loads.key[s.chosen[i]]
    while depth >= base:
        at = s.start[depth]
        if at < s.length[depth] and visited < cap:
            s.start[depth] = at + 1
            v = s.queue[at]
            if not fits(a, s, rule.forward, c, limit, v):
                passed += 1
                if passed % _CANDIDATES == 0:
                    visited += 1
                continue
            add(a, s, rule, c, v)
            visited += 1
            sign ^= loads.key[v]
            s.chosen[depth] = v
            depth += 1
            s.length[depth] = _released(a, s, rule.forward, v, s.length[depth - 1])
            s.start[depth] = at + 1
            s.saved[depth] = s.now
            if s.now[COST] <= limit:
                _keep(loads, s.now[SCORE], s.now[COST], sign, s.chosen, depth)
                if _is_full(loads, rule, limit):
                    visited = cap
            if s.now[SCORE] + density * (limit - s.now[GROWN]) <= loads.score.min():
                s.start[depth] = s.length[depth]
        else:
            depth -= 1
            if depth >= base:
                v = s.chosen[depth]
                remove(a, s, rule.forward, v)
                sign ^= loads.key[v]
                s.now[:] = s.saved[depth]
    return visited


@njit(cache=True, nogil=True)
def _is_full(loads: Loads, rule: FillRule, limit: float) -> bool:
    """Return whether the one load that is looked for is as full as it need be; with a limit of 0 none is."""
    full = rule.full * limit * (1.0 - 2.0 * ROUNDING)
    return len(loads.cost) == 1 and loads.score[0] > -np.inf and loads.cost[0] >= full > 0.0


@njit(cache=True, nogil=True)
def _sift(heap: IntArray, key: FloatArray, count: int, v: int) -> None:
    """Push v onto a binary heap of `count` ops, the largest key on top."""
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        if key[heap[parent]] >= key[v]:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = v


@njit(cache=True, nogil=True)
def _pop(heap: IntArray, key: FloatArray, count: int) -> int:
    """Return the op with the largest key and take it off a heap of `count` ops."""
    top = heap[0]
    v = heap[count - 1]
    i = 0
    while 2 * i + 1 < count - 1:
        child = 2 * i + 1
        if child + 1 < count - 1 and key[heap[child + 1]] > key[heap[child]]:
            child += 1
        if key[heap[child]] <= key[v]:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = v
    return int(top)


@njit(cache=True, nogil=True)
def dive(
    a: StageArrays, s: StageState, loads: Loads, rule: FillRule, c: int, limit: float, density: float, closing: int
) -> int:
    """Fill greedily by key, keep the best part of the load on the way, and take it out again; return the loads seen.

    Where that is not full, the ops added last are chosen anew in all ways: what is left open is closed exactly.

    Parameters
    ----------
    a
        The problem.
    s
        What is placed, and the keys of ops; no load is under construction.
    loads
        Receives the load if it is among the best.
    rule
        The side, and what ops are worth.
    c
        Class of the stage.
    limit
        Seconds that a load may cost.
    density
        Value per second that no load exceeds.
    closing
        How many of those ways to look at.
    """
    waiting = s.before if rule.forward else s.behind
    heap = s.queue
    count = 0
    for v in range(len(s.placed)):
        if s.placed[v] == 0 and waiting[v] == 0:
            _sift(heap, s.key, count, v)
            count += 1
    size = 0
    best, best_cost, best_size, best_sign = -np.inf, np.inf, 0, np.uint64(0)
    sign = np.uint64(0)
    while count > 0:
        v = _pop(heap, s.key, count)
        count -= 1
        if not fits(a, s, rule.forward, c, limit, v):
            continue
        s.saved[size] = s.now
        add(a, s, rule, c, v)
        s.chosen[size] = v
        size += 1
        sign ^= loads.key[v]
        row = a.succ if rule.forward else a.pred
        indptr = a.succ_indptr if rule.forward else a.pred_indptr
        for e in range(indptr[v], indptr[v + 1]):
            if waiting[row[e]] == 0 and s.placed[row[e]] == 0:
                _sift(heap, s.key, count, row[e])
                count += 1
        if s.now[COST] <= limit and s.now[SCORE] >= best:
            best, best_cost, best_size, best_sign = s.now[SCORE], s.now[COST], size, sign
    if best_size > 0:
        _keep(loads, best, best_cost, best_sign, s.chosen, best_size)
    work, base = size, size - _REOPENED
    if closing > 0 and base > 0 and not _is_full(loads, rule, limit):
        for i in range(size - 1, base - 1, -1):
            remove(a, s, rule.forward, s.chosen[i])
        s.now[:] = s.saved[base]
        work += _enumerate(a, s, loads, rule, c, limit, density, base, closing)
        size = base
    for i in range(size - 1, -1, -1):
        remove(a, s, rule.forward, s.chosen[i])
    s.now[:] = 0.0
    return work


@njit(cache=True, nogil=True)
def fill_stage(
    rng: np.random.Generator, a: StageArrays, s: StageState, loads: Loads, rule: FillRule, c: int, limit: float
) -> int:
    """Find the best loads of a stage of class c that cost at most `limit`; return the loads looked at.

    What is placed is left as it was. Loads of positive cost or size alone are listed in `loads`, best anywhere.

    Parameters
    ----------
    rng
        For the dives.
    a
        The problem.
    s
        What is placed; left as it was.
    loads
        Receives the loads.
    rule
        How to fill.
    c
        Class of the stage.
    limit
        Seconds that a load may cost.
    """
    loads.score[:] = -np.inf
    s.now[:] = 0.0
    limit *= 1.0 + ROUNDING
    density = 0.0
    spread = 0.0
    lowest, highest = np.inf, -np.inf
    for v in range(len(s.placed)):
        s.key[v] = rule.priority[v]
        if s.placed[v] == 0 and a.work[c, v] <= limit:
            lowest, highest = min(lowest, rule.priority[v]), max(highest, rule.priority[v])
            if rule.value[v] > density * a.work[c, v]:
                density = rule.value[v] / a.work[c, v] if a.work[c, v] > 0 else np.inf
    if highest < lowest:
        return 0
    for t in range(len(rule.penalty)):
        if rule.penalty[t] > 0:
            density = np.inf
            break
    spread = highest - lowest
    work = _enumerate(a, s, loads, rule, c, limit, density, 0, rule.cap) if rule.cap > 0 else 0
    s.now[:] = 0.0
    for i in range(rule.dives):
        if _is_full(loads, rule, limit):
            break
        if i > 0 or rule.noise > 0:
            for v in range(len(s.placed)):
                s.key[v] = rule.priority[v] + rule.noise * spread * rng.standard_normal()
        work += dive(a, s, loads, rule, c, limit, density, _CLOSING_LOADS) + len(s.placed) // _CANDIDATES
    return work


class Line(NamedTuple):
    """A pipeline that is being filled from its ends.

    Parameters
    ----------
    stage, classes
        (n,) stage of each op that is placed, (k,) class of each stage that is filled.
    room
        (c,) stages of each class that are left.
    now
        (3,) the first and the last stage that is not filled, and the ops left over.
    """

    stage: IntArray
    classes: IntArray
    room: IntArray
    now: IntArray


@njit(cache=True, nogil=True)
def new_line(a: StageArrays, s: StageState, num_stages: int, class_count: IntArray) -> Line:
    """Return a line in which no stage is filled, and take all ops out of the state.

    Parameters
    ----------
    a, s
        The problem, and what is placed.
    num_stages
        Stages k.
    class_count
        (c,) stages of each class.
    """
    reset(a, s)
    n = len(a.param)
    return Line(
        np.zeros(n, np.int64),
        np.zeros(num_stages, np.int64),
        class_count.copy(),
        np.array([0, num_stages - 1, n]),
    )


@njit(cache=True, nogil=True)
def fill_line(
    rng: np.random.Generator,
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rules: tuple[FillRule, FillRule],
    limit: float,
    front: float,
    price: FloatArray,
    fixed: IntArray,
    line: Line,
    quota: int,
) -> int:
    """Fill stages of a line until all are filled, nothing is left, or `quota` is spent; return the loads looked at.

    Each stage is taken from the front of what is left with probability `front`, else from its back. Where classes come
    in no order (`fixed` is empty), each class with stages left is filled and the one that loses least counts: the value
    its stage could hold, `price` times the limit, less the value of its load. Where no class takes anything the line
    ends with ops left over and no stage left.

    Parameters
    ----------
    rng
        For the dives and the sides.
    a
        The problem.
    s, loads
        Room to work in.
    rules
        How to fill from the front, and from the back.
    limit
        Seconds that a stage may cost.
    front
        Probability in [0, 1].
    price
        (c,) worth of a second on each class.
    fixed
        (k,) class of each stage, or empty.
    line
        Where the filling has come to.
    quota
        Loads after which no other stage is begun.
    """
    stage, classes, room, now = line.stage, line.classes, line.room, line.now
    work = 0
    member = np.empty(len(a.param), np.int64)
    while now[2] > 0 and now[0] <= now[1] and work <= quota:
        forward = front >= 1.0 or (front > 0.0 and rng.random() < front)
        rule = rules[0] if forward else rules[1]
        at = now[0] if forward else now[1]
        least, best_class, size = np.inf, -1, 0
        for c in range(len(room)):
            if room[c] == 0 or (len(fixed) > 0 and fixed[at] != c):
                continue
            work += fill_stage(rng, a, s, loads, rule, c, limit)
            if loads.score[0] == -np.inf:
                continue
            loss = (price[c] * limit - loads.score[0]) * (1.0 + rule.noise * rng.random())
            if loss < least or best_class < 0:
                least, best_class, size = loss, c, loads.size[0]
                for i in range(size):
                    member[i] = loads.member[0, i]
        if best_class < 0 and len(fixed) == 0:
            now[0] = now[1] + 1
            break
        for i in range(size):
            stage[member[i]] = at
            place(a, s, forward, member[i])
        classes[at] = best_class if best_class >= 0 else fixed[at]
        room[classes[at]] -= 1
        now[2] -= size
        now[0 if forward else 1] += 1 if forward else -1
    if now[2] == 0:
        for at in range(now[0], now[1] + 1):
            for c in range(len(room)):
                if room[c] > 0 and (len(fixed) == 0 or fixed[at] == c):
                    classes[at] = c
                    room[c] -= 1
                    break
    return work
