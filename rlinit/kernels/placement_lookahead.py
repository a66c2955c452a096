"""Compiled lookahead of the placement policy: what each choice leads to when the policy plays on greedily for a while.

A choice is tried, the greedy policy of `rlinit.kernels.placement_rollouts` plays a number of ops more, how late all
would then end if nothing had to wait for a device any more is noted, and everything is taken back. Compared are the
devices of one op, and other ready ops in its place. Either the best choice is made, op by op (`play_ahead`), or the
choices of schedules played before are weighed (`weigh_choices`), which is what training learns from.

References
----------
Bertsekas, Tsitsiklis, Wu: Rollout algorithms for combinatorial optimization, Journal of Heuristics 3, 1997; Duin, Voss:
The pilot method, Networks 34(3), 1999.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rlinit.kernels.placement_rollouts import RolloutArrays
from rlinit.stages import FloatArray, IntArray

__all__ = ["Weighed", "play_ahead", "weigh_choices"]

_MEAN_SHARE = 0.3
"""Weight of the mean of open ends beside the latest."""


class Weighed(NamedTuple):
    """What the choices of S schedules of a batch lead to, in typical ops; K ops are compared, P pairs.

    Parameters
    ----------
    op
        (S, N, K) ready ops when each op was chosen: itself first, then those of greatest key; -1 where there are fewer.
    op_value
        (S, N, K) how late all ends when each of them goes first, to its likeliest device.
    pair_value
        (S, P) how late all ends with the op on each device; ``inf`` where it may not run.
    """

    op: IntArray
    op_value: FloatArray
    pair_value: FloatArray


class _Graph(NamedTuple):
    """One problem of a batch by itself: n ops and d devices, numbered from 0, with the policy for it.

    `time` (n, d) is ``inf`` where the op's group may not run; `scale` (1,).
    """

    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    time: FloatArray
    tensor: FloatArray
    need: FloatArray
    group: IntArray
    s_per_byte: FloatArray
    delay: FloatArray
    place: IntArray
    scale: FloatArray
    key: FloatArray
    score: FloatArray
    urgency: FloatArray
    after: FloatArray


class _State(NamedTuple):
    """A partial schedule of a graph, and a journal of its last steps.

    Rows of `starts` and `ends` are devices, `size` their ops so far. Columns of `ops` (n, 4): device, producers not yet
    placed, consumers not yet placed, device of the group (-1: none). `ready` lists ops, `count` (1,) of them. `way`
    holds the latest, the sum and the number of open ends' ways. The journal has op, place in `ready`, device, slot and
    whether the group's device was decided. `finish`, `begin`, `slot` and `logit` are of the op looked at last.
    """

    starts: FloatArray
    ends: FloatArray
    size: IntArray
    room: FloatArray
    ops: IntArray
    end: FloatArray
    ready: IntArray
    count: IntArray
    way: FloatArray
    journal: IntArray
    finish: FloatArray
    begin: FloatArray
    slot: IntArray
    logit: FloatArray


_DEVICE, _WAITING, _UNREAD, _DECIDED = 0, 1, 2, 3


@njit(cache=True, nogil=True)
def _graph(
    a: RolloutArrays, g: int, key: FloatArray, score: FloatArray, urgency: FloatArray, after: FloatArray
) -> _Graph:
    low, high = a.ptr[g], a.ptr[g + 1]
    n, d = high - low, a.device_ptr[g + 1] - a.device_ptr[g]
    pairs, links = slice(a.pair_ptr[g], a.pair_ptr[g + 1]), slice(a.link_ptr[g], a.link_ptr[g + 1])
    into, out = a.pred_indptr[low : high + 1], a.succ_indptr[low : high + 1]
    return _Graph(
        into - into[0],
        a.pred[into[0] : into[-1]] - low,
        out - out[0],
        a.succ[out[0] : out[-1]] - low,
        np.where(a.allowed[pairs], a.time[pairs], np.inf).reshape(n, d),
        a.tensor[low:high].copy(),
        a.need[low:high].copy(),
        a.group[low:high] - low,
        a.s_per_byte[links].copy().reshape(d, d),
        a.delay[links].copy().reshape(d, d),
        a.place[low:high].copy(),
        a.scale[g : g + 1].copy(),
        key[low:high].copy(),
        score[pairs].copy().reshape(n, d),
        urgency[pairs].copy().reshape(n, d),
        after[pairs].copy().reshape(n, d),
    )


@njit(cache=True, nogil=True)
def _beginning(p: _Graph, room: FloatArray, steps: int) -> _State:
    """Return the state before any op is placed, with a journal of so many steps."""
    n, d = p.time.shape
    s = _State(
        np.empty((d, n)),
        np.empty((d, n)),
        np.zeros(d, np.int64),
        room.copy(),
        np.zeros((n, 4), np.int64),
        np.zeros(n),
        np.empty(n, np.int64),
        np.zeros(1, np.int64),
        np.zeros(3),
        np.empty((steps, 5), np.int64),
        np.empty(d),
        np.empty(d),
        np.empty(d, np.int64),
        np.empty(d),
    )
    for v in range(n):
        s.ops[v, _WAITING] = p.pred_indptr[v + 1] - p.pred_indptr[v]
        s.ops[v, _UNREAD] = p.succ_indptr[v + 1] - p.succ_indptr[v]
        s.ops[v, _DECIDED] = -1
        if s.ops[v, _WAITING] == 0:
            s.ready[s.count[0]] = v
            s.count[0] += 1
    return s


@njit(cache=True, nogil=True, inline="always")
def _likeliest(p: _Graph, s: _State, v: int) -> int:
    """Return the policy's device for op v, -1 where it fits nowhere; write when it would begin and end on each."""
    d = len(s.size)
    decided, earliest = s.ops[p.group[v], _DECIDED], np.inf
    for i in range(d):
        s.finish[i] = np.inf
        length = p.time[v, i]
        if length == np.inf or (decided >= 0 and decided != i):
            continue
        if decided < 0 and p.need[p.group[v]] > s.room[i]:
            continue
        ready = 0.0
        for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
            u = p.pred[e]
            there, j = s.end[u], s.ops[u, _DEVICE]
            if j != i:
                there += p.delay[j, i] + p.tensor[u] * p.s_per_byte[j, i]
            ready = max(ready, there)
        if ready == np.inf:
            continue
        size = s.size[i]
        at = size
        while at > 0 and s.ends[i, at - 1] > ready:
            at -= 1
        begin = ready if at == 0 else max(ready, s.ends[i, at - 1])
        while at < size and begin + length > s.starts[i, at]:
            begin = max(ready, s.ends[i, at])
            at += 1
        s.begin[i], s.slot[i], s.finish[i] = begin, at, begin + length
        earliest = min(earliest, begin + length)
    best = -1
    for i in range(d):
        if s.finish[i] == np.inf:
            continue
        s.logit[i] = p.score[v, i] - p.urgency[v, i] * ((s.finish[i] - earliest) / p.scale[0])
        if best < 0 or s.logit[i] > s.logit[best]:
            best = i
        elif s.logit[i] == s.logit[best]:
            sooner = s.finish[i] < s.finish[best]
            if sooner or (s.finish[i] == s.finish[best] and p.time[v, i] < p.time[v, best]):
                best = i
    return best


@njit(cache=True, nogil=True, inline="always")
def _first_ready(p: _Graph, s: _State) -> int:
    """Return the place in `ready` of the op of greatest key; ties go to the heuristic's order."""
    best = 0
    for k in range(1, s.count[0]):
        v, w = s.ready[k], s.ready[best]
        if p.key[v] > p.key[w] or (p.key[v] == p.key[w] and p.place[v] < p.place[w]):
            best = k
    return best


@njit(cache=True, nogil=True, inline="always")
def _put(p: _Graph, s: _State, at: int, i: int, step: int) -> None:
    """Place the ready op at `at`, which was looked at last, on device i; note it in the journal."""
    v, slot, begin = s.ready[at], s.slot[i], s.begin[i]
    leader = p.group[v]
    s.journal[step, 0], s.journal[step, 1], s.journal[step, 2], s.journal[step, 3] = v, at, i, slot
    s.journal[step, 4] = 0
    if s.ops[leader, _DECIDED] < 0:
        s.ops[leader, _DECIDED] = i
        s.room[i] -= p.need[leader]
        s.journal[step, 4] = 1
    for k in range(s.size[i], slot, -1):
        s.starts[i, k] = s.starts[i, k - 1]
        s.ends[i, k] = s.ends[i, k - 1]
    end = begin + p.time[v, i]
    s.starts[i, slot] = begin
    s.ends[i, slot] = end
    s.size[i] += 1
    s.ops[v, _DEVICE] = i
    s.end[v] = end
    s.count[0] -= 1
    s.ready[at] = s.ready[s.count[0]]
    way = end + p.after[v, i]
    s.way[0] = max(s.way[0], way)
    if s.ops[v, _UNREAD] > 0:
        s.way[1] += way
        s.way[2] += 1.0
    for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
        u = p.pred[e]
        s.ops[u, _UNREAD] -= 1
        if s.ops[u, _UNREAD] == 0:
            s.way[1] -= s.end[u] + p.after[u, s.ops[u, _DEVICE]]
            s.way[2] -= 1.0
    for e in range(p.succ_indptr[v], p.succ_indptr[v + 1]):
        w = p.succ[e]
        s.ops[w, _WAITING] -= 1
        if s.ops[w, _WAITING] == 0:
            s.ready[s.count[0]] = w
            s.count[0] += 1


@njit(cache=True, nogil=True, inline="always")
def _take_back(p: _Graph, s: _State, steps: int) -> None:
    """Undo the first `steps` steps of the journal, the last first; ways and room excepted."""
    for step in range(steps - 1, -1, -1):
        v, at, i, slot = s.journal[step, 0], s.journal[step, 1], s.journal[step, 2], s.journal[step, 3]
        for e in range(p.succ_indptr[v + 1] - 1, p.succ_indptr[v] - 1, -1):
            w = p.succ[e]
            if s.ops[w, _WAITING] == 0:
                s.count[0] -= 1
            s.ops[w, _WAITING] += 1
        for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
            s.ops[p.pred[e], _UNREAD] += 1
        s.ready[s.count[0]] = s.ready[at]
        s.ready[at] = v
        s.count[0] += 1
        s.size[i] -= 1
        for k in range(slot, s.size[i]):
            s.starts[i, k] = s.starts[i, k + 1]
            s.ends[i, k] = s.ends[i, k + 1]
        if s.journal[step, 4]:
            s.ops[p.group[v], _DECIDED] = -1


@njit(cache=True, nogil=True)
def _try_devices(p: _Graph, s: _State, at: int, only: bool, steps: int, promise: FloatArray) -> int:
    """Write how late all ends if the ready op at `at` goes to each device and the policy plays `steps` on.

    In seconds; ``inf`` where an op then fits nowhere. With `only`, no device but the likeliest is tried. Returns that,
    -1 where the op itself fits nowhere. The state is left as it was.
    """
    d = len(s.size)
    promise[:] = np.inf
    chosen = _likeliest(p, s, s.ready[at])
    if chosen < 0:
        return chosen
    finish, begin, slot, room = s.finish.copy(), s.begin.copy(), s.slot.copy(), s.room.copy()
    latest, total, number = s.way[0], s.way[1], s.way[2]
    for i in range(d):
        if finish[i] == np.inf or (only and i != chosen):
            continue
        s.begin[i], s.slot[i] = begin[i], slot[i]
        now, device, done = at, i, 0
        while True:
            _put(p, s, now, device, done)
            done += 1
            if done > steps or s.count[0] == 0:
                break
            now = _first_ready(p, s)
            device = _likeliest(p, s, s.ready[now])
            if device < 0:
                break
        if device >= 0:
            promise[i] = s.way[0] + _MEAN_SHARE * s.way[1] / max(1.0, s.way[2])
        _take_back(p, s, done)
        s.way[0], s.way[1], s.way[2] = latest, total, number
        s.room[:] = room
    return chosen


@njit(cache=True, nogil=True)
def _rank(p: _Graph, s: _State, best: IntArray) -> int:
    """Write places in `ready` of the ops of greatest key, the greatest first; return how many there are."""
    found = min(len(best), s.count[0])
    for k in range(found):
        best[k] = -1
        for q in range(s.count[0]):
            taken = False
            for j in range(k):
                taken |= best[j] == q
            if taken:
                continue
            v = s.ready[q]
            w = s.ready[best[k]] if best[k] >= 0 else v
            if best[k] < 0 or p.key[v] > p.key[w] or (p.key[v] == p.key[w] and p.place[v] < p.place[w]):
                best[k] = q
    return found


@njit(cache=True, nogil=True)
def play_ahead(
    a: RolloutArrays,
    key: FloatArray,
    score: FloatArray,
    urgency: FloatArray,
    after: FloatArray,
    steps: int,
    ops: int,
) -> tuple[float, IntArray, FloatArray]:
    """Return (makespan, device, start) of one problem played greedily with lookahead; ``inf`` where it gets stuck.

    Op by op: each of the `ops` ready ops of greatest key, on each device, is tried with `steps` ops of the policy after
    it. The best is placed; among equal ones the likeliest.

    Parameters
    ----------
    a
        One problem.
    key, score, urgency
        (n,), (n * d,), (n * d,) the policy.
    after
        (n * d,) the longest way from the end of an op on a device to the end of all.
    steps, ops
        How far ahead, and how many ops are compared; at least 1.

    Notes
    -----
    Places up to ``n * ops * d * (steps + 1)`` ops, five or six a microsecond.
    """
    n, d = len(a.tensor), len(a.capacity)
    p = _graph(a, 0, key, score, urgency, after)
    s = _beginning(p, a.capacity, steps + 1)
    start, best, promise = np.zeros(n), np.empty(ops, np.int64), np.empty(d)
    for _ in range(n):
        at, device, least = -1, -1, np.inf
        for k in range(_rank(p, s, best)):
            likeliest = _try_devices(p, s, best[k], False, steps, promise)
            for j in range(d):
                i = (likeliest + j) % d
                if promise[i] < least:
                    at, device, least = best[k], i, promise[i]
        if at < 0:
            return np.inf, s.ops[:, _DEVICE].copy(), start
        v = s.ready[at]
        _likeliest(p, s, v)
        start[v] = s.begin[device]
        _put(p, s, at, device, 0)
    return s.end.max() if n else 0.0, s.ops[:, _DEVICE].copy(), start


@njit(cache=True, nogil=True)
def weigh_choices(
    a: RolloutArrays,
    chosen: IntArray,
    device: IntArray,
    whole: NDArray[np.bool_],
    key: FloatArray,
    score: FloatArray,
    urgency: FloatArray,
    after: FloatArray,
    steps: int,
    ops: int,
) -> Weighed:
    """Weigh the choices of schedules against what else could have been chosen.

    Parameters
    ----------
    a
        G problems.
    chosen, device
        (S, N) step and device of each op, as in a trace.
    whole
        (S, G) whether a schedule has all ops; others are left out.
    key, score, urgency, after
        As for `play_ahead`, of all problems.
    steps, ops
        How far ahead, and how many ops are compared.
    """
    samples, n = chosen.shape
    op = np.full((samples, n, ops), -1, np.int64)
    op_value, pair_value = np.zeros((samples, n, ops)), np.full((samples, len(a.time)), np.inf)
    best = np.empty(ops, np.int64)
    for g in range(len(a.ptr) - 1):
        p, low = _graph(a, g, key, score, urgency, after), a.ptr[g]
        count, d = p.time.shape
        promise = np.empty(d)
        for t in range(samples):
            if not whole[t, g]:
                continue
            s = _beginning(p, a.capacity[a.device_ptr[g] : a.device_ptr[g + 1]], steps + 1)
            for v in np.argsort(chosen[t, low : low + count]):
                at = 0
                while s.ready[at] != v:
                    at += 1
                likeliest = _try_devices(p, s, at, False, steps, promise)
                pair = a.pair_ptr[g] + v * d
                pair_value[t, pair : pair + d] = promise / p.scale[0]
                op[t, low + v, 0], op_value[t, low + v, 0] = low + v, promise[likeliest] / p.scale[0]
                filled = 1
                for k in range(_rank(p, s, best)):
                    if filled < ops and best[k] != at:
                        likeliest = _try_devices(p, s, best[k], True, steps, promise)
                        if likeliest >= 0:
                            op[t, low + v, filled] = low + s.ready[best[k]]
                            op_value[t, low + v, filled] = promise[likeliest] / p.scale[0]
                            filled += 1
                _likeliest(p, s, v)
                _put(p, s, at, device[t, low + v], 0)
    return Weighed(op, op_value, pair_value)
