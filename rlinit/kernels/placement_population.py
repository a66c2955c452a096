"""Many placements played side by side: from time to time the most promising partial ones take the others' places.

How good a partial schedule is, is told by when all would end if nothing more had to wait for a device: the latest, over
ops whose result is still waited for, of an op's end and the longest way from there. Members for which that is the same
differ in how late their other open ends are, so a part of the mean over those counts too. The policy is that of
`rlinit.kernels.placement_rollouts`; the first member plays it greedily.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from rlinit.kernels.list_scheduling import SLOT_BLOCK, idle_slot, insert_batch
from rlinit.kernels.placement_rollouts import (
    RolloutArrays,
    arrived,
    draw_index,
    finishes,
    likeliest_device,
    likeliest_op,
)
from rlinit.stages import FloatArray, IntArray

__all__ = ["play_population"]


_MEAN_SHARE = 0.3
"""Weight of the mean of open ends beside the latest."""


class _Members(NamedTuple):
    """The state of S partial schedules of a graph of n ops on d devices; one row each."""

    starts: FloatArray
    ends: FloatArray
    widest: FloatArray
    size: IntArray
    room: FloatArray
    decided: IntArray
    waiting: IntArray
    unread: IntArray
    ready: IntArray
    num_ready: IntArray
    device: IntArray
    start: FloatArray
    end: FloatArray
    played: IntArray
    makespan: FloatArray


@njit(cache=True, nogil=True)
def _members(a: RolloutArrays, samples: int) -> _Members:
    """Return members that have not played yet."""
    n, d = len(a.tensor), len(a.capacity)
    m = _Members(
        np.zeros((samples, d, n)),
        np.zeros((samples, d, n)),
        np.zeros((samples, d, n // SLOT_BLOCK + 1)),
        np.zeros((samples, d), np.int64),
        np.empty((samples, d)),
        np.full((samples, n), -1, np.int64),
        np.empty((samples, n), np.int64),
        np.empty((samples, n), np.int64),
        np.zeros((samples, n), np.int64),
        np.zeros(samples, np.int64),
        np.zeros((samples, n), np.int64),
        np.zeros((samples, n)),
        np.zeros((samples, n)),
        np.zeros((samples, n), np.int64),
        np.zeros(samples),
    )
    for s in range(samples):
        m.room[s] = a.capacity
        for v in range(n):
            m.waiting[s, v] = a.pred_indptr[v + 1] - a.pred_indptr[v]
            m.unread[s, v] = a.succ_indptr[v + 1] - a.succ_indptr[v]
            if m.waiting[s, v] == 0:
                m.ready[s, m.num_ready[s]] = v
                m.num_ready[s] += 1
    return m


@njit(cache=True, nogil=True)
def _advance(
    a: RolloutArrays,
    m: _Members,
    s: int,
    step: int,
    key: FloatArray,
    score: FloatArray,
    urgency: FloatArray,
    temperature: float,
    rng: np.random.Generator,
    logit: FloatArray,
    finish: FloatArray,
) -> None:
    """Let member s place one more op; its makespan becomes ``inf`` where that fits nowhere."""
    d, count = len(a.capacity), m.num_ready[s]
    if temperature > 0.0:
        for k in range(count):
            logit[k] = key[m.ready[s, k]]
        at = draw_index(rng, logit, count, temperature)
    else:
        at = likeliest_op(m.ready[s], count, key, a.place)
    v = m.ready[s, at]
    m.num_ready[s] -= 1
    m.ready[s, at] = m.ready[s, m.num_ready[s]]
    leader = a.group[v]
    earliest = finishes(
        a,
        0,
        v,
        m.decided[s, leader],
        m.device[s],
        m.end[s],
        m.room[s],
        m.size[s],
        m.starts[s],
        m.ends[s],
        m.widest[s],
        finish,
    )
    if earliest == np.inf:
        m.makespan[s] = np.inf
        return
    for i in range(d):
        late = (finish[i] - earliest) / a.scale[0]
        logit[i] = score[v * d + i] - urgency[v * d + i] * late if finish[i] < np.inf else -np.inf
    if temperature > 0.0:
        i = draw_index(rng, logit, d, temperature)
    else:
        i = likeliest_device(logit, finish, a.time[v * d : v * d + d], d)
    if m.decided[s, leader] < 0:
        m.decided[s, leader] = i
        m.room[s, i] -= a.need[leader]
    length, size = a.time[v * d + i], m.size[s, i]
    ready = arrived(a, 0, v, i, m.device[s], m.end[s])
    slot, begin = idle_slot(ready, length, size, m.starts[s, i], m.ends[s, i], m.widest[s, i])
    insert_batch(slot, begin, begin + length, size, m.starts[s, i], m.ends[s, i], m.widest[s, i])
    m.size[s, i] += 1
    m.device[s, v], m.start[s, v], m.end[s, v] = i, begin, begin + length
    m.played[s, step] = v
    m.makespan[s] = max(m.makespan[s], begin + length)
    for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        w = a.succ[e]
        m.waiting[s, w] -= 1
        if m.waiting[s, w] == 0:
            m.ready[s, m.num_ready[s]] = w
            m.num_ready[s] += 1
    for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        m.unread[s, a.pred[e]] -= 1


@njit(cache=True, nogil=True)
def _promises(m: _Members, steps: int, after: FloatArray, promise: FloatArray) -> None:
    """Write (S,) how late the first `steps` ops of each member leave things: less is better."""
    d = m.size.shape[1]
    for s in range(len(promise)):
        latest, total, count = m.makespan[s], 0.0, 0
        for k in range(steps):
            v = m.played[s, k]
            if m.unread[s, v] > 0:
                way = m.end[s, v] + after[v * d + m.device[s, v]]
                latest = max(latest, way)
                total += way
                count += 1
        promise[s] = latest + _MEAN_SHARE * total / max(1, count)


@njit(cache=True, nogil=True)
def _copy(m: _Members, source: int, target: int) -> None:
    m.starts[target] = m.starts[source]
    m.ends[target] = m.ends[source]
    m.widest[target] = m.widest[source]
    m.size[target] = m.size[source]
    m.room[target] = m.room[source]
    m.decided[target] = m.decided[source]
    m.waiting[target] = m.waiting[source]
    m.unread[target] = m.unread[source]
    m.ready[target] = m.ready[source]
    m.num_ready[target] = m.num_ready[source]
    m.device[target] = m.device[source]
    m.start[target] = m.start[source]
    m.end[target] = m.end[source]
    m.played[target] = m.played[source]
    m.makespan[target] = m.makespan[source]


@njit(cache=True, nogil=True)
def play_population(
    a: RolloutArrays,
    key: FloatArray,
    score: FloatArray,
    urgency: FloatArray,
    temperature: float,
    samples: int,
    kept: int,
    every: int,
    after: FloatArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return (makespan, device, start) of the members at the end, (S,), (S, n), (S, n); ``inf`` where one got stuck.

    Parameters
    ----------
    a
        One problem.
    key, score, urgency, temperature
        The policy; the temperature is that of all members but the first, which is greedy as long as it survives.
    samples
        Members S.
    kept, every
        Every so many ops the `kept` most promising members are copied over the others; 0 < kept.
    after
        (n * d,) the longest way from an op's end on a device to the end of all.
    rng
        For draws.
    """
    n = len(a.tensor)
    m = _members(a, samples)
    logit, finish = np.empty(max(n, len(a.capacity))), np.empty(len(a.capacity))
    promise = np.empty(samples)
    for step in range(n):
        for s in range(samples):
            if m.makespan[s] < np.inf:
                heat = temperature if s > 0 else 0.0
                _advance(a, m, s, step, key, score, urgency, heat, rng, logit, finish)
        if (step + 1) % every == 0 and step + 1 < n:
            _promises(m, step + 1, after, promise)
            by_promise = np.argsort(promise, kind="mergesort")
            for k in range(min(kept, samples), samples):
                _copy(m, by_promise[k % kept], by_promise[k])
    return m.makespan, m.device, m.start
