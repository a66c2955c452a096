"""Compiled simulated annealing over the stage vector, with stage costs kept up to date by tensor counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit

__all__ = ["anneal_stages"]

_POWER = 12.0
"""Stages weigh in by this power of their cost: near the bottleneck, but not blind to the stages just below it."""


@njit(cache=True, nogil=True)
def _tensor_terms(
    t: int,
    at: int,
    sign: float,
    count: NDArray[np.int32],
    consumers: IntArray,
    tensor_stage: IntArray,
    classes: IntArray,
    in_s: FloatArray,
    out_s: FloatArray,
    cost: FloatArray,
) -> None:
    """Add or take away what tensor t contributes to the cost of stage `at`."""
    if tensor_stage[t] == at:
        if consumers[t] > count[t, at]:
            cost[at] += sign * out_s[classes[at], t]
    elif count[t, at] > 0:
        cost[at] += sign * in_s[classes[at], t]


@njit(cache=True, nogil=True)
def _overflow(held: FloatArray, at: int, classes: IntArray, cache: FloatArray, rate: FloatArray) -> float:
    c = classes[at]
    return (held[at] - cache[c]) * rate[c] if held[at] > cache[c] else 0.0


@njit(cache=True, nogil=True)
def _move(
    v: int,
    target: int,
    stage: IntArray,
    classes: IntArray,
    work: FloatArray,
    param: FloatArray,
    cache: FloatArray,
    overflow: FloatArray,
    in_s: FloatArray,
    out_s: FloatArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    consumers: IntArray,
    count: NDArray[np.int32],
    tensor_stage: IntArray,
    held: FloatArray,
    cost: FloatArray,
) -> None:
    """Move node v to stage `target` and bring stage costs, held bytes and tensor counts up to date."""
    origin = stage[v]
    for at in (origin, target):
        cost[at] -= _overflow(held, at, classes, cache, overflow)
    for q in range(in_indptr[v], in_indptr[v + 1]):
        t = in_tensor[q]
        made = tensor_stage[t]
        _tensor_terms(t, origin, -1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        _tensor_terms(t, target, -1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        if made != origin and made != target:
            _tensor_terms(t, made, -1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        count[t, origin] -= 1
        count[t, target] += 1
        _tensor_terms(t, origin, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        _tensor_terms(t, target, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        if made != origin and made != target:
            _tensor_terms(t, made, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
    for q in range(out_indptr[v], out_indptr[v + 1]):
        t = out_tensor[q]
        _tensor_terms(t, origin, -1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        _tensor_terms(t, target, -1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        tensor_stage[t] = target
        _tensor_terms(t, origin, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
        _tensor_terms(t, target, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
    cost[origin] -= work[classes[origin], v]
    cost[target] += work[classes[target], v]
    held[origin] -= param[v]
    held[target] += param[v]
    for at in (origin, target):
        cost[at] += _overflow(held, at, classes, cache, overflow)
    stage[v] = target


@njit(cache=True, nogil=True)
def _energy(cost: FloatArray, reference: float) -> float:
    total = 0.0
    for c in cost:
        if c > 0.0:
            total += (c / reference) ** _POWER
    return total


@njit(cache=True, nogil=True)
def anneal_stages(
    rng: np.random.Generator,
    moves: int,
    hot: float,
    cold: float,
    start: IntArray,
    classes: IntArray,
    work: FloatArray,
    param: FloatArray,
    cache: FloatArray,
    memory: FloatArray,
    overflow: FloatArray,
    in_s: FloatArray,
    out_s: FloatArray,
    out_indptr: IntArray,
    out_tensor: IntArray,
    in_indptr: IntArray,
    in_tensor: IntArray,
    tensor_src: IntArray,
    tensor_indptr: IntArray,
    tensor_dst: IntArray,
    succ_indptr: IntArray,
    succ: IntArray,
    pred_indptr: IntArray,
    pred: IntArray,
) -> IntArray:
    """Return the assignment of smallest bottleneck met by `moves` annealed moves of single nodes from `start`.

    A node moves to a random other stage between its latest producer's and its earliest consumer's, so assignments stay
    monotone. The energy is the 12-norm of the stage costs; temperatures fall from `hot` to `cold`, relative to it.
    Half of the moves try nodes of the costliest stage.
    """
    n = len(start)
    k = len(classes)
    m = len(tensor_src)
    stage = start.copy()
    count = np.zeros((m, k), np.int32)
    consumers = np.diff(tensor_indptr)
    tensor_stage = np.empty(m, np.int64)
    held = np.zeros(k)
    cost = np.zeros(k)
    for v in range(n):
        held[stage[v]] += param[v]
        cost[stage[v]] += work[classes[stage[v]], v]
    for t in range(m):
        tensor_stage[t] = stage[tensor_src[t]]
        for d in range(tensor_indptr[t], tensor_indptr[t + 1]):
            count[t, stage[tensor_dst[d]]] += 1
        for at in range(k):
            _tensor_terms(t, at, 1.0, count, consumers, tensor_stage, classes, in_s, out_s, cost)
    for at in range(k):
        cost[at] += _overflow(held, at, classes, cache, overflow)
    best = stage.copy()
    best_value = cost.max()
    if best_value <= 0.0 or k == 1:
        return best
    reference = best_value
    energy = _energy(cost, reference)
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature = hot
    for step in range(moves):
        temperature *= cooling
        v = int(rng.integers(0, n))
        if step & 1:
            worst = np.argmax(cost)
            for _ in range(8):
                if stage[v] == worst:
                    break
                v = int(rng.integers(0, n))
        low = 0
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            low = max(low, int(stage[pred[e]]))
        high = k - 1
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            high = min(high, int(stage[succ[e]]))
        if low >= high:
            continue
        origin = int(stage[v])
        target = low + int(rng.integers(0, high - low))
        if target >= origin:
            target += 1
        c = classes[target]
        if held[target] + param[v] > memory[c] or work[c, v] == np.inf:
            continue
        _move(
            v, target, stage, classes, work, param, cache, overflow, in_s, out_s, out_indptr, out_tensor,
            in_indptr, in_tensor, consumers, count, tensor_stage, held, cost,
        )  # fmt: skip
        tried = _energy(cost, reference)
        # The 12-norm rises by the factor (tried / energy)^(1/12); its relative rise is what the temperature is held to.
        rise = (tried / energy) ** (1.0 / _POWER) - 1.0 if energy > 0.0 else 0.0
        if rise <= 0.0 or rng.random() < np.exp(-rise / temperature):
            energy = tried
            value = cost.max()
            if value < best_value:
                best_value = value
                best[:] = stage
        else:
            _move(
                v, origin, stage, classes, work, param, cache, overflow, in_s, out_s, out_indptr, out_tensor,
                in_indptr, in_tensor, consumers, count, tensor_stage, held, cost,
            )  # fmt: skip
    return best
