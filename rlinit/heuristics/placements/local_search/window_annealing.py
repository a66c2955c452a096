"""Compiled local search over (sequence, device) of whole ops: annealing inside windows, one after another.

A window is a run of consecutive positions of the sequence. What lies before it enters as *heads* (when data and devices
are ready), what lies after it as *tails* (how long it takes from the start of an op to the end of everything, given its
devices and order). So the makespan of every path through the window is known from the window alone, and a pass from one
end of the sequence to the other costs a constant number of passes over the graph however many windows it anneals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.annealing import (
    CHAIN_SHARE,
    DEVICE_SHARE,
    ONLY_DEVICE_SHARE,
    DeviceMemory,
    PassPlan,
    accepted_loss,
    add_member,
    cooling_factor,
    draw_other_device,
)
from rlinit.kernels.placements.slots import append_start, hot_kernel, ready_time, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays

_FIRST, _EDGE = 0, 1
"""Entries of `OpSequence.at`."""


class OpSequence(NamedTuple):
    """A schedule and how far a pass along it has come; n whole ops, d devices.

    `sequence` (n,) is a topological order, `place` (n,) the position of each op, `device` (n,), `held` (d,) bytes. Of
    the ops outside the window, `end` and `tail` (n,) are seconds from the start of all to the op's end, and from its
    start to the end of all; `free` and `rest` (d,) the same for devices at both sides of the window. `nearest` (d,) is
    each device's nearest position beyond the window. `at` (2,) holds the first position of the window and where the
    positions begin that `free` (in a pass backwards: `rest`) does not count yet.
    """

    sequence: IntArray
    place: IntArray
    device: IntArray
    held: FloatArray
    end: FloatArray
    tail: FloatArray
    free: FloatArray
    rest: FloatArray
    nearest: IntArray
    at: IntArray


class _Window(NamedTuple):
    """A window by itself: m ops numbered from 0 by their places when it was cut out, d devices.

    `ops` (m,) are their numbers outside; `time`, `ready` and `after` (m, d) are seconds: of an op, until what comes
    from before the window is there, and from the op's end to the end of all by way of ops beyond the window. `least`
    (m,) is no more than the seconds from the op's end to the end of all, whatever the schedule of the window. `free`
    and `rest` (d,) are heads and tails of devices. Producers and consumers are those in the window. `mate` (m,) is the
    next member that has to be on the same device, round and round; -1 where an op beyond the window has to be.
    """

    ops: IntArray
    time: FloatArray
    ready: FloatArray
    after: FloatArray
    least: FloatArray
    free: FloatArray
    rest: FloatArray
    tensor: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    need: FloatArray
    mate: IntArray


class _Inside(NamedTuple):
    """A window's schedule: `order`, `place` and `device` (m,), `held` (d,) bytes.

    `end` (m,) is when its members end, in what is being tried; `kept` (m,) the same without that. `clock` (m + 1, d) is
    when each device is free before each position, and `reach` (m + 1,) the longest path that ends before it, both of
    what is kept. `now` (d,) and `joined` (m,) are scratch.
    """

    order: IntArray
    place: IntArray
    device: IntArray
    held: FloatArray
    end: FloatArray
    kept: FloatArray
    clock: FloatArray
    reach: FloatArray
    now: FloatArray
    joined: IntArray


def new_op_sequence(sequence: IntArray, device: IntArray, held: FloatArray) -> OpSequence:
    """Return the state that begins at a schedule.

    Parameters
    ----------
    sequence, device
        (n,) ops in a topological order, and the device of each op.
    held
        (d,) bytes of each device.
    """
    n, d = len(sequence), len(held)
    return OpSequence(
        sequence.copy(),
        np.empty(n, np.int64),
        device.copy(),
        held.copy(),
        np.zeros(n),
        np.zeros(n),
        np.zeros(d),
        np.zeros(d),
        np.zeros(d, np.int64),
        np.zeros(2, np.int64),
    )


@hot_kernel
def add_ends(
    a: TimelineArrays,
    first: int,
    last: int,
    sequence: IntArray,
    device: IntArray,
    end: FloatArray,
    free: FloatArray,
) -> None:
    """Schedule positions first..last-1 after those before, in place.

    Parameters
    ----------
    a
        The problem; the last time of an op on a device is that of the whole op.
    first, last
        Positions.
    sequence, device
        (n,) ops in a topological order, and the device of each op.
    end, free
        (n,) when each op ends, (d,) when each device is free; of those before, and then of these.
    """
    for at in range(first, last):
        v = sequence[at]
        i = device[v]
        end[v] = append_start(ready_time(a, v, i, device, end), free[i]) + a.time[v, i, -1]
        free[i] = end[v]


@hot_kernel
def add_tails(
    a: TimelineArrays,
    first: int,
    last: int,
    sequence: IntArray,
    device: IntArray,
    tail: FloatArray,
    rest: FloatArray,
) -> None:
    """Add positions last-1 down to first before those behind, in place: as `add_ends`, mirrored.

    Parameters
    ----------
    a, first, last, sequence, device
        As for `add_ends`.
    tail, rest
        (n,) from each op's start, and (d,) from the first start on each device, to the end of all.
    """
    for at in range(last - 1, first - 1, -1):
        v = sequence[at]
        i = device[v]
        after = rest[i]
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            w = a.succ[q]
            need = tail[w]
            if device[w] != i:
                need += transfer_time(a, v, i, device[w], 1)
            if need > after:
                after = need
        tail[v] = after + a.time[v, i, -1]
        rest[i] = tail[v]


@njit(cache=True, nogil=True)
def begin_pass(a: TimelineArrays, s: OpSequence, plan: PassPlan) -> None:
    """Put the window at the beginning of a pass along the sequence.

    Parameters
    ----------
    a
        The problem.
    s
        The sequence and its window, changed in place.
    plan
        Width and steps of the pass.
    """
    n = len(s.sequence)
    for at in range(n):
        s.place[s.sequence[at]] = at
    s.free[:] = 0.0
    s.rest[:] = 0.0
    if plan.forwards:
        add_tails(a, 0, n, s.sequence, s.device, s.tail, s.rest)
        s.at[_FIRST], s.at[_EDGE] = 0, 0
        s.nearest[:] = 0
    else:
        add_ends(a, 0, n, s.sequence, s.device, s.end, s.free)
        s.at[_FIRST], s.at[_EDGE] = n - min(plan.width, n), n
        s.nearest[:] = n - 1


@njit(cache=True, nogil=True)
def anneal_windows(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: OpSequence,
    plan: PassPlan,
    windows: int,
) -> bool:
    """Anneal the next windows of a pass, in place; False when the last one is done.

    Parameters
    ----------
    rng
        Source of randomness.
    a, memory
        The problem, every op whole, and what limits devices.
    s
        The schedule, after `begin_pass`; calls that follow each other are as one.
    plan
        Windows, moves and temperatures of the pass.
    windows
        Most windows to anneal.
    """
    n = len(s.sequence)
    width = min(plan.width, n)
    for _ in range(windows):
        lo = s.at[_FIRST]
        hi = lo + width
        _move_on(a, s, plan.forwards, lo, hi)
        _anneal_window(rng, _cut_out(a, memory, s, lo, hi), memory.capacity, s, plan)
        if plan.forwards:
            s.at[_EDGE] = lo
            if hi == n:
                return False
            s.at[_FIRST] = min(lo + plan.stride, n - width)
        else:
            s.at[_EDGE] = hi
            if lo == 0:
                return False
            s.at[_FIRST] = max(lo - plan.stride, 0)
    return True


@njit(cache=True, nogil=True)
def end_pass(a: TimelineArrays, s: OpSequence) -> float:
    """Compute when every op ends now, wherever the pass has come to; return the makespan.

    Parameters
    ----------
    a
        The problem.
    s
        The sequence and its window, changed in place.
    """
    s.free[:] = 0.0
    add_ends(a, 0, len(s.sequence), s.sequence, s.device, s.end, s.free)
    return float(s.end.max())


@hot_kernel
def _move_on(a: TimelineArrays, s: OpSequence, forwards: bool, lo: int, hi: int) -> None:
    """Bring `free` and `rest` to the sides of the window lo..hi-1."""
    n, d = len(s.sequence), len(s.free)
    if forwards:
        add_ends(a, s.at[_EDGE], lo, s.sequence, s.device, s.end, s.free)
        for i in range(d):
            at = max(s.nearest[i], hi)
            while at < n and s.device[s.sequence[at]] != i:
                at += 1
            s.nearest[i] = at
            s.rest[i] = s.tail[s.sequence[at]] if at < n else 0.0
    else:
        add_tails(a, hi, s.at[_EDGE], s.sequence, s.device, s.tail, s.rest)
        for i in range(d):
            at = min(s.nearest[i], lo - 1)
            while at >= 0 and s.device[s.sequence[at]] != i:
                at -= 1
            s.nearest[i] = at
            s.free[i] = s.end[s.sequence[at]] if at >= 0 else 0.0


@njit(cache=True, nogil=True)
def _cut_out(a: TimelineArrays, memory: DeviceMemory, s: OpSequence, lo: int, hi: int) -> _Window:
    """Return positions lo..hi-1 by themselves."""
    m, d = hi - lo, len(s.free)
    pred_indptr, succ_indptr = np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64)
    for b in range(m):
        v = s.sequence[lo + b]
        pred_indptr[b + 1], succ_indptr[b + 1] = pred_indptr[b], succ_indptr[b]
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            pred_indptr[b + 1] += s.place[a.pred[q]] >= lo
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            succ_indptr[b + 1] += s.place[a.succ[q]] < hi
    w = _Window(
        s.sequence[lo:hi].copy(),
        np.empty((m, d)),
        np.zeros((m, d)),
        np.zeros((m, d)),
        np.zeros(m),
        s.free,
        s.rest,
        np.empty(m),
        a.s_per_byte,
        a.delay,
        pred_indptr,
        np.empty(pred_indptr[m], np.int64),
        succ_indptr,
        np.empty(succ_indptr[m], np.int64),
        np.empty(m),
        np.empty(m, np.int64),
    )
    for b in range(m):
        v = w.ops[b]
        w.tensor[b] = a.tensor[v]
        w.need[b] = memory.weight[v] + memory.shard[v]
        w.mate[b] = s.place[memory.mate[v]] - lo
        other = memory.mate[v]
        while other != v and w.mate[b] >= 0:
            if not lo <= s.place[other] < hi:
                w.mate[b] = -1
            other = memory.mate[other]
        w.time[b] = a.time[v, :, -1]
        _add_inputs(a, s, w, b, lo)
        _add_outputs(a, s, w, b, lo, hi)
    _bound_tails(w)
    return w


@hot_kernel
def _bound_tails(w: _Window) -> None:
    """Fill in `least`: by the fastest device of every op, without transfers in the window."""
    for b in range(len(w.least) - 1, -1, -1):
        least = np.inf
        for i in range(len(w.free)):
            least = min(least, w.after[b, i])
        for q in range(w.succ_indptr[b], w.succ_indptr[b + 1]):
            c = w.succ[q]
            fastest = np.inf
            for i in range(len(w.free)):
                fastest = min(fastest, w.time[c, i])
            least = max(least, fastest + w.least[c])
        w.least[b] = least


@hot_kernel
def _add_inputs(a: TimelineArrays, s: OpSequence, w: _Window, b: int, lo: int) -> None:
    """Enter the producers of member b: those in the window, and when the others' data are on each device."""
    v, size = w.ops[b], w.pred_indptr[b]
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[q]
        if s.place[u] >= lo:
            w.pred[size] = s.place[u] - lo
            size += 1
            continue
        for i in range(len(w.free)):
            at = s.end[u]
            if s.device[u] != i:
                at += transfer_time(a, u, s.device[u], i, 1)
            w.ready[b, i] = max(w.ready[b, i], at)


@hot_kernel
def _add_outputs(a: TimelineArrays, s: OpSequence, w: _Window, b: int, lo: int, hi: int) -> None:
    """Enter the consumers of member b: those in the window, and the longest way by way of others."""
    v, size = w.ops[b], w.succ_indptr[b]
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        x = a.succ[q]
        if s.place[x] < hi:
            w.succ[size] = s.place[x] - lo
            size += 1
            continue
        for i in range(len(w.free)):
            left = s.tail[x]
            if s.device[x] != i:
                left += transfer_time(a, v, i, s.device[x], 1)
            w.after[b, i] = max(w.after[b, i], left)


@hot_kernel
def _window_cost(w: _Window, x: _Inside, first: int, limit: float) -> float:
    """Return the longest path through the window, in seconds; ``inf`` once it must be longer than `limit`.

    Members before position `first` are as they are kept.
    """
    longest: float = x.reach[first]
    for i in range(len(x.now)):  # Much faster than a slice.
        x.now[i] = x.clock[first, i]
    for place in range(first, len(x.order)):
        b = x.order[place]
        i = x.device[b]
        ready = ready_time(w, b, i, x.device, x.end)
        at = append_start(append_start(ready, w.ready[b, i]), x.now[i]) + w.time[b, i]
        x.end[b] = at
        x.now[i] = at
        if at + w.least[b] > limit:
            return np.inf
        at += w.after[b, i]
        if at > longest:
            longest = at
    for i in range(len(x.now)):
        at = x.now[i] + w.rest[i]
        if at > longest:
            longest = at
    return longest


@hot_kernel
def _commit(w: _Window, x: _Inside, first: int) -> None:
    """Keep what was tried, from a position on."""
    for place in range(first, len(x.order)):
        b = x.order[place]
        i = x.device[b]
        x.kept[b] = x.end[b]
        for j in range(len(x.now)):
            x.clock[place + 1, j] = x.clock[place, j]
        x.clock[place + 1, i] = x.end[b]
        x.reach[place + 1] = max(x.reach[place], x.end[b] + w.after[b, i])


@hot_kernel
def _reset(x: _Inside, first: int) -> None:
    """Forget what was tried, from a position on."""
    for place in range(first, len(x.order)):
        b = x.order[place]
        x.end[b] = x.kept[b]


@hot_kernel
def _connected(rng: np.random.Generator, w: _Window, x: _Inside, b: int, most: int) -> int:
    """Write `most` members at most that edges connect to member b on its device into `joined`; return how many."""
    x.joined[0] = b
    count, head = 1, 0
    while head < count and count < most:
        c = x.joined[head]
        head += 1
        downwards = rng.random() < 0.5
        for turn in range(2):
            indptr, near = (w.succ_indptr, w.succ) if downwards == (turn == 0) else (w.pred_indptr, w.pred)
            for q in range(indptr[c], indptr[c + 1]):
                other = near[q]
                if x.device[other] != x.device[b] or w.mate[other] < 0 or count >= most:
                    continue
                count = add_member(x.joined, count, other)
    return count


@hot_kernel
def _with_mates(w: _Window, x: _Inside, count: int) -> int:
    """Add to the members in `joined` those that have to be on the same devices; return how many there are then."""
    k = 0
    while k < count:
        count = add_member(x.joined, count, w.mate[x.joined[k]])
        k += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _draw_together(
    rng: np.random.Generator, w: _Window, x: _Inside, capacity: FloatArray, b: int, chain: bool
) -> tuple[int, int, float]:
    """Draw members to move from b's device to another, connected ones of a chain or b and those that go with it.

    See `_propose`; `count` is 0 where they cannot.
    """
    j = draw_other_device(rng, x.device[b], len(capacity))
    x.joined[0], count = b, 1
    if chain:
        most = 2 + int(rng.random() * rng.random() * len(x.order))
        count = _connected(rng, w, x, b, most)
    count = _with_mates(w, x, count)
    need, able = 0.0, True
    for k in range(count):
        need += w.need[x.joined[k]]
        able &= w.time[x.joined[k], j] < np.inf
    if not able or x.held[j] + need > capacity[j]:
        count = 0
    return count, j, need


@njit(cache=True, nogil=True, inline="always")
def _draw_swap(
    rng: np.random.Generator, w: _Window, x: _Inside, capacity: FloatArray, b: int, j: int
) -> tuple[int, float]:
    """Draw a member of device j to change places with b; return 2 members or 0, and the bytes that go to j."""
    i, c = x.device[b], int(rng.random() * len(x.order))
    need = w.need[b] - w.need[c]
    if x.device[c] != j or w.mate[c] != c or not w.time[c, i] < np.inf:
        return 0, need
    if x.held[j] + need > capacity[j] or x.held[i] - need > capacity[i]:
        return 0, need
    x.joined[1] = c
    return 2, need


@njit(cache=True, nogil=True, inline="always")
def _draw_place(rng: np.random.Generator, w: _Window, x: _Inside, b: int) -> int:
    """Return a place for b between its producers and its consumers."""
    left, right = 0, len(x.order) - 1
    for q in range(w.pred_indptr[b], w.pred_indptr[b + 1]):
        left = max(left, x.place[w.pred[q]] + 1)
    for q in range(w.succ_indptr[b], w.succ_indptr[b + 1]):
        right = min(right, x.place[w.succ[q]] - 1)
    return left + int(rng.random() * (right - left + 1))


@njit(cache=True, nogil=True, inline="always")
def _propose(rng: np.random.Generator, w: _Window, x: _Inside, capacity: FloatArray) -> tuple[int, int, float, int]:
    """Draw a move: some members change between the device of the first and another, and the first changes its place.

    Returns
    -------
    count, j, need, place
        Members in `joined`, 0 where the move drawn is not possible; the other device, which may be the same; the bytes
        that go there on balance; and the place of the first member.
    """
    d, b = len(capacity), int(rng.random() * len(x.order))
    kind, i, place = rng.random(), x.device[b], x.place[b]
    chain = kind > 1.0 - CHAIN_SHARE
    if d > 1 and w.mate[b] >= 0 and (chain or (kind < DEVICE_SHARE and w.mate[b] != b)):
        count, j, need = _draw_together(rng, w, x, capacity, b, chain)
        return count, j, need, place
    x.joined[0] = b
    j = i
    if kind < DEVICE_SHARE and w.mate[b] == b and d > 1:
        j = draw_other_device(rng, i, d)
        if not w.time[b, j] < np.inf:
            return 0, j, 0.0, place
        if x.held[j] + w.need[b] > capacity[j]:
            count, need = _draw_swap(rng, w, x, capacity, b, j)
            return count, j, need, place
    if kind > ONLY_DEVICE_SHARE:
        place = _draw_place(rng, w, x, b)
    count = 0 if j == i and place == x.place[b] else 1
    return count, j, w.need[b], place


@njit(cache=True, nogil=True, inline="always")
def _switch(x: _Inside, count: int, i: int, j: int) -> None:
    """Put the members joined that are on device i on device j, and the other way round: its own inverse."""
    for k in range(count):
        b = x.joined[k]
        x.device[b] = j if x.device[b] == i else i


@njit(cache=True, nogil=True, inline="always")
def _keep(x: _Inside, best: _Inside) -> None:
    """Copy a window's schedule."""
    for b in range(len(x.order)):
        best.order[b] = x.order[b]
        best.device[b] = x.device[b]
    for i in range(len(x.held)):
        best.held[i] = x.held[i]


@hot_kernel
def _make_moves(
    rng: np.random.Generator,
    w: _Window,
    x: _Inside,
    best: _Inside,
    capacity: FloatArray,
    plan: PassPlan,
) -> None:
    """Make the moves of a window, from `x` on; leave in `best` (a copy of `x` at first) the best of them."""
    cost = _window_cost(w, x, 0, np.inf)
    _commit(w, x, 0)
    before, least = cost, cost
    cooling, temperature = cooling_factor(plan.hot, plan.cold, plan.moves), plan.hot
    for _ in range(plan.moves):
        temperature *= cooling
        count, j, need, place = _propose(rng, w, x, capacity)
        if count == 0:
            continue
        i, old_place = x.device[x.joined[0]], x.place[x.joined[0]]
        start = min(place, old_place)
        for k in range(1, count):
            start = min(start, x.place[x.joined[k]])
        if place != old_place:
            shift(x.order, x.place, 1, old_place, place)
        _switch(x, count, i, j)
        limit = cost + accepted_loss(rng, temperature)
        tried = _window_cost(w, x, start, limit)
        if not tried <= limit:
            _switch(x, count, j, i)
            if place != old_place:
                shift(x.order, x.place, 1, place, old_place)
            _reset(x, start)
            continue
        _commit(w, x, start)
        cost = tried
        x.held[i] -= need
        x.held[j] += need
        if cost < least:
            least = cost
            _keep(x, best)
    if cost <= before and cost <= least:
        _keep(x, best)  # As good as the best: take the last one, so that equal schedules drift.


@njit(cache=True, nogil=True)
def _inside(s: OpSequence, ops: IntArray) -> _Inside:
    """Return the schedule of a window's ops as it is."""
    m, d = len(ops), len(s.held)
    clock = np.empty((m + 1, d))
    clock[0] = s.free
    return _Inside(
        np.arange(m),
        np.arange(m),
        s.device[ops],
        s.held.copy(),
        np.empty(m),
        np.empty(m),
        clock,
        np.zeros(m + 1),
        np.empty(d),
        np.empty(m, np.int64),
    )


@njit(cache=True, nogil=True)
def _anneal_window(rng: np.random.Generator, w: _Window, capacity: FloatArray, s: OpSequence, plan: PassPlan) -> None:
    """Anneal a window that was cut out, and put the best of it back."""
    best = _inside(s, w.ops)
    _make_moves(rng, w, _inside(s, w.ops), best, capacity, plan)
    s.held[:] = best.held
    lo = s.place[w.ops[0]]
    for at in range(len(w.ops)):
        v = w.ops[best.order[at]]
        s.sequence[lo + at] = v
        s.place[v] = lo + at
        s.device[v] = best.device[best.order[at]]
