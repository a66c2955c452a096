"""Compiled simulated annealing over the stage vector, with stage costs kept up to date by tensor counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import CostArrays, Precedence, TensorArrays

__all__ = ["AnnealingState", "anneal_moves", "annealing_state"]

_POWER = 12.0
"""Stages weigh in by this power of their cost: near the bottleneck, but not blind to the stages just below it."""

_ENERGY, _TEMPERATURE, _BEST, _REFERENCE = range(4)
"""Places in `AnnealingState.now`."""


class AnnealingState(NamedTuple):
    """Where annealing is: all that a later call needs to go on as if there had been one.

    The current assignment `stage` and the `best` one (n,), the class of each stage `classes` (k,), `inside` (m, k) how
    many consumers of each tensor a stage holds, `tensor_stage` (m,) where it is made, parameter bytes `held` and `cost`
    (k,) of each stage, and `now` (4,): energy, temperature, best value, and the cost that energies are relative to.
    """

    stage: IntArray
    best: IntArray
    classes: IntArray
    inside: NDArray[np.int32]
    tensor_stage: IntArray
    held: FloatArray
    cost: FloatArray
    now: FloatArray


@njit(cache=True, nogil=True, inline="always")
def _tensor_terms(
    t: int, at: int, sign: float, costs: CostArrays, tensors: TensorArrays, state: AnnealingState
) -> None:
    """Add or take away what tensor t contributes to the cost of stage `at`."""
    if state.tensor_stage[t] == at:
        if tensors.indptr[t + 1] - tensors.indptr[t] > state.inside[t, at]:
            state.cost[at] += sign * costs.out_s[state.classes[at], t]
    elif state.inside[t, at] > 0:
        state.cost[at] += sign * costs.in_s[state.classes[at], t]


@njit(cache=True, nogil=True, inline="always")
def _overflow(at: int, costs: CostArrays, state: AnnealingState) -> float:
    """Return the seconds of overflow of stage `at`."""
    c = state.classes[at]
    return (state.held[at] - costs.cache[c]) * costs.overflow[c] if state.held[at] > costs.cache[c] else 0.0


@njit(cache=True, nogil=True)
def _move(v: int, target: int, costs: CostArrays, tensors: TensorArrays, state: AnnealingState) -> None:
    """Move node v to stage `target` and bring stage costs, held bytes and tensor counts up to date."""
    origin = state.stage[v]
    for at in (origin, target):
        state.cost[at] -= _overflow(at, costs, state)
    for q in range(tensors.in_indptr[v], tensors.in_indptr[v + 1]):
        t = tensors.in_tensor[q]
        made = state.tensor_stage[t]
        elsewhere = made != origin and made != target
        _tensor_terms(t, origin, -1.0, costs, tensors, state)
        _tensor_terms(t, target, -1.0, costs, tensors, state)
        if elsewhere:
            _tensor_terms(t, made, -1.0, costs, tensors, state)
        state.inside[t, origin] -= 1
        state.inside[t, target] += 1
        _tensor_terms(t, origin, 1.0, costs, tensors, state)
        _tensor_terms(t, target, 1.0, costs, tensors, state)
        if elsewhere:
            _tensor_terms(t, made, 1.0, costs, tensors, state)
    for q in range(tensors.out_indptr[v], tensors.out_indptr[v + 1]):
        t = tensors.out_tensor[q]
        _tensor_terms(t, origin, -1.0, costs, tensors, state)
        _tensor_terms(t, target, -1.0, costs, tensors, state)
        state.tensor_stage[t] = target
        _tensor_terms(t, origin, 1.0, costs, tensors, state)
        _tensor_terms(t, target, 1.0, costs, tensors, state)
    state.cost[origin] -= costs.work[state.classes[origin], v]
    state.cost[target] += costs.work[state.classes[target], v]
    state.held[origin] -= costs.param[v]
    state.held[target] += costs.param[v]
    for at in (origin, target):
        state.cost[at] += _overflow(at, costs, state)
    state.stage[v] = target


@njit(cache=True, nogil=True)
def _energy(cost: FloatArray, reference: float) -> float:
    """Return the sum of the powers of the stage costs relative to the reference."""
    total = 0.0
    for c in cost:
        if c > 0.0:
            total += (c / reference) ** _POWER
    return total


@njit(cache=True, nogil=True)
def annealing_state(
    start: IntArray, classes: IntArray, hot: float, costs: CostArrays, tensors: TensorArrays
) -> AnnealingState:
    """Return the state at a monotone assignment `start` (n,) with stages of `classes` (k,), at temperature `hot`."""
    n, k, m = len(start), len(classes), len(tensors.src)
    state = AnnealingState(
        start.copy(),
        start.copy(),
        classes,
        np.zeros((m, k), np.int32),
        np.empty(m, np.int64),
        np.zeros(k),
        np.zeros(k),
        np.zeros(4),
    )
    for v in range(n):
        state.held[start[v]] += costs.param[v]
        state.cost[start[v]] += costs.work[classes[start[v]], v]
    for t in range(m):
        state.tensor_stage[t] = start[tensors.src[t]]
        for d in range(tensors.indptr[t], tensors.indptr[t + 1]):
            state.inside[t, start[tensors.dst[d]]] += 1
        for at in range(k):
            _tensor_terms(t, at, 1.0, costs, tensors, state)
    for at in range(k):
        state.cost[at] += _overflow(at, costs, state)
    state.now[_BEST] = state.now[_REFERENCE] = state.cost.max()
    state.now[_TEMPERATURE] = hot
    if state.now[_REFERENCE] > 0.0:
        state.now[_ENERGY] = _energy(state.cost, state.now[_REFERENCE])
    return state


@njit(cache=True, nogil=True, inline="always")
def _proposed(
    rng: np.random.Generator, of_the_worst: bool, costs: CostArrays, order: Precedence, state: AnnealingState
) -> tuple[int, int]:
    """Return a random node and another stage between its producers' and consumers', or (-1, -1) where it may not go."""
    n, k = len(state.stage), len(state.classes)
    v = int(rng.integers(0, n))
    if of_the_worst:
        worst = np.argmax(state.cost)
        for _ in range(8):
            if state.stage[v] == worst:
                break
            v = int(rng.integers(0, n))
    low = 0
    for e in range(order.pred_indptr[v], order.pred_indptr[v + 1]):
        low = max(low, int(state.stage[order.pred[e]]))
    high = k - 1
    for e in range(order.succ_indptr[v], order.succ_indptr[v + 1]):
        high = min(high, int(state.stage[order.succ[e]]))
    if low >= high:
        return -1, -1
    target = low + int(rng.integers(0, high - low))
    if target >= state.stage[v]:
        target += 1
    c = state.classes[target]
    if state.held[target] + costs.param[v] > costs.memory[c] or costs.work[c, v] == np.inf:
        return -1, -1
    return v, target


@njit(cache=True, nogil=True)
def anneal_moves(
    rng: np.random.Generator,
    first: int,
    last: int,
    cooling: float,
    costs: CostArrays,
    tensors: TensorArrays,
    order: Precedence,
    state: AnnealingState,
) -> None:
    """Try the moves first..last-1, each at a temperature lower by the factor `cooling`; bring the state up to date.

    A node moves to a random other stage between its latest producer's and its earliest consumer's, so assignments stay
    monotone. The energy is the 12-norm of the stage costs, and temperatures are relative to it. Every other move tries
    a node of the costliest stage.
    """
    now, reference = state.now, state.now[_REFERENCE]
    if reference <= 0.0 or len(state.classes) == 1:
        return
    for step in range(first, last):
        now[_TEMPERATURE] *= cooling
        v, target = _proposed(rng, step & 1 == 1, costs, order, state)
        if v < 0:
            continue
        origin = int(state.stage[v])
        _move(v, target, costs, tensors, state)
        tried = _energy(state.cost, reference)
        # The 12-norm rises by the factor (tried / energy)^(1/12); its relative rise is what the temperature is held to.
        rise = (tried / now[_ENERGY]) ** (1.0 / _POWER) - 1.0 if now[_ENERGY] > 0.0 else 0.0
        if rise <= 0.0 or rng.random() < np.exp(-rise / now[_TEMPERATURE]):
            now[_ENERGY] = tried
            value = state.cost.max()
            if value < now[_BEST]:
                now[_BEST] = value
                state.best[:] = state.stage
        else:
            _move(v, origin, costs, tensors, state)
