"""A placement problem by itself and a partial schedule of it, which grows op by op and can be taken back again.

Plans as `rlinit.kernels.placements.rollouts` does, but transfers follow the problem's rule, nearly: those that exclude
each other queue on their link in the order in which ops that read them are placed, those that block a device are made
right before the op, in one block with it. Functions here are small and inlined, so that placing an op takes a fraction
of a microsecond.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays
from rlinit.kernels.placements.rollouts import likeliest_device, likeliest_op
from rlinit.kernels.placements.timeline import BLOCKING, EXCLUSIVE, PARALLEL

_MEAN_SHARE = 0.3
"""Weight of the mean of open ends beside the latest."""


class OneGraph(NamedTuple):
    """One problem of a batch by itself: n ops and d devices, numbered from 0, with the policy for it.

    `time` (n, d) is ``inf`` where the op's group may not run; `scale` (1,); `rule` (1,) is PARALLEL, EXCLUSIVE or
    BLOCKING.
    """

    rule: IntArray
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
    late_weight: FloatArray
    cost_to_go: FloatArray


class PartialSchedule(NamedTuple):
    """A partial schedule of a graph, and a journal of its last steps.

    Rows of `starts` and `ends` are devices, `size` their ops so far. Of ops (n,): `device`, producers that
    it is `waiting` for, consumers by which it is `unread`, and the device `decided` for a group (-1: none), at the
    group's leader. `ready` lists ops, `num_ready` (1,) of them.
    `open_ends` holds the latest end with cost-to-go, and of open ends the sum of these and the number. The journal has
    op, place in `ready`, device, slot and whether the group's device was decided. `finish`, `begin`, `slot` and `logit`
    are of the op looked at last.

    Unless transfers run in parallel: `reader` (n, d) is the op for which an op's output was sent to a device, -1: none;
    `arrival` (n, d) when it got there, `link` (d, d) when each link is free, `link_before` (n, d) when it was before
    that transfer, and `queue` (d,) is scratch.
    """

    starts: FloatArray
    ends: FloatArray
    size: IntArray
    room: FloatArray
    device: IntArray
    waiting: IntArray
    unread: IntArray
    decided: IntArray
    end: FloatArray
    ready: IntArray
    num_ready: IntArray
    open_ends: FloatArray
    journal: IntArray
    finish: FloatArray
    begin: FloatArray
    slot: IntArray
    logit: FloatArray
    reader: IntArray
    arrival: FloatArray
    link: FloatArray
    link_before: FloatArray
    queue: FloatArray


def one_graph(a: RolloutArrays, policy: Policy, cost_to_go: FloatArray, rule: int) -> OneGraph:
    """Return a batch of one problem with the policy for it.

    Parameters
    ----------
    a, policy
        The problem, and what the network says of it.
    cost_to_go
        (n * d,) seconds that remain after each op on each device.
    rule
        PARALLEL, EXCLUSIVE or BLOCKING.
    """
    pairs, links = (len(a.tensor), len(a.capacity)), (len(a.capacity), len(a.capacity))
    parts = (
        [rule],
        *(a.pred_indptr, a.pred, a.succ_indptr, a.succ),
        np.where(a.allowed, a.time, np.inf).reshape(pairs),
        *(a.tensor, a.need, a.group),
        *(a.s_per_byte.reshape(links), a.delay.reshape(links)),
        *(a.place, a.scale, policy.key),
        *(weight.reshape(pairs) for weight in (policy.score, policy.late_weight, cost_to_go)),
    )
    return OneGraph(*map(np.array, parts))  # copies: kernels would be compiled anew for arrays that are read only


def beginning(p: OneGraph, room: FloatArray, steps: int) -> PartialSchedule:
    """Return the state before any op is placed, with a journal of so many steps.

    Parameters
    ----------
    p
        The graph and the policy.
    room
        (d,) bytes that are free on each device.
    steps
        Steps that the journal has room for.
    """
    n, d = p.time.shape
    waiting, unread = (np.diff(pointers).astype(np.int64) for pointers in (p.pred_indptr, p.succ_indptr))
    first = np.flatnonzero(waiting == 0)
    moved, links = ((0, 0), (0, 0)) if p.rule[0] == PARALLEL else ((n, d), (d, d))
    ready = np.zeros(n, np.int64)
    ready[: len(first)] = first
    return PartialSchedule(
        starts=np.zeros((d, n)),
        ends=np.zeros((d, n)),
        size=np.zeros(d, np.int64),
        room=room.copy(),
        device=np.zeros(n, np.int64),
        waiting=waiting,
        unread=unread,
        decided=np.full(n, -1, np.int64),
        end=np.zeros(n),
        ready=ready,
        num_ready=np.array([len(first)]),
        open_ends=np.zeros(3),
        journal=np.zeros((steps, 5), np.int64),
        finish=np.zeros(d),
        begin=np.zeros(d),
        slot=np.zeros(d, np.int64),
        logit=np.zeros(d),
        reader=np.full(moved, -1, np.int64),
        arrival=np.zeros(moved),
        link=np.zeros(links),
        link_before=np.zeros(moved),
        queue=np.zeros(d),
    )


@njit(cache=True, nogil=True, inline="always")
def look_at(p: OneGraph, s: PartialSchedule, v: int) -> int:
    """Return the policy's device for op v, -1 where it fits nowhere; write when it would begin and end on each.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule; when v would begin and end is written there.
    v
        A ready op.
    """
    d = len(s.size)
    decided, earliest = s.decided[p.group[v]], np.inf
    for i in range(d):
        s.finish[i], s.logit[i] = np.inf, -np.inf
        length = p.time[v, i]
        if length == np.inf or (decided >= 0 and decided != i):
            continue
        if decided < 0 and p.need[p.group[v]] > s.room[i]:
            continue
        ready, received = _inputs(p, s, v, i)
        length += received
        if ready == np.inf or length == np.inf:
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
    for i in range(d):
        if s.finish[i] < np.inf:
            s.logit[i] = p.score[v, i] - p.late_weight[v, i] * ((s.finish[i] - earliest) / p.scale[0])
    best: int = likeliest_device(s.logit, s.finish, p.time[v], d)
    return best if earliest < np.inf else -1


@njit(cache=True, nogil=True, inline="always")
def _inputs(p: OneGraph, s: PartialSchedule, v: int, i: int) -> tuple[float, float]:
    """Return when all that op v reads has been made, or is on device i, and how long the device receives then.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule.
    v, i
        A ready op and a device.
    """
    ready, received, rule = 0.0, 0.0, p.rule[0]
    if rule == EXCLUSIVE:
        for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
            j = s.device[p.pred[e]]
            s.queue[j] = s.link[j, i]
    for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
        u = p.pred[e]
        there, j = s.end[u], s.device[u]
        if j != i:
            moved = p.delay[j, i] + p.tensor[u] * p.s_per_byte[j, i]
            if rule == PARALLEL:
                there += moved
            elif s.reader[u, i] >= 0:
                there = s.arrival[u, i]
            elif rule == BLOCKING:
                received += moved
            else:
                there = max(there, s.queue[j]) + moved
                s.queue[j] = there
        ready = max(ready, there)
    return ready, received


@njit(cache=True, nogil=True, inline="always")
def _send(p: OneGraph, s: PartialSchedule, v: int, i: int) -> None:
    """Note the transfers that op v, which was looked at last, waits for on device i.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule, changed in place.
    v, i
        The op and its device.
    """
    for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
        u = p.pred[e]
        j = s.device[u]
        if j == i or s.reader[u, i] >= 0:
            continue
        s.reader[u, i] = v
        s.arrival[u, i] = s.finish[i] - p.time[v, i]
        if p.rule[0] == EXCLUSIVE:
            s.link_before[u, i] = s.link[j, i]
            s.arrival[u, i] = max(s.end[u], s.link[j, i]) + p.delay[j, i] + p.tensor[u] * p.s_per_byte[j, i]
            s.link[j, i] = s.arrival[u, i]


@njit(cache=True, nogil=True, inline="always")
def first_ready(p: OneGraph, s: PartialSchedule, key: FloatArray) -> int:
    """Return the place in `ready` of the op of greatest key; ties go to the heuristic's order.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule.
    key
        (n,) keys of ops: the policy's, or these and noise.
    """
    best: int = likeliest_op(s.ready, s.num_ready[0], key, p.place)
    return best


@njit(cache=True, nogil=True, inline="always")
def put(p: OneGraph, s: PartialSchedule, at: int, i: int, step: int) -> None:
    """Place the ready op at `at`, which was looked at last, on device i; note it in the journal.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule, changed in place.
    at
        Place of the op in `ready`.
    i
        The device.
    step
        Place in the journal.
    """
    v, slot, begin = s.ready[at], s.slot[i], s.begin[i]
    leader = p.group[v]
    s.journal[step, 0], s.journal[step, 1], s.journal[step, 2], s.journal[step, 3] = v, at, i, slot
    s.journal[step, 4] = 0
    if s.decided[leader] < 0:
        s.decided[leader] = i
        s.room[i] -= p.need[leader]
        s.journal[step, 4] = 1
    for k in range(s.size[i], slot, -1):
        s.starts[i, k] = s.starts[i, k - 1]
        s.ends[i, k] = s.ends[i, k - 1]
    if p.rule[0] != PARALLEL:
        _send(p, s, v, i)
    end = s.finish[i]
    s.starts[i, slot] = begin
    s.ends[i, slot] = end
    s.size[i] += 1
    s.device[v] = i
    s.end[v] = end
    s.num_ready[0] -= 1
    s.ready[at] = s.ready[s.num_ready[0]]
    way = end + p.cost_to_go[v, i]
    s.open_ends[0] = max(s.open_ends[0], way)
    if s.unread[v] > 0:
        s.open_ends[1] += way
        s.open_ends[2] += 1.0
    for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
        u = p.pred[e]
        s.unread[u] -= 1
        if s.unread[u] == 0:
            s.open_ends[1] -= s.end[u] + p.cost_to_go[u, s.device[u]]
            s.open_ends[2] -= 1.0
    for e in range(p.succ_indptr[v], p.succ_indptr[v + 1]):
        w = p.succ[e]
        s.waiting[w] -= 1
        if s.waiting[w] == 0:
            s.ready[s.num_ready[0]] = w
            s.num_ready[0] += 1


@njit(cache=True, nogil=True, inline="always")
def take_back(p: OneGraph, s: PartialSchedule, steps: int) -> None:
    """Undo the first `steps` steps of the journal, the last first; open ends and room excepted.

    Parameters
    ----------
    p
        The graph and the policy.
    s
        The partial schedule, changed in place.
    steps
        How many steps of the journal are undone.
    """
    for step in range(steps - 1, -1, -1):
        v, at, i, slot = s.journal[step, 0], s.journal[step, 1], s.journal[step, 2], s.journal[step, 3]
        for e in range(p.succ_indptr[v + 1] - 1, p.succ_indptr[v] - 1, -1):
            w = p.succ[e]
            if s.waiting[w] == 0:
                s.num_ready[0] -= 1
            s.waiting[w] += 1
        for e in range(p.pred_indptr[v + 1] - 1, p.pred_indptr[v] - 1, -1):
            u = p.pred[e]
            s.unread[u] += 1
            if p.rule[0] != PARALLEL and s.reader[u, i] == v:
                s.reader[u, i] = -1
                if p.rule[0] == EXCLUSIVE:
                    s.link[s.device[u], i] = s.link_before[u, i]
        s.ready[s.num_ready[0]] = s.ready[at]
        s.ready[at] = v
        s.num_ready[0] += 1
        s.size[i] -= 1
        for k in range(slot, s.size[i]):
            s.starts[i, k] = s.starts[i, k + 1]
            s.ends[i, k] = s.ends[i, k + 1]
        if s.journal[step, 4]:
            s.decided[p.group[v]] = -1


@njit(cache=True, nogil=True, inline="always")
def makespan_estimate(s: PartialSchedule) -> float:
    """Return how late all would end if nothing more had to wait for a device, in seconds, and a little for the mean.

    The latest, over ops placed, of an op's end and its cost-to-go. Schedules for which that is the same
    differ in how late their other open ends are, so a part of the mean over those counts too.
    """
    estimate: float = s.open_ends[0] + _MEAN_SHARE * s.open_ends[1] / max(1.0, s.open_ends[2])
    return estimate
