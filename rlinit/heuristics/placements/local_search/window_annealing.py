"""Compiled local search over (sequence, device) of batches: annealing inside windows, one after another.

A window is a run of consecutive positions of the sequence. What lies before it enters as *heads* (when data and devices
are ready), what lies after it as *tails* (how long it takes from the start of a batch to the end of everything, given
its devices and order). So the makespan of every path through the window is known from the window alone, and a pass from
one end of the sequence to the other costs a constant number of passes over the graph however many windows it anneals.

A batch is some shards of an op, as bits, on a device. Where an op has one shard, heads and tails of the window's ops do
not depend on its schedule but for their devices, and are tabulated.
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
    RUN_SHARE,
    DeviceMemory,
    PassPlan,
    accepted_loss,
    add_member,
    cooling_factor,
    draw_other_device,
    draw_run,
)
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count, hot_kernel, transfer_time
from rlinit.kernels.placements.timeline import TimelineArrays

_FIRST, _EDGE, _SIZE, _LAST = 0, 1, 2, 3
"""Entries of `BatchSequence.at`."""

_COUNT, _TRIED, _CHANGED = 0, 1, 2
"""Entries of `_Inside.size`."""

_LOST, _GROWN = 0, 1
"""Entries of `_Inside.moved`."""


class BatchSequence(NamedTuple):
    """A schedule and how far a pass along it has come; n ops of s shards, d devices.

    `sequence` (n * min(s, d),) holds batches as op * d + device in a topological order, `place` (n * d,) the position
    of
    each, -1 where a device has no shard of the op; `mask` (n, d) shards as bits, `held` (d,) bytes. Of the batches
    outside the window, `end` and `tail` (n, d) are seconds from the start of all to the batch's end, and from its start
    to the end of all; `free` and `rest` (d,) the same for devices at both sides of the window. `nearest` (d,) is each
    device's nearest position beyond the window, `member` (n,) the number of each op in the window, -1 elsewhere. `at`
    (4,) holds the first position of the window, where the positions begin that `free` (in a pass backwards: `rest`)
    does not count yet, the number of batches, and where those begin whose tails hold, in a pass forwards.
    """

    sequence: IntArray
    place: IntArray
    mask: IntArray
    held: FloatArray
    end: FloatArray
    tail: FloatArray
    free: FloatArray
    rest: FloatArray
    nearest: IntArray
    member: IntArray
    at: IntArray

    @property
    def num_batches(self) -> int:
        """Batches of the schedule."""
        return int(self.at[_SIZE])


class _Window(NamedTuple):
    """A window by itself: m ops numbered from 0 by their places when it was cut out, d devices.

    A batch has the code op << `bits` | device, and what is said of batches has a row for each code. `ops` (m,) are the
    numbers of ops outside; `time` (codes, s + 1), and for whole ops `ready` and `after` (codes,), are seconds: of a
    batch, until what comes from before the window is there, and from the op's end to the end of all by way of ops
    beyond the window. `least` (m,) is no more than the seconds from the op's end to the end of all, whatever
    the schedule of the window. `free` and `rest` (d,) are heads and tails of devices. Producers and consumers are those
    in the window. `mate` (m,) is the next member that has to be on the same device, round and round; -1 where an op
    beyond the window has to be.
    """

    ops: IntArray
    time: FloatArray
    ready: FloatArray
    after: FloatArray
    least: FloatArray
    free: FloatArray
    rest: FloatArray
    tensor: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    weight: FloatArray
    shard: FloatArray
    mate: IntArray
    bits: int


class _Inside(NamedTuple):
    """A window's schedule, in what is being tried: batches by code.

    `size` (3,) holds their number, the last position that was looked at and the last one that was changed.
    `order` holds them by position, `place` (codes,) the position of each, -1 where it is empty or outside; `mask`
    (codes,) shards, `first` (m,) some batch of each op, `held` (d,) bytes, `end` (codes,). `kept_order`, `kept_size`,
    `kept_mask` and `kept_end` are the same without what is tried. `clock` (positions + 1, d) is when each device is
    free before each position, and `reach` (positions + 1,) the longest path that ends before it, both of what is kept.
    `now` (d,), `through` (positions,), `moved` (2,) and `joined` (m,) are scratch.
    """

    size: IntArray
    order: IntArray
    place: IntArray
    mask: IntArray
    first: IntArray
    held: FloatArray
    end: FloatArray
    kept_size: IntArray
    kept_order: IntArray
    kept_mask: IntArray
    kept_end: FloatArray
    clock: FloatArray
    reach: FloatArray
    now: FloatArray
    through: FloatArray
    moved: FloatArray
    joined: IntArray


class _Best(NamedTuple):
    """The best schedule of a window so far; see `_Inside`."""

    size: IntArray
    order: IntArray
    mask: IntArray
    held: FloatArray


def new_batch_sequence(sequence: IntArray, mask: IntArray, held: FloatArray, num_shards: int) -> BatchSequence:
    """Return the state that begins at a schedule.

    Parameters
    ----------
    sequence
        Batches op * d + device in a topological order.
    mask
        (n, d) shards of each batch as bits.
    held
        (d,) bytes of each device.
    num_shards
        Shards of an op.
    """
    n, d = mask.shape
    room = np.empty(n * min(num_shards, d), np.int64)
    room[: len(sequence)] = sequence
    return BatchSequence(
        room,
        np.full(n * d, -1),
        mask.copy(),
        held.copy(),
        np.zeros((n, d)),
        np.zeros((n, d)),
        np.zeros(d),
        np.zeros(d),
        np.zeros(d, np.int64),
        np.full(n, -1),
        np.array([0, 0, len(sequence), 0]),
    )


@hot_kernel
def _outside_after(a: TimelineArrays, s: BatchSequence, v: int, i: int, shards: int, beyond: int) -> float:
    """Return the longest way from the end of a batch to the end of all by way of batches from `beyond` on."""
    d = len(s.free)
    longest = 0.0
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        w = a.succ[q]
        sent = shards
        for j in range(d):
            shared = s.mask[w, j] & sent
            if shared == 0:
                continue
            sent ^= shared
            if s.place[w * d + j] >= beyond:
                need = s.tail[w, j]
                if j != i:
                    need += transfer_time(a, v, i, j, bit_count(shared))
                if need > longest:
                    longest = need
            if sent == 0:
                break
    return longest


@hot_kernel
def _add_ends(a: TimelineArrays, s: BatchSequence, lo: int, hi: int) -> None:
    """Append the batches at positions lo..hi-1 to their devices, which are free from `free` on."""
    d = len(s.free)
    for at in range(lo, hi):
        v, i = s.sequence[at] // d, s.sequence[at] % d
        ready = batch_ready_time(a, v, i, s.mask[v, i], s.mask, s.end)
        s.end[v, i] = append_start(ready, s.free[i]) + a.time[v, i, bit_count(s.mask[v, i])]
        s.free[i] = s.end[v, i]


@hot_kernel
def _add_tails(a: TimelineArrays, s: BatchSequence, lo: int, hi: int) -> None:
    """Put the batches at positions lo..hi-1 before what their devices run after them, which takes `rest`."""
    d = len(s.free)
    for at in range(hi - 1, lo - 1, -1):
        v, i = s.sequence[at] // d, s.sequence[at] % d
        after = max(s.rest[i], _outside_after(a, s, v, i, s.mask[v, i], 0))
        s.tail[v, i] = after + a.time[v, i, bit_count(s.mask[v, i])]
        s.rest[i] = s.tail[v, i]


@njit(cache=True, nogil=True)
def begin_pass(a: TimelineArrays, s: BatchSequence, plan: PassPlan) -> None:
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
    size = s.at[_SIZE]
    s.place[:] = -1
    for at in range(size):
        s.place[s.sequence[at]] = at
    s.free[:] = 0.0
    s.rest[:] = 0.0
    if plan.forwards:
        _add_tails(a, s, 0, size)
        s.at[_FIRST], s.at[_EDGE], s.at[_LAST] = 0, 0, 0
        s.nearest[:] = 0
    else:
        _add_ends(a, s, 0, size)
        s.at[_FIRST], s.at[_EDGE] = max(0, size - plan.width), size
        s.nearest[:] = size - 1


@njit(cache=True, nogil=True)
def anneal_windows(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: BatchSequence,
    plan: PassPlan,
    windows: int,
    num_shards: int | None,
) -> bool:
    """Anneal the next windows of a pass, in place; False when the last one is done.

    Parameters
    ----------
    rng
        Source of randomness.
    a, memory
        The problem, and what limits devices.
    s
        The schedule, after `begin_pass`; calls that follow each other are as one.
    plan
        Windows, moves and temperatures of the pass.
    windows
        Most windows to anneal.
    num_shards
        Shards of an op; None where ops are whole, for which code of its own is compiled.
    """
    for _ in range(windows):
        lo = s.at[_FIRST]
        hi = min(max(lo + plan.width, s.at[_LAST]), s.at[_SIZE]) if plan.forwards else min(lo + plan.width, s.at[_EDGE])
        _move_on(a, s, plan.forwards, lo, hi)
        hi = _anneal_window(rng, a, memory, s, plan, lo, hi, num_shards)
        if plan.forwards:
            s.at[_EDGE], s.at[_LAST] = lo, hi
            if hi == s.at[_SIZE]:
                return False
            s.at[_FIRST] = max(lo, min(lo + plan.stride, s.at[_SIZE] - plan.width))
        else:
            s.at[_EDGE] = hi
            if lo == 0:
                return False
            s.at[_FIRST] = max(lo - plan.stride, 0)
    return True


@njit(cache=True, nogil=True)
def end_pass(a: TimelineArrays, s: BatchSequence) -> float:
    """Compute when every batch ends now, wherever the pass has come to; return the makespan.

    Parameters
    ----------
    a
        The problem.
    s
        The sequence and its window, changed in place.
    """
    s.free[:] = 0.0
    _add_ends(a, s, 0, s.at[_SIZE])
    return float(s.free.max())


@hot_kernel
def _move_on(a: TimelineArrays, s: BatchSequence, forwards: bool, lo: int, hi: int) -> None:
    """Bring `free` and `rest` to the sides of the window lo..hi-1."""
    d, size = len(s.free), s.at[_SIZE]
    if forwards:
        _add_ends(a, s, s.at[_EDGE], lo)
        for i in range(d):
            at = max(s.nearest[i], hi)
            while at < size and s.sequence[at] % d != i:
                at += 1
            s.nearest[i] = at
            s.rest[i] = s.tail[s.sequence[at] // d, i] if at < size else 0.0
    else:
        _add_tails(a, s, hi, s.at[_EDGE])
        for i in range(d):
            at = min(s.nearest[i], lo - 1)
            while at >= 0 and s.sequence[at] % d != i:
                at -= 1
            s.nearest[i] = at
            s.free[i] = s.end[s.sequence[at] // d, i] if at >= 0 else 0.0


@njit(cache=True, nogil=True)
def _cut_out(a: TimelineArrays, memory: DeviceMemory, s: BatchSequence, lo: int, hi: int) -> _Window:
    """Return positions lo..hi-1 by themselves, and number their ops."""
    d, ops = len(s.free), np.empty(hi - lo, np.int64)
    m = 0
    for at in range(lo, hi):
        v = s.sequence[at] // d
        if s.member[v] < 0:
            s.member[v] = m
            ops[m] = v
            m += 1
    pred_indptr, succ_indptr = np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64)
    for b in range(m):
        v = ops[b]
        pred_indptr[b + 1], succ_indptr[b + 1] = pred_indptr[b], succ_indptr[b]
        for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            pred_indptr[b + 1] += s.member[a.pred[q]] >= 0
        for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            succ_indptr[b + 1] += s.member[a.succ[q]] >= 0
    bits = 0
    while 1 << bits < d:
        bits += 1
    w = _Window(
        ops[:m].copy(),
        np.empty((m << bits, a.time.shape[2])),
        np.zeros(m << bits),
        np.zeros(m << bits),
        np.zeros(m),
        s.free,
        s.rest,
        np.empty(m),
        pred_indptr,
        np.empty(pred_indptr[m], np.int64),
        succ_indptr,
        np.empty(succ_indptr[m], np.int64),
        np.empty(m),
        np.empty(m),
        np.empty(m, np.int64),
        bits,
    )
    for b in range(m):
        v = w.ops[b]
        w.tensor[b], w.weight[b], w.shard[b] = a.tensor[v], memory.weight[v], memory.shard[v]
        w.mate[b] = s.member[memory.mate[v]]
        other = memory.mate[v]
        while other != v and w.mate[b] >= 0:
            if s.member[other] < 0:
                w.mate[b] = -1
            other = memory.mate[other]
        w.time[b << bits : (b << bits) + d] = a.time[v]
        _join_neighbours(a, s, w, b)
    if a.time.shape[2] == 2:
        for b in range(m):
            _tabulate(a, s, w, b)
        _bound_tails(w)
    return w


@hot_kernel
def _join_neighbours(a: TimelineArrays, s: BatchSequence, w: _Window, b: int) -> None:
    """Enter the producers and consumers of member b that are members."""
    v, size = w.ops[b], w.pred_indptr[b]
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        if s.member[a.pred[q]] >= 0:
            w.pred[size] = s.member[a.pred[q]]
            size += 1
    size = w.succ_indptr[b]
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        if s.member[a.succ[q]] >= 0:
            w.succ[size] = s.member[a.succ[q]]
            size += 1


@njit(cache=True, nogil=True, inline="always")
def _device_of(s: BatchSequence, v: int) -> int:
    """Return the device of a whole op."""
    i = 0
    while s.mask[v, i] == 0:
        i += 1
    return i


@hot_kernel
def _tabulate(a: TimelineArrays, s: BatchSequence, w: _Window, b: int) -> None:
    """Enter when the data from before the window are on each device, and the longest ways beyond it, of a whole op."""
    v, row = w.ops[b], b << w.bits
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        u = a.pred[q]
        if s.member[u] < 0:
            j = _device_of(s, u)
            for i in range(len(w.free)):
                at = s.end[u, j] + (transfer_time(a, u, j, i, 1) if j != i else 0.0)
                w.ready[row | i] = max(w.ready[row | i], at)
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        c = a.succ[q]
        if s.member[c] < 0:
            j = _device_of(s, c)
            for i in range(len(w.free)):
                need = s.tail[c, j] + (transfer_time(a, v, i, j, 1) if j != i else 0.0)
                w.after[row | i] = max(w.after[row | i], need)


@njit(cache=True, nogil=True, inline="always")
def _arrival(a: TimelineArrays, s: BatchSequence, u: int, i: int, wanted: int) -> float:
    """Return when some shards of an op before the window are on a device."""
    latest, left = 0.0, wanted
    for j in range(len(s.free)):
        shared = s.mask[u, j] & left
        if shared == 0:
            continue
        left ^= shared
        at = s.end[u, j]
        if j != i:
            at += transfer_time(a, u, j, i, bit_count(shared))
        latest = max(latest, at)
        if left == 0:
            break
    return latest


@hot_kernel
def _bound_tails(w: _Window) -> None:
    """Fill in `least`: by the fastest device of every op, without transfers in the window."""
    for b in range(len(w.least) - 1, -1, -1):
        least = np.inf
        for i in range(len(w.free)):
            least = min(least, w.after[b << w.bits | i])
        for q in range(w.succ_indptr[b], w.succ_indptr[b + 1]):
            c = w.succ[q]
            fastest = np.inf
            for i in range(len(w.free)):
                fastest = min(fastest, w.time[c << w.bits | i, 1])
            least = max(least, fastest + w.least[c])
        w.least[b] = least


@njit(cache=True, nogil=True, inline="always")
def _inside_ready(
    a: TimelineArrays, w: _Window, x: _Inside, b: int, i: int, shards: int, count: int, num_shards: int | None
) -> float:
    """Return when all that a batch reads of members is on its device."""
    latest = 0.0
    for q in range(w.pred_indptr[b], w.pred_indptr[b + 1]):
        u = w.pred[q]
        code = x.first[u]
        if num_shards is None or x.mask[code] & shards == shards:
            at, j = x.end[code], code & ((1 << w.bits) - 1)
            if j != i:
                at += a.delay[j, i] + count * w.tensor[u] * a.s_per_byte[j, i]
            if at > latest:
                latest = at
            continue
        left = shards
        for j in range(len(x.now)):
            shared = x.mask[u << w.bits | j] & left
            if shared == 0:
                continue
            left ^= shared
            at = x.end[u << w.bits | j]
            if j != i:
                at += a.delay[j, i] + bit_count(shared) * w.tensor[u] * a.s_per_byte[j, i]
            latest = max(latest, at)
            if left == 0:
                break
    return latest


@njit(cache=True, nogil=True, inline="always")
def _window_cost(
    a: TimelineArrays, s: BatchSequence, w: _Window, x: _Inside, first: int, limit: float, num_shards: int | None
) -> float:
    """Return the longest path through the window, in seconds; ``inf`` once it must be longer than `limit`.

    Batches before position `first` are as they are kept.
    """
    longest: float = x.reach[first]
    for i in range(len(x.now)):  # Much faster than a slice.
        x.now[i] = x.clock[first, i]
    bits, size = w.bits, x.size[_COUNT]
    for place in range(first, size):
        code = x.order[place]
        b, i = code >> bits, code & ((1 << bits) - 1)
        if num_shards is None:
            shards, count, outside = 1, 1, w.ready[code]
        else:
            shards = x.mask[code]
            count, outside = bit_count(shards), _outside_ready(a, s, w.ops[b], i, shards)
        ready = append_start(_inside_ready(a, w, x, b, i, shards, count, num_shards), outside)
        at = append_start(ready, x.now[i]) + w.time[code, count]
        x.end[code] = at
        x.now[i] = at
        if at + w.least[b] > limit:
            x.size[_TRIED] = place
            return np.inf
        if num_shards is None:
            at += w.after[code]
        else:
            at += _after_others(a, s, w, x, b, i, shards)
        x.through[place] = at
        if at > longest:
            longest = at
            if longest > limit:
                x.size[_TRIED] = place
                return np.inf
    x.size[_TRIED] = size - 1
    for i in range(len(x.now)):
        at = x.now[i] + w.rest[i]
        if at > longest:
            longest = at
    return longest


@hot_kernel
def _outside_ready(a: TimelineArrays, s: BatchSequence, v: int, i: int, shards: int) -> float:
    """Return when all that a batch reads of ops that are no members is on its device."""
    latest = 0.0
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        if s.member[a.pred[q]] < 0:
            latest = max(latest, _arrival(a, s, a.pred[q], i, shards))
    return latest


@hot_kernel
def _after_others(a: TimelineArrays, s: BatchSequence, w: _Window, x: _Inside, b: int, i: int, shards: int) -> float:
    """Return the longest way from a batch's end to the end of all by way of batches that are not in the window."""
    d, v = len(x.now), w.ops[b]
    longest = 0.0
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        c = a.succ[q]
        k = s.member[c]
        sent = shards
        for j in range(d):
            shared = (s.mask[c, j] if k < 0 else x.mask[k << w.bits | j]) & sent
            if shared == 0:
                continue
            sent ^= shared
            if k < 0 or x.place[k << w.bits | j] < 0:
                need = s.tail[c, j]
                if j != i:
                    need += transfer_time(a, v, i, j, bit_count(shared))
                longest = max(longest, need)
            if sent == 0:
                break
    return longest


@njit(cache=True, nogil=True, inline="always")
def _commit(w: _Window, x: _Inside, first: int, count: int, i: int, j: int) -> None:
    """Keep what was tried: positions from the first on, and the shards of the ops joined on two devices."""
    for place in range(first, x.size[_COUNT]):
        code = x.order[place]
        end = x.end[code]
        x.kept_order[place] = code
        x.kept_end[code] = end
        for k in range(len(x.now)):
            x.clock[place + 1, k] = x.clock[place, k]
        x.clock[place + 1, code & ((1 << w.bits) - 1)] = end
        x.reach[place + 1] = max(x.reach[place], x.through[place])
    x.kept_size[0] = x.size[_COUNT]
    for k in range(count):
        here, there = x.joined[k] << w.bits | i, x.joined[k] << w.bits | j
        x.kept_mask[here], x.kept_mask[there] = x.mask[here], x.mask[there]


@njit(cache=True, nogil=True, inline="always")
def _reset(w: _Window, x: _Inside, first: int, count: int, i: int, j: int) -> None:
    """Forget what was tried; see `_commit`."""
    for k in range(count):
        here, there = x.joined[k] << w.bits | i, x.joined[k] << w.bits | j
        x.mask[here], x.mask[there] = x.kept_mask[here], x.kept_mask[there]
        x.place[here], x.place[there] = -1, -1
        x.first[x.joined[k]] = here if x.mask[here] else there
    size, changed, tried = x.kept_size[0], x.size[_CHANGED], x.size[_TRIED]
    for place in range(first, min(size, changed + 1)):
        code = x.kept_order[place]
        x.order[place] = code
        x.place[code] = place
    for place in range(first, min(size, max(tried, changed) + 1)):
        code = x.kept_order[place]
        x.end[code] = x.kept_end[code]
    x.size[_COUNT] = size


@njit(cache=True, nogil=True, inline="always")
def _give(w: _Window, x: _Inside, b: int, i: int, j: int, given: int, num_shards: int | None) -> None:
    """Give device j some shards that device i has of a member: in the place of that batch, or right behind it."""
    here, there = b << w.bits | i, b << w.bits | j
    x.mask[here] ^= given
    x.mask[there] |= given
    at = x.place[here]
    x.size[_CHANGED] = max(x.size[_CHANGED], at, x.place[there])
    if num_shards is None or (x.mask[here] == 0 and x.place[there] < 0):
        x.order[at], x.place[there], x.place[here] = there, at, -1
    elif x.mask[here] == 0:
        x.size[_CHANGED] = max(x.size[_CHANGED], x.size[_COUNT] - 1)
        shift(x.order, x.place, 1, at, x.size[_COUNT] - 1)
        x.size[_COUNT] -= 1
        x.place[here] = -1
    elif x.place[there] < 0:
        x.size[_CHANGED] = max(x.size[_CHANGED], x.size[_COUNT])
        x.order[x.size[_COUNT]], x.place[there] = there, x.size[_COUNT]
        x.size[_COUNT] += 1
        shift(x.order, x.place, 1, x.size[_COUNT] - 1, at + 1)
    if x.mask[x.first[b]] == 0:
        x.first[b] = there


@njit(cache=True, nogil=True, inline="always")
def _span(w: _Window, x: _Inside, b: int, i: int, num_shards: int | None) -> tuple[int, int]:
    """Return the first and last position that a batch may take between its producers and its consumers."""
    left, right, shards = 0, x.size[_COUNT] - 1, x.mask[b << w.bits | i]
    for q in range(w.pred_indptr[b], w.pred_indptr[b + 1]):
        u = w.pred[q]
        if num_shards is None:
            left = max(left, x.place[x.first[u]] + 1)
            continue
        for j in range(len(x.now)):
            if x.mask[u << w.bits | j] & shards:
                left = max(left, x.place[u << w.bits | j] + 1)
    for q in range(w.succ_indptr[b], w.succ_indptr[b + 1]):
        u = w.succ[q]
        if num_shards is None:
            right = min(right, x.place[x.first[u]] - 1)
            continue
        for j in range(len(x.now)):
            if x.mask[u << w.bits | j] & shards and x.place[u << w.bits | j] >= 0:
                right = min(right, x.place[u << w.bits | j] - 1)
    return left, right


@hot_kernel
def _connected(rng: np.random.Generator, w: _Window, x: _Inside, b: int, i: int, given: int, most: int) -> int:
    """Write `most` members at most that edges connect to member b, with such shards on its device, into `joined`."""
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
                if x.mask[other << w.bits | i] & given == 0 or w.mate[other] < 0 or count >= most:
                    continue
                count = add_member(x.joined, count, other)
    return count


@njit(cache=True, nogil=True, inline="always")
def _may_give(
    w: _Window, x: _Inside, capacity: FloatArray, count: int, i: int, j: int, given: int, num_shards: int | None
) -> bool:
    """Return whether device j may take the shards that device i has of the members joined; note the bytes moved."""
    x.moved[_LOST], x.moved[_GROWN] = 0.0, 0.0
    for k in range(count):
        b = x.joined[k]
        ours, theirs = b << w.bits | i, b << w.bits | j
        if num_shards is None:
            if x.mask[ours] == 0 or not w.time[theirs, 1] < np.inf:
                return False
            x.moved[_LOST] += w.shard[b] + w.weight[b]
            x.moved[_GROWN] += w.shard[b] + w.weight[b]
            continue
        here, there, some = x.mask[ours], x.mask[theirs], x.mask[ours] & given
        if some == 0 or x.place[ours] < 0 or (there != 0 and x.place[theirs] < 0):
            return False
        shards, left, grown = bit_count(some), bit_count(here ^ some), bit_count(there | some)
        if not (w.time[ours, left] < np.inf and w.time[theirs, grown] < np.inf):
            return False
        x.moved[_LOST] += shards * w.shard[b] + (w.weight[b] if left == 0 else 0.0)
        x.moved[_GROWN] += shards * w.shard[b] + (w.weight[b] if there == 0 else 0.0)
    return bool(x.held[j] + x.moved[_GROWN] <= capacity[j])


@hot_kernel
def _may_swap(rng: np.random.Generator, w: _Window, x: _Inside, capacity: FloatArray, b: int, i: int, j: int) -> bool:
    """Draw a batch of device j to change places with all that device i has of b; note it, and the bytes moved."""
    code = x.order[int(rng.random() * x.size[_COUNT])]
    c, at = code >> w.bits, code & ((1 << w.bits) - 1)
    mine, free = b << w.bits | j, c << w.bits | i
    if at != j or c == b or w.mate[c] != c or x.mask[mine] != 0 or x.mask[free] != 0:
        return False
    ours, others = bit_count(x.mask[b << w.bits | i]), bit_count(x.mask[code])
    if not (w.time[mine, ours] < np.inf and w.time[free, others] < np.inf):
        return False
    need = w.weight[b] + ours * w.shard[b] - w.weight[c] - others * w.shard[c]
    x.joined[1] = c
    x.moved[_LOST], x.moved[_GROWN] = need, need
    return bool(x.held[j] + need <= capacity[j] and x.held[i] - need <= capacity[i])


@njit(cache=True, nogil=True, inline="always")
def _propose(
    rng: np.random.Generator, w: _Window, x: _Inside, capacity: FloatArray, num_shards: int | None
) -> tuple[int, int, int, int]:
    """Draw a move and make it: shards of some members go to another device, and the first may change its place.

    Returns
    -------
    first, count, i, j
        The first position that changes, -1 where the move drawn is not possible; members in `joined`, whose shards
        change between devices i and j.
    """
    d = len(capacity)
    code, kind = x.order[int(rng.random() * x.size[_COUNT])], rng.random()
    b, i = code >> w.bits, code & ((1 << w.bits) - 1)
    free = d > 1 and w.mate[b] >= 0
    chain, j, count, given = free and kind > 1.0 - CHAIN_SHARE, i, 0, x.mask[code]
    x.joined[0], x.size[_CHANGED], x.size[_TRIED] = b, 0, 0
    if free and (chain or kind < DEVICE_SHARE):
        j, count = draw_other_device(rng, i, d), 1
        if num_shards is not None and rng.random() < RUN_SHARE:
            given &= draw_run(rng, num_shards)
        if chain:
            most = 2 + int(rng.random() * rng.random() * len(w.ops))
            count = _connected(rng, w, x, b, i, given, most)
        k = 0
        while k < count:
            count = add_member(x.joined, count, w.mate[x.joined[k]])
            k += 1
        if not _may_give(w, x, capacity, count, i, j, given, num_shards):
            alone = count == 1 and not chain and given == x.mask[code]
            if not alone or not _may_swap(rng, w, x, capacity, b, i, j):
                return -1, 0, i, j
            count = 2
    elif kind < ONLY_DEVICE_SHARE:
        return -1, 0, i, j
    first = x.place[code]
    for k in range(count):
        here, there = x.place[x.joined[k] << w.bits | i], x.place[x.joined[k] << w.bits | j]
        if 0 <= here < first:
            first = here
        if 0 <= there < first:
            first = there
    for k in range(count):
        c = x.joined[k]
        some = x.mask[c << w.bits | i] & given
        if some:
            _give(w, x, c, i, j, some, num_shards)
        else:
            _give(w, x, c, j, i, x.mask[c << w.bits | j], num_shards)
    if num_shards is not None:
        for k in range(count):
            mine = x.joined[k] << w.bits | j
            left, right = _span(w, x, x.joined[k], j, num_shards)
            if x.mask[mine] and not left <= x.place[mine] <= right:
                _reset(w, x, first, count, i, j)
                return -1, 0, i, j
    if not chain and kind > ONLY_DEVICE_SHARE and count < 2:
        mine = b << w.bits | j
        left, right = _span(w, x, b, j, num_shards)
        place, old = left + int(rng.random() * (right - left + 1)), x.place[mine]
        if place != old:
            shift(x.order, x.place, 1, old, place)
            first, x.size[_CHANGED] = min(first, place), max(x.size[_CHANGED], place, old)
        elif count == 0:
            return -1, 0, i, j
    return first, count, i, j


@njit(cache=True, nogil=True, inline="always")
def _keep(x: _Inside, best: _Best) -> None:
    """Copy a window's schedule."""
    best.size[0] = x.size[_COUNT]
    for place in range(x.size[_COUNT]):
        best.order[place] = x.order[place]
    for code in range(len(x.mask)):
        best.mask[code] = x.mask[code]
    for i in range(len(x.held)):
        best.held[i] = x.held[i]


@hot_kernel
def _make_moves(
    rng: np.random.Generator,
    a: TimelineArrays,
    s: BatchSequence,
    w: _Window,
    x: _Inside,
    best: _Best,
    capacity: FloatArray,
    plan: PassPlan,
    num_shards: int | None,
) -> None:
    """Make the moves of a window, from `x` on; leave in `best` the best of them."""
    cost = _window_cost(a, s, w, x, 0, np.inf, num_shards)
    _commit(w, x, 0, 0, 0, 0)
    _keep(x, best)
    before, least = cost, cost
    cooling, temperature = cooling_factor(plan.hot, plan.cold, plan.moves), plan.hot
    for _ in range(plan.moves):
        temperature *= cooling
        first, count, i, j = _propose(rng, w, x, capacity, num_shards)
        if first < 0:
            continue
        limit = cost + accepted_loss(rng, temperature)
        tried = _window_cost(a, s, w, x, first, limit, num_shards)
        if not tried <= limit:
            _reset(w, x, first, count, i, j)
            continue
        _commit(w, x, first, count, i, j)
        cost = tried
        if count > 0:
            x.held[i] -= x.moved[_LOST]
            x.held[j] += x.moved[_GROWN]
        if cost < least:
            least = cost
            _keep(x, best)
    if cost <= before and cost <= least:
        _keep(x, best)  # As good as the best: take the last one, so that equal schedules drift.


@njit(cache=True, nogil=True)
def _inside(s: BatchSequence, w: _Window, lo: int, hi: int) -> _Inside:
    """Return the schedule of a window's batches as it is."""
    m, d, codes = len(w.ops), len(s.held), len(w.ops) << w.bits
    most = m * min(d, w.time.shape[1] - 1)
    x = _Inside(
        np.array([hi - lo, 0, 0]),
        np.empty(most, np.int64),
        np.full(codes, -1),
        np.zeros(codes, np.int64),
        np.zeros(m, np.int64),
        s.held.copy(),
        np.empty(codes),
        np.array([hi - lo]),
        np.empty(most, np.int64),
        np.zeros(codes, np.int64),
        np.empty(codes),
        np.empty((most + 1, d)),
        np.zeros(most + 1),
        np.empty(d),
        np.zeros(most),
        np.zeros(2),
        np.empty(m, np.int64),
    )
    x.clock[0] = s.free
    for b in range(m):
        for i in range(d):
            x.mask[b << w.bits | i], x.end[b << w.bits | i] = s.mask[w.ops[b], i], s.end[w.ops[b], i]
    x.kept_mask[:] = x.mask
    for at in range(lo, hi):
        code = s.member[s.sequence[at] // d] << w.bits | s.sequence[at] % d
        x.order[at - lo], x.place[code], x.first[code >> w.bits] = code, at - lo, code
    return x


@njit(cache=True, nogil=True)
def _anneal_window(
    rng: np.random.Generator,
    a: TimelineArrays,
    memory: DeviceMemory,
    s: BatchSequence,
    plan: PassPlan,
    lo: int,
    hi: int,
    num_shards: int | None,
) -> int:
    """Anneal positions lo..hi-1, and put the best of them back; return where the window ends then."""
    w = _cut_out(a, memory, s, lo, hi)
    x = _inside(s, w, lo, hi)
    best = _Best(np.zeros(1, np.int64), np.empty_like(x.order), np.empty_like(x.mask), np.empty_like(x.held))
    _make_moves(rng, a, s, w, x, best, memory.capacity, plan, num_shards)
    s.held[:] = best.held
    d, end = len(s.held), lo + int(best.size[0])
    for at in range(lo, hi):
        s.place[s.sequence[at]] = -1
    if end != hi:
        moved = s.sequence[hi : s.at[_SIZE]].copy()
        for at in range(len(moved)):
            s.sequence[end + at] = moved[at]
            s.place[moved[at]] = end + at
        s.at[_SIZE] += end - hi
        for i in range(d):
            s.nearest[i] += end - hi if s.nearest[i] >= hi else 0
    for at in range(lo, end):
        code = best.order[at - lo]
        v = w.ops[code >> w.bits] * d + (code & ((1 << w.bits) - 1))
        s.sequence[at] = v
        s.place[v] = at
    for b in range(len(w.ops)):
        for i in range(d):
            s.mask[w.ops[b], i] = best.mask[b << w.bits | i]
        s.member[w.ops[b]] = -1
    return end
