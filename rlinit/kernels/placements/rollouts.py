"""Compiled rollouts of the placement policy: op by key, device by score and earliest finish, for many problems at once.

At each step an op is chosen among the ready ones by softmax of its key, then its device by softmax of
``score[v, d] - late_weight[v, d] * (finish[v, d] - earliest) / scale``, where ``finish`` is when v would end on d,
inserted into the first idle slot, and ``earliest`` the least of it over devices. Without scores and with one weight for
all, greedily, that is HEFT. Transfers are planned as if any number ran at once.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays, RolloutTrace
from rlinit.kernels.placements.slots import SLOT_BLOCK, hot_kernel, insert_batch, insert_start


@hot_kernel
def arrived(a: RolloutArrays, g: int, v: int, i: int, device: IntArray, end: FloatArray) -> float:
    """Return when all that op v reads is on device i of graph g.

    Parameters
    ----------
    a
        The batch of problems in one array each.
    g
        Index of the graph.
    v, i
        The op and the device.
    device, end
        (N,) device and end of each op that is placed.
    """
    d = a.device_ptr[g + 1] - a.device_ptr[g]
    latest = 0.0
    for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[e]
        at = end[u]
        if device[u] != i:
            link = a.link_ptr[g] + device[u] * d + i
            at += a.delay[link] + a.tensor[u] * a.s_per_byte[link]
        if at > latest:
            latest = at
    return latest


@njit(cache=True, nogil=True)
def draw_index(rng: np.random.Generator, logits: FloatArray, count: int, temperature: float) -> int:
    """Return an index below `count` drawn by softmax; what is 1e-12 times as likely as the likeliest never is.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    logits
        Logits of which the first `count` are read; at least one of them is finite.
    count
        Number of choices, at least 1.
    temperature
        What logits are divided by, above 0.
    """
    most = -np.inf
    for k in range(count):
        most = max(most, logits[k])
    least = most + np.log(ROUNDING) * temperature  # exponentials take most of the time
    total = 0.0
    for k in range(count):
        if logits[k] >= least:
            total += np.exp((logits[k] - most) / temperature)
    left = rng.random() * total
    last = 0
    for k in range(count):
        if logits[k] < least:
            continue
        last = k
        left -= np.exp((logits[k] - most) / temperature)
        if left < 0.0:
            return k
    return last


@hot_kernel
def likeliest_op(ready: IntArray, count: int, key: FloatArray, place: IntArray) -> int:
    """Return the index of the ready op of greatest key; ties go to the heuristic's order.

    Parameters
    ----------
    ready
        Ready ops, of which the first `count` are read.
    count
        Number of ready ops, at least 1.
    key
        (n,) logit of each op.
    place
        (n,) place of each op in the heuristic's order, distinct.
    """
    best = 0
    for k in range(1, count):
        v, w = ready[k], ready[best]
        if key[v] > key[w] or (key[v] == key[w] and place[v] < place[w]):
            best = k
    return best


@hot_kernel
def likeliest_device(logits: FloatArray, finish: FloatArray, time: FloatArray, count: int) -> int:
    """Return the device of greatest logit; ties go to the earlier finish, then to the shorter time, as in HEFT.

    Parameters
    ----------
    logits
        Logit of each device, -inf where the op fits not.
    finish
        Seconds at which the op would end on each.
    time
        Seconds it takes on each.
    count
        Number of devices, at least 1.
    """
    best = 0
    for i in range(1, count):
        if logits[i] != logits[best]:
            better = logits[i] > logits[best]
        elif finish[i] != finish[best]:
            better = finish[i] < finish[best]
        else:
            better = time[i] < time[best]
        if better:
            best = i
    return best


@hot_kernel
def finishes(
    a: RolloutArrays,
    g: int,
    v: int,
    decided: int,
    device: IntArray,
    end: FloatArray,
    room: FloatArray,
    size: IntArray,
    starts: FloatArray,
    ends: FloatArray,
    widest: FloatArray,
    finish: FloatArray,
) -> float:
    """Write when op v would end on each device (``inf``: not allowed there); return the least.

    `decided` is the device of the op's group, -1 while it has none.

    Parameters
    ----------
    a
        The batch of problems in one array each.
    g
        Index of the graph.
    v
        The op.
    decided
        The device of its group, -1 while it has none.
    device, end
        (N,) device and end of each op that is placed.
    room
        (d,) bytes that are free.
    size, starts, ends, widest
        Busy times of the devices, with the widest gap between them.
    finish
        (d,) to be filled.
    """
    d = a.device_ptr[g + 1] - a.device_ptr[g]
    pair = a.pair_ptr[g] + (v - a.ptr[g]) * d
    earliest = np.inf
    for i in range(d):
        finish[i] = np.inf
        if decided >= 0:
            if i != decided:
                continue
        elif not a.allowed[pair + i] or a.need[a.group[v]] > room[i]:
            continue
        ready = arrived(a, g, v, i, device, end)
        if ready == np.inf:
            continue
        length = a.time[pair + i]
        finish[i] = insert_start(ready, length, size[i], starts[i], ends[i], widest[i])[1] + length
        earliest = min(earliest, finish[i])
    return earliest


@njit(cache=True, nogil=True)
def _choose_op(
    ready: IntArray,
    count: int,
    key: FloatArray,
    place: IntArray,
    temperature: float,
    rng: np.random.Generator,
    logits: FloatArray,
) -> int:
    """Return the index of the next op among the first `count` of `ready`; `logits` is scratch."""
    if temperature <= 0.0:
        best: int = likeliest_op(ready, count, key, place)
        return best
    for k in range(count):
        logits[k] = key[ready[k]]
    return draw_index(rng, logits, count, temperature)


@hot_kernel
def _choose_device(
    score: FloatArray,
    late_weight: FloatArray,
    late: FloatArray,
    finish: FloatArray,
    time: FloatArray,
    temperature: float,
    rng: np.random.Generator,
    logits: FloatArray,
) -> int:
    """Return a device that an op can end on, all arrays (d,) of this op; `logits` is scratch."""
    d = len(finish)
    for i in range(d):
        logits[i] = score[i] - late_weight[i] * late[i] if finish[i] < np.inf else -np.inf
    if temperature > 0.0:
        return draw_index(rng, logits, d, temperature)
    best: int = likeliest_device(logits, finish, time, d)
    return best


@hot_kernel
def _release(consumers: IntArray, low: int, waiting: IntArray, ready: IntArray, count: int) -> int:
    """Append to the `count` ready ops the consumers of an op that wait for nothing more; return how many there are."""
    for w in consumers:
        waiting[w - low] -= 1
        if waiting[w - low] == 0:
            ready[count] = w
            count += 1
    return count


@njit(cache=True, nogil=True)
def _play_one(
    a: RolloutArrays,
    g: int,
    policy: Policy,
    temperature: float,
    rng: np.random.Generator,
    device: IntArray,
    start: FloatArray,
    end: FloatArray,
    chosen: IntArray,
    first: IntArray,
    late: FloatArray,
) -> float:
    """Play one sample of graph g; return its makespan. Arrays are those of one sample, for the whole batch."""
    key, score, late_weight = policy.key, policy.score, policy.late_weight
    low, n = a.ptr[g], a.ptr[g + 1] - a.ptr[g]
    d = a.device_ptr[g + 1] - a.device_ptr[g]
    starts, ends = np.empty((d, n)), np.empty((d, n))
    widest = np.zeros((d, n // SLOT_BLOCK + 1))
    size, room = np.zeros(d, np.int64), a.capacity[a.device_ptr[g] : a.device_ptr[g + 1]].copy()
    decided, waiting = np.full(n, -1, np.int64), np.empty(n, np.int64)
    ready, count, makespan = np.empty(n, np.int64), 0, 0.0
    op_logit, logit, finish = np.empty(n), np.empty(d), np.empty(d)
    for v in range(low, low + n):
        waiting[v - low] = a.pred_indptr[v + 1] - a.pred_indptr[v]
        if waiting[v - low] == 0:
            ready[count] = v
            count += 1
            first[v] = 0
    for step in range(n):
        at = _choose_op(ready, count, key, a.place, temperature, rng, op_logit)
        v, count = ready[at], count - 1
        ready[at] = ready[count]
        chosen[v] = step
        leader = a.group[v] - low
        earliest = finishes(a, g, v, decided[leader], device, end, room, size, starts, ends, widest, finish)
        if earliest == np.inf:
            return np.inf
        pair = a.pair_ptr[g] + (v - low) * d
        own, late_here = slice(pair, pair + d), late[pair : pair + d]
        for i in range(d):
            late_here[i] = (finish[i] - earliest) / a.scale[g]
        i = _choose_device(score[own], late_weight[own], late_here, finish, a.time[own], temperature, rng, logit)
        if decided[leader] < 0:
            decided[leader] = i
            room[i] -= a.need[a.group[v]]
        length = a.time[pair + i]
        slot, begin = insert_start(arrived(a, g, v, i, device, end), length, size[i], starts[i], ends[i], widest[i])
        insert_batch(slot, begin, begin + length, size[i], starts[i], ends[i], widest[i])
        size[i] += 1
        device[v], start[v], end[v] = i, begin, begin + length
        makespan = max(makespan, begin + length)
        consumers = a.succ[a.succ_indptr[v] : a.succ_indptr[v + 1]]
        before, count = count, _release(consumers, low, waiting, ready, count)
        first[ready[before:count]] = step + 1
    return makespan


@njit(cache=True, nogil=True)
def play(
    a: RolloutArrays,
    policy: Policy,
    temperature: float,
    samples: int,
    rng: np.random.Generator,
) -> RolloutTrace:
    """Play `samples` schedules of every graph.

    Parameters
    ----------
    a
        The problems.
    policy
        What the network says of them.
    temperature
        Divides logits; 0: the likeliest choice always.
    rng
        For draws.
    """
    graphs, n, pairs = len(a.ptr) - 1, len(a.tensor), len(a.time)
    value = np.empty((samples, graphs))
    device = np.zeros((samples, n), np.int64)
    start = np.zeros((samples, n))
    chosen, ready = np.zeros((samples, n), np.int64), np.zeros((samples, n), np.int64)
    late = np.full((samples, pairs), np.inf)
    end = np.zeros(n)
    for s in range(samples):
        for g in range(graphs):
            value[s, g] = _play_one(
                a,
                g,
                policy,
                temperature,
                rng,
                device[s],
                start[s],
                end,
                chosen[s],
                ready[s],
                late[s],
            )
    return RolloutTrace(value, device, start, chosen, ready, late)
