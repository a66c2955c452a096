"""Compiled annealing of stages on unlike devices under a trial bottleneck, where tensors cost nothing.

The energy is what stages cost beyond the trial, added up: stages below it pull nothing, so a move looks at two stages
alone. Nodes move to other stages or change places with a node of theirs, and stages exchange devices. Where no edge is
between two neighbouring stages they exchange positions, which costs nothing and opens other stages to their nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.annealing import draw_stage_between
from rlinit.kernels.stages.arrays import CostArrays, Precedence

_SWAPS, _EXCHANGES, _TURNS = 0.4, 0.05, 0.05
"""Shares of moves in which two nodes change places, two stages exchange devices, and two stages their positions."""

_MET = 1e-9
"""Share of the trial that stages may exceed it by in all for rounding; it is met then."""

_EXCESS, _LEAST, _TEMPERATURE = range(3)
"""Places in `ExcessState.now`."""


class ExcessState(NamedTuple):
    """Where annealing is.

    Parameters
    ----------
    stage, best
        (n,) stage of each node now, and where the excess was least.
    classes, best_classes
        (k,) class of each stage now, and where the excess was least.
    member, place, size
        (k, n) nodes of each stage, (n,) position of a node among them, (k,) how many they are.
    busy, held, cost
        (k,) seconds of work, parameter bytes and cost of each stage.
    now
        (3,) excess, least excess so far, and temperature, in seconds.
    """

    stage: IntArray
    best: IntArray
    classes: IntArray
    best_classes: IntArray
    member: IntArray
    place: IntArray
    size: IntArray
    busy: FloatArray
    held: FloatArray
    cost: FloatArray
    now: FloatArray


@njit(cache=True, nogil=True)
def _over(held: float, cache: float, memory: float, rate: float) -> float:
    """Return the seconds of overflow of so many bytes, inf where they do not fit."""
    if held > memory:
        return np.inf
    return (held - cache) * rate if held > cache else 0.0


@njit(cache=True, nogil=True)
def excess_state(start: IntArray, classes: IntArray, trial: float, hot: float, costs: CostArrays) -> ExcessState:
    """Return the state at a monotone assignment.

    Parameters
    ----------
    start, classes
        (n,) stage of each node, (k,) class of each stage; no edge leads to a smaller stage.
    trial
        Seconds that no stage should exceed.
    hot
        Temperature, in seconds.
    costs
        The problem.
    """
    n, k = len(start), len(classes)
    state = ExcessState(
        start.copy(),
        start.copy(),
        classes.copy(),
        classes.copy(),
        np.zeros((k, n), np.int64),
        np.zeros(n, np.int64),
        np.zeros(k, np.int64),
        np.zeros(k),
        np.zeros(k),
        np.zeros(k),
        np.zeros(3),
    )
    for v in range(n):
        at = start[v]
        state.busy[at] += costs.work[classes[at], v]
        state.held[at] += costs.param[v]
        _enter(v, at, state.stage, state.member, state.place, state.size)
    for at in range(k):
        c = classes[at]
        state.cost[at] = state.busy[at] + _over(state.held[at], costs.cache[c], costs.memory[c], costs.overflow[c])
        state.now[_EXCESS] += max(0.0, state.cost[at] - trial)
    state.now[_LEAST] = state.now[_EXCESS]
    state.now[_TEMPERATURE] = hot
    return state


@njit(cache=True, nogil=True)
def _enter(v: int, at: int, stage: IntArray, member: IntArray, place: IntArray, size: IntArray) -> None:
    """List node v with the nodes of a stage."""
    member[at, size[at]] = v
    place[v] = size[at]
    size[at] += 1
    stage[v] = at


@njit(cache=True, nogil=True)
def _leave(v: int, at: int, member: IntArray, place: IntArray, size: IntArray) -> None:
    """Take node v out of a stage's list."""
    size[at] -= 1
    last = member[at, size[at]]
    member[at, place[v]] = last
    place[last] = place[v]


@njit(cache=True, nogil=True)
def _bars(v: int, at: int, without: int, stage: IntArray, indptr: IntArray, row: IntArray, sign: int) -> bool:
    """Return whether a neighbour of node v keeps it from stage `at`: one beyond it (times `sign`), or `without`."""
    for e in range(indptr[v], indptr[v + 1]):  # noqa: SIM110 - numba knows no any()
        if row[e] == without or sign * (stage[row[e]] - at) > 0:
            return True
    return False


@njit(cache=True, nogil=True)
def _turned(
    i: int,
    succ_indptr: IntArray,
    succ: IntArray,
    stage: IntArray,
    classes: IntArray,
    member: IntArray,
    size: IntArray,
    figures: tuple[FloatArray, FloatArray, FloatArray],
) -> None:
    """Let stages i and i + 1 exchange positions where no edge is between them."""
    for q in range(size[i]):
        v = member[i, q]
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            if stage[succ[e]] == i + 1:
                return
    for q in range(max(size[i], size[i + 1])):
        member[i, q], member[i + 1, q] = member[i + 1, q], member[i, q]
    for values in (classes, size):
        values[i], values[i + 1] = values[i + 1], values[i]
    for seconds in figures:
        seconds[i], seconds[i + 1] = seconds[i + 1], seconds[i]
    for at in (i, i + 1):
        for q in range(size[at]):
            stage[member[at, q]] = at


@njit(cache=True, nogil=True)
def anneal_excess(
    rng: np.random.Generator,
    moves: int,
    cooling: float,
    trial: float,
    costs: CostArrays,
    order: Precedence,
    state: ExcessState,
) -> bool:
    """Try so many moves, each at a temperature lower by the factor `cooling`; return whether the trial is met.

    Arrays are taken out of their bundles once: a field read in the loop makes it ten times slower.

    Parameters
    ----------
    rng
        Draws the moves.
    moves
        Moves at most; none after the trial is met.
    cooling
        Factor of the temperature from move to move.
    trial
        Seconds that no stage should exceed.
    costs, order
        The problem; tensors are left out.
    state
        Changed in place.
    """
    work, param, cache, memory, rate = costs.work, costs.param, costs.cache, costs.memory, costs.overflow
    succ_indptr, succ, pred_indptr, pred = order.succ_indptr, order.succ, order.pred_indptr, order.pred
    stage, classes, member, place, size = state.stage, state.classes, state.member, state.place, state.size
    busy, held, cost = figures = state.busy, state.held, state.cost
    excess, least, temperature, k = state.now[_EXCESS], state.now[_LEAST], state.now[_TEMPERATURE], len(classes)
    for _ in range(moves):
        if least <= _MET * trial or k == 1:
            break
        temperature *= cooling
        draw = rng.random()
        u, v = -1, -1
        if draw > 1.0 - _TURNS:
            _turned(int(rng.random() * (k - 1)), succ_indptr, succ, stage, classes, member, size, figures)
            continue
        if draw < _EXCHANGES:
            i, j = int(rng.random() * k), int(rng.random() * k)
            first, second, one, other, param_one, param_two = classes[j], classes[i], 0.0, 0.0, held[i], held[j]
            if first == second:
                continue
            for q in range(max(size[i], size[j])):
                one += work[first, member[i, q]] if q < size[i] else 0.0
                other += work[second, member[j, q]] if q < size[j] else 0.0
        else:
            v = int(rng.random() * len(stage))
            j = draw_stage_between(rng, v, k, stage, succ_indptr, succ, pred_indptr, pred)
            if j < 0:
                continue
            i = stage[v]
            first, second = classes[i], classes[j]
            one, other = busy[i] - work[first, v], busy[j] + work[second, v]
            param_one, param_two = held[i] - param[v], held[j] + param[v]
            if draw < _EXCHANGES + _SWAPS and size[j] > 0:
                u = member[j, int(rng.random() * size[j])]
                if (
                    _bars(u, i, v, stage, pred_indptr, pred, 1)
                    if i < j
                    else _bars(u, i, v, stage, succ_indptr, succ, -1)
                ):
                    continue
                one, other = one + work[first, u], other - work[second, u]
                param_one, param_two = param_one + param[u], param_two - param[u]
        cost_one = one + _over(param_one, cache[first], memory[first], rate[first])
        cost_two = other + _over(param_two, cache[second], memory[second], rate[second])
        if not (cost_one < np.inf and cost_two < np.inf):
            continue
        rise = max(0.0, cost_one - trial) + max(0.0, cost_two - trial)
        rise -= max(0.0, cost[i] - trial) + max(0.0, cost[j] - trial)
        if rise > 0.0 and rng.random() >= np.exp(-rise / temperature):
            continue
        busy[i], busy[j], held[i], held[j], cost[i], cost[j] = one, other, param_one, param_two, cost_one, cost_two
        classes[i], classes[j] = first, second
        if v >= 0:
            _leave(v, i, member, place, size)
            _enter(v, j, stage, member, place, size)
        if u >= 0:
            _leave(u, j, member, place, size)
            _enter(u, i, stage, member, place, size)
        excess += rise
        if excess < least:
            least = excess
            state.best[:] = stage
            state.best_classes[:] = classes
    state.now[:] = excess, least, temperature
    return bool(least <= _MET * trial)
