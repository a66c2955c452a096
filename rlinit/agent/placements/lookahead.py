"""Compiled lookahead of the placement policy: what each choice leads to when the policy plays on greedily for a while.

A choice is tried, the greedy policy of `rlinit.kernels.placements.rollouts` plays a number of ops more, how late all
would then end if nothing had to wait for a device any more is noted, and everything is taken back. Compared are the
devices of one op, and other ready ops in its place. The best choice is made, op by op.

References
----------
Bertsekas, Tsitsiklis, Wu: Rollout algorithms for combinatorial optimization, Journal of Heuristics 3, 1997; Duin, Voss:
The pilot method, Networks 34(3), 1999.
"""

from __future__ import annotations

import numpy as np

from rlinit.agent.placements.partial_schedule import (
    OneGraph,
    PartialSchedule,
    beginning,
    first_ready,
    look_at,
    makespan_estimate,
    one_graph,
    put,
    take_back,
)
from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays


@njit(cache=True, nogil=True)
def _try_devices(p: OneGraph, s: PartialSchedule, at: int, late: float, steps: int, estimate: FloatArray) -> int:
    """Write how late all ends if the ready op at `at` goes to each device and the policy plays `steps` on.

    In seconds; ``inf`` where an op then fits nowhere. Devices on which it ends more than `late` seconds later than on
    the likeliest are not tried; that is tried in any case. Returns it, -1 where the op itself fits nowhere. The state
    is left as it was.
    """
    d = len(s.size)
    estimate[:] = np.inf
    chosen: int = look_at(p, s, s.ready[at])
    if chosen < 0:
        return chosen
    finish, begin, slot, room = s.finish.copy(), s.begin.copy(), s.slot.copy(), s.room.copy()
    latest, total, number = s.open_ends[0], s.open_ends[1], s.open_ends[2]
    for i in range(d):
        if finish[i] == np.inf or (i != chosen and finish[i] > finish[chosen] + late):
            continue
        s.finish[i], s.begin[i], s.slot[i] = finish[i], begin[i], slot[i]
        now, device, done = at, i, 0
        while True:
            put(p, s, now, device, done)
            done += 1
            if done > steps or s.num_ready[0] == 0:
                break
            now = first_ready(p, s, p.key)
            device = look_at(p, s, s.ready[now])
            if device < 0:
                break
        if device >= 0:
            estimate[i] = makespan_estimate(s)
        take_back(p, s, done)
        s.open_ends[0], s.open_ends[1], s.open_ends[2] = latest, total, number
        s.room[:] = room
    return chosen


@njit(cache=True, nogil=True)
def _rank(p: OneGraph, s: PartialSchedule, best: IntArray) -> int:
    """Write places in `ready` of the ops of greatest key, the greatest first; return how many there are."""
    found: int = min(len(best), s.num_ready[0])
    for k in range(found):
        best[k] = -1
        for q in range(s.num_ready[0]):
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


def play_ahead(
    a: RolloutArrays,
    policy: Policy,
    cost_to_go: FloatArray,
    steps: int,
    ops: int,
    late: float,
    rule: int,
) -> tuple[float, IntArray, FloatArray]:
    """Return (makespan, device, start) of one problem played greedily with lookahead; ``inf`` where it gets stuck.

    Op by op: each of the `ops` ready ops of greatest key, on each device, is tried with `steps` ops of the policy after
    it. The best is placed; among equal ones the likeliest.

    Parameters
    ----------
    a, policy
        One problem, and what the network says of it.
    cost_to_go
        (n * d,) the longest way from the end of an op on a device to the end of all.
    steps, ops
        How far ahead, and how many ops are compared; at least 1.
    late
        Typical ops by which an op may end later than on its likeliest device for a device to be tried.
    rule
        Of transfers: PARALLEL, EXCLUSIVE or BLOCKING.

    Notes
    -----
    Places up to ``n * ops * d * (steps + 1)`` ops, two to five a microsecond.
    """
    p = one_graph(a, policy, cost_to_go, rule)
    s, start = beginning(p, a.capacity, steps + 1), np.zeros(len(a.tensor))
    placed = _play(p, s, steps, ops, late, start)
    return float(s.end.max(initial=0.0)) if placed else np.inf, s.device.copy(), start


@njit(cache=True, nogil=True)
def _play(p: OneGraph, s: PartialSchedule, steps: int, ops: int, late: float, start: FloatArray) -> bool:
    """Place all ops and write when each starts; return False where one fits nowhere."""
    d = len(s.size)
    best, estimate = np.empty(ops, np.int64), np.empty(d)
    for _ in range(len(start)):
        at, device, least = -1, -1, np.inf
        for k in range(_rank(p, s, best)):
            likeliest = _try_devices(p, s, best[k], late * p.scale[0], steps, estimate)
            for j in range(d):
                i = (likeliest + j) % d
                if estimate[i] < least:
                    at, device, least = best[k], i, estimate[i]
        if at < 0:
            return False
        v = s.ready[at]
        look_at(p, s, v)
        # Where transfers block the device, an op that takes no time would else tie with those before its transfers.
        start[v] = s.begin[device] if p.time[v, device] > 0.0 else s.finish[device]
        put(p, s, at, device, 0)
    return True
