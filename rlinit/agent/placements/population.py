"""Many placements played side by side: from time to time the most promising partial ones take the others' places.

`rlinit.agent.placements.partial_schedule.makespan_estimate` says how good a partial schedule is. The policy is that
of `rlinit.kernels.placements.rollouts`; the first member plays it greedily.
"""

from __future__ import annotations

import numpy as np

from rlinit.agent.placements.partial_schedule import (
    DEVICE,
    OneGraph,
    PartialSchedule,
    beginning,
    first_ready,
    look_at,
    makespan_estimate,
    one_graph,
    put,
)
from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays
from rlinit.kernels.placements.rollouts import draw_index


@njit(cache=True, nogil=True)
def _members(p: OneGraph, room: FloatArray, samples: int) -> PartialSchedule:
    """Return schedules without any op, one a row of every array."""
    first = beginning(p, room, 1)
    n, d = p.time.shape
    m = PartialSchedule(
        np.empty((samples, d, n)),
        np.empty((samples, d, n)),
        np.empty((samples, d), np.int64),
        np.empty((samples, d)),
        np.empty((samples, n, 4), np.int64),
        np.zeros((samples, n)),
        np.empty((samples, n), np.int64),
        np.empty((samples, 1), np.int64),
        np.empty((samples, 3)),
        np.empty((samples, 1, 5), np.int64),
        np.empty((samples, d)),
        np.empty((samples, d)),
        np.empty((samples, d), np.int64),
        np.empty((samples, d)),
    )
    for s in range(samples):
        m.size[s], m.room[s], m.ops[s] = first.size, first.room, first.ops
        m.ready[s], m.num_ready[s], m.open_ends[s] = first.ready, first.num_ready, first.open_ends
    return m


@njit(cache=True, nogil=True)
def _member(m: PartialSchedule, s: int) -> PartialSchedule:
    """Return a view of member s."""
    return PartialSchedule(
        m.starts[s],
        m.ends[s],
        m.size[s],
        m.room[s],
        m.ops[s],
        m.end[s],
        m.ready[s],
        m.num_ready[s],
        m.open_ends[s],
        m.journal[s],
        m.finish[s],
        m.begin[s],
        m.slot[s],
        m.logit[s],
    )


@njit(cache=True, nogil=True)
def _advance(
    p: OneGraph,
    s: PartialSchedule,
    steps: int,
    temperature: float,
    rng: np.random.Generator,
    logit: FloatArray,
    start: FloatArray,
) -> bool:
    """Place `steps` more ops; False where one of them fits nowhere. `logit` (n,) is scratch."""
    d = len(s.size)
    for _ in range(steps):
        if temperature > 0.0:
            for k in range(s.num_ready[0]):
                logit[k] = p.key[s.ready[k]]
            at = draw_index(rng, logit, s.num_ready[0], temperature)
        else:
            at = first_ready(p, s)
        v = s.ready[at]
        i = look_at(p, s, v)
        if i < 0:
            return False
        if temperature > 0.0:
            i = draw_index(rng, s.logit, d, temperature)
        start[v] = s.begin[i]
        put(p, s, at, i, 0)
    return True


@njit(cache=True, nogil=True)
def _copy(m: PartialSchedule, source: int, target: int) -> None:
    """Make member `target` like member `source`."""
    m.size[target], m.room[target], m.ops[target] = m.size[source], m.room[source], m.ops[source]
    m.end[target], m.num_ready[target], m.open_ends[target] = m.end[source], m.num_ready[source], m.open_ends[source]
    for k in range(m.num_ready[source, 0]):
        m.ready[target, k] = m.ready[source, k]
    for i in range(m.size.shape[1]):
        for k in range(m.size[source, i]):
            m.starts[target, i, k] = m.starts[source, i, k]
            m.ends[target, i, k] = m.ends[source, i, k]


@njit(cache=True, nogil=True)
def play_population(
    a: RolloutArrays,
    policy: Policy,
    cost_to_go: FloatArray,
    temperature: float,
    samples: int,
    kept: int,
    every: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return (makespan, device, start) of the members at the end, (S,), (S, n), (S, n); ``inf`` where one got stuck.

    Parameters
    ----------
    a, policy
        One problem, and what the network says of it.
    temperature
        Divides the logits of all members but the first, which is greedy as long as it survives.
    samples
        Members S.
    kept, every
        Every so many ops the `kept` most promising members are copied over the others; 0 < kept.
    cost_to_go
        (n * d,) the longest way from an op's end on a device to the end of all.
    rng
        For draws.
    """
    n = len(a.tensor)
    p = one_graph(a, 0, policy, cost_to_go)
    m = _members(p, a.capacity, samples)
    start, logit = np.zeros((samples, n)), np.empty(n)
    estimate = np.zeros(samples)
    for done in range(0, n, every):
        steps = min(every, n - done)
        for s in range(samples):
            if estimate[s] < np.inf:
                member = _member(m, s)
                goes_on = _advance(p, member, steps, temperature if s > 0 else 0.0, rng, logit, start[s])
                estimate[s] = makespan_estimate(member) if goes_on else np.inf
        if done + every < n:
            ranked = np.argsort(estimate, kind="mergesort")
            for k in range(min(kept, samples), samples):
                source, target = ranked[k % kept], ranked[k]
                _copy(m, source, target)
                start[target], estimate[target] = start[source], estimate[source]
    makespan = np.full(samples, np.inf)
    for s in range(samples):
        if estimate[s] < np.inf:
            makespan[s] = m.end[s].max() if n else 0.0
    return makespan, m.ops[:, :, DEVICE].copy(), start
