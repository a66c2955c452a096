"""Compiled annealing over (sequence, device) where transfers exclude each other: every move runs the whole timeline."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.orders import shift
from rlinit.kernels.placements.timeline import run_batches

__all__ = ["anneal_queued"]


@njit(cache=True, nogil=True)
def anneal_queued(
    rng: np.random.Generator,
    moves: int,
    hot: float,
    cold: float,
    mode: int,
    sequence: IntArray,
    movable: np.ndarray,
    time_s: FloatArray,
    tensor_bytes: FloatArray,
    need_bytes: FloatArray,
    held: FloatArray,
    capacity: FloatArray,
    s_per_byte: FloatArray,
    delay_s: FloatArray,
    pred_indptr: IntArray,
    pred: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
) -> float:
    """Anneal whole ops (one shard) in place; leave the best sequence found and return its makespan.

    Parameters
    ----------
    moves
        Timelines run.
    hot, cold
        First and last temperature in seconds.
    mode
        EXCLUSIVE or BLOCKING, see `rlinit.kernels.placements.timeline`.
    sequence
        (n,) batches op * d + device in a topological order; changed in place.
    movable
        (n,) bool: whether an op may change device on its own.
    time_s
        (n, d, 2) seconds of an op on a device, at index 1.
    need_bytes, held, capacity
        (n,), (d,), (d,) bytes of each op, of each device now (changed in place), and each device's memory.
    """
    n, d = time_s.shape[0], time_s.shape[1]
    mask = np.zeros((n, d), np.int64)
    place = np.empty(n, np.int64)
    for at in range(n):
        place[sequence[at] // d] = at
        mask[sequence[at] // d, sequence[at] % d] = 1
    start = np.empty((n, d))
    arrival, sent = np.empty((n, d, d)), np.empty((n, d, d))
    cost = run_batches(
        mode,
        sequence,
        mask,
        time_s,
        tensor_bytes,
        s_per_byte,
        delay_s,
        pred_indptr,
        pred,
        succ_indptr,
        succ,
        start,
        arrival,
        sent,
    )
    best, best_sequence, best_held = cost, sequence.copy(), held.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1)) if hot > 0.0 else 1.0
    heat = hot
    for _ in range(moves):
        heat *= cooling
        at = int(rng.random() * n)
        code = sequence[at]
        v, i = code // d, code % d
        j, spot = i, at
        kind = rng.random()
        if kind < 0.6 and movable[v] and d > 1:
            j = int(rng.random() * (d - 1))
            if j >= i:
                j += 1
            if not time_s[v, j, 1] < np.inf or held[j] + need_bytes[v] > capacity[j]:
                continue
        if kind > 0.45:
            left, right = 0, n - 1
            for q in range(pred_indptr[v], pred_indptr[v + 1]):
                left = max(left, place[pred[q]] + 1)
            for q in range(succ_indptr[v], succ_indptr[v + 1]):
                right = min(right, place[succ[q]] - 1)
            # Mostly near by: far along the sequence little changes until much does.
            left, right = max(left, at - 20), min(right, at + 20)
            spot = left + int(rng.random() * (right - left + 1))
        if j == i and spot == at:
            continue
        sequence[at] = v * d + j
        mask[v, i], mask[v, j] = 0, 1
        shift(sequence, place, d, at, spot)
        tried = run_batches(
            mode,
            sequence,
            mask,
            time_s,
            tensor_bytes,
            s_per_byte,
            delay_s,
            pred_indptr,
            pred,
            succ_indptr,
            succ,
            start,
            arrival,
            sent,
        )
        if tried <= cost or (tried < np.inf and heat > 0.0 and rng.random() < np.exp((cost - tried) / heat)):
            cost = tried
            held[i] -= need_bytes[v]
            held[j] += need_bytes[v]
            if cost < best:
                best = cost
                best_sequence[:] = sequence
                best_held[:] = held
        else:
            shift(sequence, place, d, spot, at)
            mask[v, j], mask[v, i] = 0, 1
            sequence[at] = code
    sequence[:] = best_sequence
    held[:] = best_held
    return best
