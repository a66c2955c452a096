"""Compiled local search over (sequence, device): annealing inside windows of the sequence, swept along it.

A window is a run of consecutive positions. What lies before it enters as *heads* (when data and devices are ready),
what lies after it as *tails* (how long it takes from the start of an op to the end of everything, given its devices
and order). So the makespan of every path through the window is known from the window alone, and a sweep from one end
of the sequence to the other costs a constant number of passes over the graph however many windows it anneals.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift

__all__ = ["ends_of", "sweep", "tails_of"]

_CHAIN_SHARE = 0.85
"""Of the moves, the rest change the device of several connected ops."""


@njit(cache=True, nogil=True, inline="always")
def _moved(u: int, j: int, i: int, tensor_bytes: FloatArray, s_per_byte: FloatArray, delay_s: FloatArray) -> float:
    seconds: float = delay_s[j, i] + tensor_bytes[u] * s_per_byte[j, i]
    return seconds if i != j else 0.0


@njit(cache=True, nogil=True)
def ends_of(
    first: int,
    last: int,
    sequence: IntArray,
    device: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    end: FloatArray,
    free: FloatArray,
) -> None:
    """Schedule positions first..last-1 in place: `end` ((n,) of ops), `free` ((d,) when each device is free)."""
    for at in range(first, last):
        v = sequence[at]
        i = device[v]
        start = free[i]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            ready = end[u] + _moved(u, device[u], i, tensor_bytes, s_per_byte, delay_s)
            if ready > start:
                start = ready
        end[v] = start + time_s[v, i]
        free[i] = end[v]


@njit(cache=True, nogil=True)
def tails_of(
    first: int,
    last: int,
    sequence: IntArray,
    device: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    succ_indptr: IntArray,
    succ: IntArray,
    tail: FloatArray,
    rest: FloatArray,
) -> None:
    """Add positions last-1 down to first, in place: `tail` ((n,) from an op's start to the end of all) and `rest`."""
    for at in range(last - 1, first - 1, -1):
        v = sequence[at]
        i = device[v]
        after = rest[i]
        for q in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[q]
            need = tail[w] + _moved(v, i, device[w], tensor_bytes, s_per_byte, delay_s)
            if need > after:
                after = need
        tail[v] = after + time_s[v, i]
        rest[i] = tail[v]


@njit(cache=True, nogil=True)
def sweep(
    rng: np.random.Generator,
    forwards: bool,
    width: int,
    stride: int,
    moves: int,
    hot: float,
    cold: float,
    sequence: IntArray,
    device: IntArray,
    movable: np.ndarray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    need_bytes: FloatArray,
    held: FloatArray,
    capacity: FloatArray,
    price: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    end: FloatArray,
    tail: FloatArray,
) -> float:
    """Anneal one window after another along the sequence, in place; return the makespan.

    Without prices it is never more than before.

    Parameters
    ----------
    forwards
        From the first position to the last, or back.
    width, stride
        Positions of a window, and from one window to the next.
    moves
        Evaluations in each window.
    hot, cold
        First and last temperature in seconds.
    sequence, device
        (n,) ops in a topological order, and the device of each op; changed in place.
    movable
        (n,) bool: whether an op may change device on its own.
    need_bytes, held, capacity
        (n,), (d,), (d,) bytes of each op, of each device now (changed in place), and each device's memory.
    price
        (d,) seconds a byte on a device adds to the cost of a window; zeros: the makespan is all that counts.
    end, tail
        (n,) work arrays.
    """
    n, d = len(sequence), len(capacity)
    width = min(width, n)
    free, rest = np.zeros(d), np.zeros(d)
    place = np.empty(n, np.int64)
    for at in range(n):
        place[sequence[at]] = at
    if forwards:
        tails_of(0, n, sequence, device, time_s, tensor_bytes, s_per_byte, delay_s, succ_indptr, succ, tail, rest)
    else:
        ends_of(0, n, sequence, device, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, free)
    first = 0 if forwards else n - width
    # Where the other side begins: the positions whose tails (or ends) count in `rest` (or `free`).
    edge = 0 if forwards else n
    # Of each device, the nearest position on it beyond the window, which only ever moves on.
    nearest = np.full(d, 0 if forwards else n - 1)
    while True:
        lo, hi = first, first + width
        if forwards:
            ends_of(edge, lo, sequence, device, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, free)
            for i in range(d):
                at = max(nearest[i], hi)
                while at < n and device[sequence[at]] != i:
                    at += 1
                nearest[i] = at
                rest[i] = tail[sequence[at]] if at < n else 0.0
        else:
            tails_of(
                hi, edge, sequence, device, time_s, tensor_bytes, s_per_byte, delay_s, succ_indptr, succ, tail, rest
            )
            for i in range(d):
                at = min(nearest[i], lo - 1)
                while at >= 0 and device[sequence[at]] != i:
                    at -= 1
                nearest[i] = at
                free[i] = end[sequence[at]] if at >= 0 else 0.0
        _anneal_window(
            rng,
            lo,
            hi,
            moves,
            hot,
            cold,
            sequence,
            place,
            device,
            movable,
            time_s,
            tensor_bytes,
            need_bytes,
            held,
            capacity,
            price,
            s_per_byte,
            delay_s,
            pred_indptr,
            pred,
            succ_indptr,
            succ,
            end,
            tail,
            free,
            rest,
        )
        if forwards:
            edge = lo
            if hi == n:
                break
            first = min(first + stride, n - width)
        else:
            edge = hi
            if lo == 0:
                break
            first = max(first - stride, 0)
    free[:] = 0.0
    ends_of(0, n, sequence, device, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, free)
    return float(end.max())


@njit(cache=True, nogil=True)
def _anneal_window(
    rng: np.random.Generator,
    lo: int,
    hi: int,
    moves: int,
    hot: float,
    cold: float,
    sequence: IntArray,
    place: IntArray,
    device: IntArray,
    movable: np.ndarray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    need_bytes: FloatArray,
    held: FloatArray,
    capacity: FloatArray,
    price: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    end: FloatArray,
    tail: FloatArray,
    free: FloatArray,
    rest: FloatArray,
) -> None:
    """Anneal positions lo..hi-1; `free` and `rest` are the devices' heads and tails at the window's ends."""
    size, d = hi - lo, len(capacity)
    # Local copies: op, device, heads by device, tails by device, and edges between members by local number.
    ops = sequence[lo:hi].copy()
    ready = np.zeros((size, d))
    after = np.zeros((size, d))
    work = np.empty((size, d))
    before_indptr = np.zeros(size + 1, np.int64)
    behind_indptr = np.zeros(size + 1, np.int64)
    count_before, count_behind = 0, 0
    for a in range(size):
        v = ops[a]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            if place[pred[q]] >= lo:
                count_before += 1
        for q in range(succ_indptr[v], succ_indptr[v + 1]):
            if place[succ[q]] < hi:
                count_behind += 1
    before = np.empty(count_before, np.int64)
    behind = np.empty(count_behind, np.int64)
    count_before, count_behind = 0, 0
    for a in range(size):
        v = ops[a]
        for i in range(d):
            work[a, i] = time_s[v, i]
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            if place[u] >= lo:
                before[count_before] = place[u] - lo
                count_before += 1
            else:
                for i in range(d):
                    at = end[u] + _moved(u, device[u], i, tensor_bytes, s_per_byte, delay_s)
                    if at > ready[a, i]:
                        ready[a, i] = at
        for q in range(succ_indptr[v], succ_indptr[v + 1]):
            w = succ[q]
            if place[w] < hi:
                behind[count_behind] = place[w] - lo
                count_behind += 1
            else:
                for i in range(d):
                    left = tail[w] + _moved(v, i, device[w], tensor_bytes, s_per_byte, delay_s)
                    if left > after[a, i]:
                        after[a, i] = left
        before_indptr[a + 1] = count_before
        behind_indptr[a + 1] = count_behind
    order = np.arange(size)
    spot = np.arange(size)
    on = np.empty(size, np.int64)
    for a in range(size):
        on[a] = device[ops[a]]
    ends = np.empty(size)
    clock = np.empty(d)
    cost = _window_cost(
        order,
        on,
        work,
        ready,
        after,
        before_indptr,
        before,
        ops,
        tensor_bytes,
        s_per_byte,
        delay_s,
        free,
        rest,
        ends,
        clock,
    )
    origin = cost
    best = cost
    paid = 0.0
    best_order, best_on = order.copy(), on.copy()
    room = held.copy()
    best_held = held.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1)) if hot > 0.0 else 1.0
    heat = hot
    joined = np.empty(size, np.int64)
    for _ in range(moves):
        heat *= cooling
        a = int(rng.random() * size)
        kind = rng.random()
        old_on = on[a]
        if kind > _CHAIN_SHARE and d > 1 and movable[ops[a]]:
            # Several connected ops of one device change to another together.
            new_on = int(rng.random() * (d - 1))
            if new_on >= old_on:
                new_on += 1
            most = 2 + int(rng.random() * rng.random() * size)
            count = _connected(rng, a, most, on, movable, ops, before_indptr, before, behind_indptr, behind, joined)
            need, able = 0.0, True
            for k in range(count):
                need += need_bytes[ops[joined[k]]]
                able &= work[joined[k], new_on] < np.inf
            if not able or room[new_on] + need > capacity[new_on]:
                continue
            extra = need * (price[new_on] - price[old_on])
            for k in range(count):
                on[joined[k]] = new_on
            tried = _window_cost(
                order,
                on,
                work,
                ready,
                after,
                before_indptr,
                before,
                ops,
                tensor_bytes,
                s_per_byte,
                delay_s,
                free,
                rest,
                ends,
                clock,
            )
            tried += paid + extra
            if tried <= cost or (heat > 0.0 and rng.random() < np.exp((cost - tried) / heat)):
                cost = tried
                paid += extra
                room[old_on] -= need
                room[new_on] += need
                if cost < best:
                    best = cost
                    best_order[:] = order
                    best_on[:] = on
                    best_held[:] = room
            else:
                for k in range(count):
                    on[joined[k]] = old_on
            continue
        new_on = old_on
        if kind < 0.55 and movable[ops[a]] and d > 1:
            new_on = int(rng.random() * (d - 1))
            if new_on >= old_on:
                new_on += 1
            if not work[a, new_on] < np.inf:
                continue
            if room[new_on] + need_bytes[ops[a]] > capacity[new_on]:
                # No room: change places with an op that is there.
                b = int(rng.random() * size)
                need = need_bytes[ops[a]] - need_bytes[ops[b]]
                if on[b] != new_on or not movable[ops[b]] or not work[b, old_on] < np.inf:
                    continue
                if room[new_on] + need > capacity[new_on] or room[old_on] - need > capacity[old_on]:
                    continue
                on[a], on[b] = new_on, old_on
                extra = need * (price[new_on] - price[old_on])
                tried = (
                    paid
                    + extra
                    + _window_cost(
                        order,
                        on,
                        work,
                        ready,
                        after,
                        before_indptr,
                        before,
                        ops,
                        tensor_bytes,
                        s_per_byte,
                        delay_s,
                        free,
                        rest,
                        ends,
                        clock,
                    )
                )
                if tried <= cost or (heat > 0.0 and rng.random() < np.exp((cost - tried) / heat)):
                    cost = tried
                    paid += extra
                    room[old_on] -= need
                    room[new_on] += need
                    if cost < best:
                        best = cost
                        best_order[:] = order
                        best_on[:] = on
                        best_held[:] = room
                else:
                    on[a], on[b] = old_on, new_on
                continue
        old_spot = spot[a]
        new_spot = old_spot
        if kind > 0.35:
            left, right = 0, size - 1
            for q in range(before_indptr[a], before_indptr[a + 1]):
                if spot[before[q]] + 1 > left:
                    left = spot[before[q]] + 1
            for q in range(behind_indptr[a], behind_indptr[a + 1]):
                if spot[behind[q]] - 1 < right:
                    right = spot[behind[q]] - 1
            new_spot = left + int(rng.random() * (right - left + 1))
        if new_on == old_on and new_spot == old_spot:
            continue
        shift(order, spot, 1, old_spot, new_spot)
        on[a] = new_on
        tried = _window_cost(
            order,
            on,
            work,
            ready,
            after,
            before_indptr,
            before,
            ops,
            tensor_bytes,
            s_per_byte,
            delay_s,
            free,
            rest,
            ends,
            clock,
        )
        extra = need_bytes[ops[a]] * (price[new_on] - price[old_on])
        tried += paid + extra
        if tried <= cost or (heat > 0.0 and rng.random() < np.exp((cost - tried) / heat)):
            cost = tried
            paid += extra
            room[old_on] -= need_bytes[ops[a]]
            room[new_on] += need_bytes[ops[a]]
            if cost < best:
                best = cost
                best_order[:] = order
                best_on[:] = on
                best_held[:] = room
        else:
            on[a] = old_on
            shift(order, spot, 1, new_spot, old_spot)
    if cost <= origin and cost <= best:
        # As good as the best: take the last one, so that equal schedules drift.
        best_order[:] = order
        best_on[:] = on
        best_held[:] = room
    held[:] = best_held
    for at in range(size):
        a = best_order[at]
        sequence[lo + at] = ops[a]
        place[ops[a]] = lo + at
        device[ops[a]] = best_on[a]


@njit(cache=True, nogil=True)
def _connected(
    rng: np.random.Generator,
    a: int,
    most: int,
    on: IntArray,
    movable: np.ndarray,
    ops: IntArray,
    before_indptr: IntArray,
    before: IntArray,
    behind_indptr: IntArray,
    behind: IntArray,
    joined: IntArray,
) -> int:
    """Write `most` members at most that edges connect to member `a` on its device into `joined`; return how many."""
    joined[0] = a
    count, head = 1, 0
    while head < count and count < most:
        b = joined[head]
        head += 1
        downwards = rng.random() < 0.5
        for turn in range(2):
            indptr, near = (behind_indptr, behind) if downwards == (turn == 0) else (before_indptr, before)
            for q in range(indptr[b], indptr[b + 1]):
                c = near[q]
                if on[c] != on[a] or not movable[ops[c]] or count >= most:
                    continue
                known = False
                for k in range(count):
                    known |= joined[k] == c
                if not known:
                    joined[count] = c
                    count += 1
    return count


@njit(cache=True, nogil=True)
def _window_cost(
    order: IntArray,
    on: IntArray,
    work: FloatArray,
    ready: FloatArray,
    after: FloatArray,
    before_indptr: IntArray,
    before: IntArray,
    ops: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    free: FloatArray,
    rest: FloatArray,
    ends: FloatArray,
    clock: FloatArray,
) -> float:
    """Return the longest path through the window."""
    longest = 0.0
    clock[:] = free
    for a in order:
        i = on[a]
        start = max(clock[i], ready[a, i])
        for q in range(before_indptr[a], before_indptr[a + 1]):
            b = before[q]
            at = ends[b]
            if on[b] != i:
                at += delay_s[on[b], i] + tensor_bytes[ops[b]] * s_per_byte[on[b], i]
            if at > start:
                start = at
        at = start + work[a, i]
        ends[a] = at
        clock[i] = at
        at += after[a, i]
        if at > longest:
            longest = at
    for i in range(len(clock)):
        at = clock[i] + rest[i]
        if at > longest:
            longest = at
    return longest
