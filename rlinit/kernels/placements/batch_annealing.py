"""Compiled local search over batches: annealing inside windows of the sequence, swept along it.

The counterpart of `placement_sweeps` for ops that may be split over devices. The sequence holds all n * d batches,
those without shards too, so that a shard can go to any device; `mask` says which shards each batch has.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.slots import bit_count

__all__ = ["sweep_batches"]

_CHAIN_SHARE = 0.1
"""Of the moves, those that take shards of several connected ops to another device."""


@njit(cache=True, nogil=True)
def _schedule(
    code: int,
    mask: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    end: FloatArray,
    free: FloatArray,
) -> float:
    """Append a batch to its device; return when it ends (NaN-free: batches it depends on have ended)."""
    d = len(free)
    v, i = code // d, code % d
    held = mask[v, i]
    start = free[i]
    for q in range(pred_indptr[v], pred_indptr[v + 1]):
        u = pred[q]
        for j in range(d):
            shared = mask[u, j] & held
            if shared == 0:
                continue
            at = end[u, j]
            if j != i:
                at += delay_s[j, i] + bit_count(shared) * tensor_bytes[u] * s_per_byte[j, i]
            if at > start:
                start = at
    over: float = start + time_s[v, i, bit_count(held)]
    end[v, i] = over
    free[i] = over
    return over


@njit(cache=True, nogil=True)
def _after(
    code: int,
    beyond: int,
    place: IntArray,
    mask: IntArray,
    tensor_bytes: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    succ_indptr: IntArray,
    succ: IntArray,
    tail: FloatArray,
) -> float:
    """Return the longest path from the end of a batch to the end of all, over batches from position `beyond` on."""
    d = mask.shape[1]
    v, i = code // d, code % d
    held = mask[v, i]
    longest = 0.0
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        w = succ[q]
        for j in range(d):
            shared = mask[w, j] & held
            if shared == 0 or place[w * d + j] < beyond:
                continue
            need = tail[w, j]
            if j != i:
                need += delay_s[i, j] + bit_count(shared) * tensor_bytes[v] * s_per_byte[i, j]
            if need > longest:
                longest = need
    return longest


@njit(cache=True, nogil=True)
def _window_cost(
    lo: int,
    hi: int,
    sequence: IntArray,
    place: IntArray,
    mask: IntArray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
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
    clock: FloatArray,
) -> float:
    """Return the longest path through positions lo..hi-1."""
    d = len(free)
    clock[:] = free
    longest = 0.0
    for at in range(lo, hi):
        code = sequence[at]
        if mask[code // d, code % d] == 0:
            continue
        over = _schedule(code, mask, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, clock)
        over += _after(code, hi, place, mask, tensor_bytes, s_per_byte, delay_s, succ_indptr, succ, tail)
        if over > longest:
            longest = over
    for i in range(d):
        if clock[i] + rest[i] > longest:
            longest = clock[i] + rest[i]
    return longest


@njit(cache=True, nogil=True)
def _span(
    code: int,
    lo: int,
    hi: int,
    place: IntArray,
    mask: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
) -> tuple[int, int]:
    """Return the first and last position in lo..hi-1 a batch may take, given the batches it shares shards with."""
    d = mask.shape[1]
    v, i = code // d, code % d
    held = mask[v, i]
    left, right = lo, hi - 1
    for q in range(pred_indptr[v], pred_indptr[v + 1]):
        for j in range(d):
            if mask[pred[q], j] & held and place[pred[q] * d + j] + 1 > left:
                left = place[pred[q] * d + j] + 1
    for q in range(succ_indptr[v], succ_indptr[v + 1]):
        for j in range(d):
            if mask[succ[q], j] & held and place[succ[q] * d + j] - 1 < right:
                right = place[succ[q] * d + j] - 1
    return left, right


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
    mask: IntArray,
    movable: np.ndarray,
    num_shards: int,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    weight_bytes: FloatArray,
    shard_bytes: FloatArray,
    held: FloatArray,
    capacity: FloatArray,
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
    d = len(capacity)
    clock = np.empty(d)
    cost = _window_cost(
        lo,
        hi,
        sequence,
        place,
        mask,
        time_s,
        tensor_bytes,
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
        clock,
    )
    best, origin = cost, cost
    size = hi - lo
    best_sequence = sequence[lo:hi].copy()
    best_mask = np.empty(size, np.int64)
    for at in range(size):
        best_mask[at] = mask[best_sequence[at] // d, best_sequence[at] % d]
    best_held, room = held.copy(), held.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1)) if hot > 0.0 else 1.0
    heat = hot
    joined = np.empty(size, np.int64)
    kept_sequence, kept_mask, kept_room = best_sequence.copy(), best_mask.copy(), held.copy()
    for _ in range(moves):
        heat *= cooling
        code = sequence[lo + int(rng.random() * size)]
        v, i = code // d, code % d
        if mask[v, i] == 0:
            continue
        if d > 1 and movable[v] and rng.random() < _CHAIN_SHARE:
            j = int(rng.random() * (d - 1))
            if j >= i:
                j += 1
            _keep(lo, size, sequence, mask, kept_sequence, kept_mask)
            kept_room[:] = room
            given = mask[v, i]
            if rng.random() < 0.7:
                given &= np.int64(1) << np.int64(rng.random() * num_shards)
            most = 2 + int(rng.random() * rng.random() * size / d)
            done = given != 0 and _regroup(
                rng,
                v,
                i,
                j,
                given,
                most,
                lo,
                hi,
                sequence,
                place,
                mask,
                movable,
                time_s,
                weight_bytes,
                shard_bytes,
                room,
                capacity,
                pred_indptr,
                pred,
                succ_indptr,
                succ,
                joined,
            )
            if done:
                tried = _window_cost(
                    lo,
                    hi,
                    sequence,
                    place,
                    mask,
                    time_s,
                    tensor_bytes,
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
                    clock,
                )
                done = tried <= cost or (heat > 0.0 and rng.random() < np.exp((cost - tried) / heat))
            if not done:
                _restore(lo, size, sequence, place, mask, kept_sequence, kept_mask)
                room[:] = kept_room
                continue
            cost = tried
            if cost < best:
                best = cost
                _keep(lo, size, sequence, mask, best_sequence, best_mask)
                best_held[:] = room
            continue
        other = -1
        given = np.int64(0)
        old_spot = place[code]
        if rng.random() < 0.6 and d > 1 and movable[v]:
            j = int(rng.random() * (d - 1))
            if j >= i:
                j += 1
            other = v * d + j
            if place[other] < lo or place[other] >= hi:
                continue
            given = mask[v, i]
            if rng.random() < 0.6:
                # One shard, or one of those that are here.
                given = np.int64(1) << np.int64(rng.random() * num_shards)
                given &= mask[v, i]
                if given == 0:
                    continue
            count_i, count_j = bit_count(mask[v, i]), bit_count(mask[v, j])
            moved = bit_count(given)
            if not (time_s[v, i, count_i - moved] < np.inf and time_s[v, j, count_j + moved] < np.inf):
                continue
            grown = moved * shard_bytes[v] + (weight_bytes[v] if count_j == 0 else 0.0)
            if room[j] + grown > capacity[j]:
                continue
            old_other = place[other]
            mask[v, i] ^= given
            mask[v, j] |= given
            left, right = _span(other, lo, hi, place, mask, pred_indptr, pred, succ_indptr, succ)
            spot = old_other
            if count_j == 0 or rng.random() < 0.3:
                spot = (
                    max(left, min(right, old_spot))
                    if rng.random() < 0.7
                    else left + int(rng.random() * (right - left + 1))
                )
            if left > right or spot < left or spot > right:
                mask[v, i] |= given
                mask[v, j] ^= given
                continue
            shift(sequence, place, 1, old_other, spot)
        else:
            left, right = _span(code, lo, hi, place, mask, pred_indptr, pred, succ_indptr, succ)
            spot = left + int(rng.random() * (right - left + 1))
            if spot == old_spot:
                continue
            shift(sequence, place, 1, old_spot, spot)
        tried = _window_cost(
            lo,
            hi,
            sequence,
            place,
            mask,
            time_s,
            tensor_bytes,
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
            clock,
        )
        if tried <= cost or (heat > 0.0 and rng.random() < np.exp((cost - tried) / heat)):
            cost = tried
            if other >= 0:
                room[i] -= moved * shard_bytes[v] + (weight_bytes[v] if mask[v, i] == 0 else 0.0)
                room[j] += grown
            if cost < best:
                best = cost
                _keep(lo, size, sequence, mask, best_sequence, best_mask)
                best_held[:] = room
        elif other >= 0:
            shift(sequence, place, 1, place[other], old_other)
            mask[v, i] |= given
            mask[v, j] ^= given
        else:
            shift(sequence, place, 1, place[code], old_spot)
    if cost <= origin and cost <= best:
        held[:] = room
        return
    held[:] = best_held
    _restore(lo, size, sequence, place, mask, best_sequence, best_mask)


@njit(cache=True, nogil=True)
def _keep(lo: int, size: int, sequence: IntArray, mask: IntArray, kept_sequence: IntArray, kept_mask: IntArray) -> None:
    """Copy a window out."""
    d = mask.shape[1]
    for at in range(size):
        code = sequence[lo + at]
        kept_sequence[at] = code
        kept_mask[at] = mask[code // d, code % d]


@njit(cache=True, nogil=True)
def _restore(
    lo: int,
    size: int,
    sequence: IntArray,
    place: IntArray,
    mask: IntArray,
    kept_sequence: IntArray,
    kept_mask: IntArray,
) -> None:
    """Copy a window back."""
    d = mask.shape[1]
    for at in range(size):
        code = kept_sequence[at]
        sequence[lo + at] = code
        place[code] = lo + at
        mask[code // d, code % d] = kept_mask[at]


@njit(cache=True, nogil=True)
def _regroup(
    rng: np.random.Generator,
    v: int,
    i: int,
    j: int,
    given: int,
    most: int,
    lo: int,
    hi: int,
    sequence: IntArray,
    place: IntArray,
    mask: IntArray,
    movable: np.ndarray,
    time_s: FloatArray,
    weight_bytes: FloatArray,
    shard_bytes: FloatArray,
    room: FloatArray,
    capacity: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    joined: IntArray,
) -> bool:
    """Move the given shards of connected ops from device i to j; False, with the state spoilt, where that cannot be."""
    d = mask.shape[1]
    joined[0] = v
    count, head = 1, 0
    while head < count and count < most:
        w = joined[head]
        head += 1
        downwards = rng.random() < 0.5
        for turn in range(2):
            indptr, near = (succ_indptr, succ) if downwards == (turn == 0) else (pred_indptr, pred)
            for q in range(indptr[w], indptr[w + 1]):
                x = near[q]
                if mask[x, i] & given == 0 or not movable[x] or count >= most:
                    continue
                inside = lo <= place[x * d + i] < hi and lo <= place[x * d + j] < hi
                known = False
                for k in range(count):
                    known |= joined[k] == x
                if inside and not known:
                    joined[count] = x
                    count += 1
    if not lo <= place[v * d + j] < hi:
        return False
    for k in range(count):
        w = joined[k]
        moved = mask[w, i] & given
        count_i, count_j, shards = bit_count(mask[w, i]), bit_count(mask[w, j]), bit_count(moved)
        if not (time_s[w, i, count_i - shards] < np.inf and time_s[w, j, count_j + shards] < np.inf):
            return False
        room[i] -= shards * shard_bytes[w] + (weight_bytes[w] if count_i == shards else 0.0)
        room[j] += shards * shard_bytes[w] + (weight_bytes[w] if count_j == 0 else 0.0)
        if count_j == 0:
            # Beside the batch it comes from: what goes before and after that one goes before and after this one.
            here, there = place[w * d + j], place[w * d + i]
            shift(sequence, place, 1, here, there if here < there else there + 1)
        mask[w, i] ^= moved
        mask[w, j] |= moved
    if room[j] > capacity[j]:
        return False
    for k in range(count):
        code = joined[k] * d + j
        left, right = _span(code, lo, hi, place, mask, pred_indptr, pred, succ_indptr, succ)
        if not left <= place[code] <= right:
            return False
    return True


@njit(cache=True, nogil=True)
def sweep_batches(
    rng: np.random.Generator,
    width: int,
    stride: int,
    moves: int,
    hot: float,
    cold: float,
    sequence: IntArray,
    mask: IntArray,
    movable: np.ndarray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    weight_bytes: FloatArray,
    shard_bytes: FloatArray,
    held: FloatArray,
    capacity: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    end: FloatArray,
    tail: FloatArray,
) -> float:
    """Anneal one window after another along the sequence, in place; return the makespan, never more than before.

    Parameters
    ----------
    width, stride
        Positions of a window, and from one window to the next.
    moves
        Evaluations in each window.
    hot, cold
        First and last temperature in seconds.
    sequence
        (n * d,) all batches op * d + device, each after those it depends on; changed in place.
    mask
        (n, d) shards of each batch as bits; changed in place.
    movable
        (n,) bool: whether an op may change devices on its own.
    weight_bytes, shard_bytes, held, capacity
        (n,), (n,), (d,), (d,) bytes of an op and of each of its shards, of each device now (changed), and its memory.
    end, tail
        (n, d) work arrays.
    """
    n, d = mask.shape
    total = n * d
    width = min(width, total)
    num_shards = time_s.shape[2] - 1
    free, rest = np.zeros(d), np.zeros(d)
    place = np.empty(total, np.int64)
    for at in range(total):
        place[sequence[at]] = at
    for at in range(total - 1, -1, -1):
        code = sequence[at]
        v, i = code // d, code % d
        if mask[v, i] == 0:
            continue
        left = _after(code, 0, place, mask, tensor_bytes, s_per_byte, delay_s, succ_indptr, succ, tail)
        tail[v, i] = max(left, rest[i]) + time_s[v, i, bit_count(mask[v, i])]
        rest[i] = tail[v, i]
    nearest = np.zeros(d, np.int64)
    first, edge = 0, 0
    while True:
        hi = first + width
        for at in range(edge, first):
            code = sequence[at]
            if mask[code // d, code % d] != 0:
                _schedule(code, mask, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, free)
        edge = first
        for i in range(d):
            at = max(nearest[i], hi)
            while at < total and (sequence[at] % d != i or mask[sequence[at] // d, i] == 0):
                at += 1
            nearest[i] = at
            rest[i] = tail[sequence[at] // d, i] if at < total else 0.0
        _anneal_window(
            rng,
            first,
            hi,
            moves,
            hot,
            cold,
            sequence,
            place,
            mask,
            movable,
            num_shards,
            time_s,
            tensor_bytes,
            weight_bytes,
            shard_bytes,
            held,
            capacity,
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
        if hi == total:
            break
        first = min(first + stride, total - width)
    free[:] = 0.0
    makespan = 0.0
    for at in range(total):
        code = sequence[at]
        if mask[code // d, code % d] != 0:
            over = _schedule(code, mask, time_s, tensor_bytes, s_per_byte, delay_s, pred_indptr, pred, end, free)
            if over > makespan:
                makespan = over
    return makespan
