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
from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays
from rlinit.kernels.placements.rollouts import draw_index


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
    _, n, columns = m.ops.shape
    for v in range(n):  # assignments of arrays take seconds more to compile
        m.end[target, v] = m.end[source, v]
        for column in range(columns):
            m.ops[target, v, column] = m.ops[source, v, column]
    for k in range(m.num_ready[source, 0]):
        m.ready[target, k] = m.ready[source, k]
    m.num_ready[target, 0] = m.num_ready[source, 0]
    for k in range(m.open_ends.shape[1]):
        m.open_ends[target, k] = m.open_ends[source, k]
    for i in range(m.size.shape[1]):
        m.size[target, i], m.room[target, i] = m.size[source, i], m.room[source, i]
        for k in range(m.size[source, i]):
            m.starts[target, i, k] = m.starts[source, i, k]
            m.ends[target, i, k] = m.ends[source, i, k]


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
    p = one_graph(a, policy, cost_to_go)
    first = beginning(p, a.capacity, 1)
    m = PartialSchedule._make(np.repeat(part[None], samples, axis=0) for part in first)
    start = np.zeros((samples, len(a.tensor)))
    placed = _play(p, m, temperature, kept, every, rng, start)
    return np.where(placed, m.end.max(axis=1, initial=0.0), np.inf), m.ops[:, :, DEVICE].copy(), start


@njit(cache=True, nogil=True)
def _play(
    p: OneGraph,
    m: PartialSchedule,
    temperature: float,
    kept: int,
    every: int,
    rng: np.random.Generator,
    start: FloatArray,
) -> BoolArray:
    """Place all ops of every member and write when each starts, (S, n); return (S,) which members did not get stuck."""
    samples, n = start.shape
    logit, estimate = np.empty(n), np.zeros(samples)
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
                estimate[target] = estimate[source]
                for v in range(n):
                    start[target, v] = start[source, v]
    return estimate < np.inf
