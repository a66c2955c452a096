"""The load of one stage under construction: what it costs, what may join it, and how it is taken apart again.

A stage is filled from the front of what is left (ops whose predecessors are placed) or from its back (ops whose
successors are). Its cost has all terms of a stage: work, tensors in and out once each, overflow. While it is filled
from the front, work, tensors in and overflow only grow, and tensors out may vanish again; from the back the roles of
tensors in and out are exchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays

COST, GROWN, PARAM, SCORE = range(4)
"""What is kept of a load: its cost, the part of it that only grows, its parameter bytes, its score."""


class FillRule(NamedTuple):
    """How stages are filled from one end.

    Parameters
    ----------
    forward
        From the front, else from the back.
    value
        (n,) what an op in a load is worth.
    priority
        (n,) ops of high priority are tried first.
    penalty
        (m,) what a tensor takes off the score where a load leaves it cut on the side of what is left.
    cap
        Loads that are looked at for one stage in enumeration.
    dives
        Random greedy fills of one stage after that, unless it is full.
    noise
        Standard deviation of what is added to priorities in a dive, relative to their spread.
    full
        A load that costs this share of the limit is full, and no other is looked for.
    """

    forward: bool
    value: FloatArray
    priority: FloatArray
    penalty: FloatArray
    cap: int
    dives: int
    noise: float
    full: float


class StageState(NamedTuple):
    """What is placed, and the load under construction; arrays that are changed in place.

    Parameters
    ----------
    placed
        (n,) 0: not yet; 1: in a stage that is done, or in the load.
    before, behind
        (n,) predecessors, and successors, that are not placed from the front, and from the back.
    made, used
        (m,) whether the load makes a tensor, and how many of its consumers it holds.
    reached
        (2, m) consumers placed from the front, and from the back.
    now, saved
        (4,) figures of the load, and (n + 1, 4) those of its parts, so that nothing drifts.
    queue, key
        (n,) candidates, and (n,) their priority in this fill.
    chosen, start, length
        (n + 1,) stack of the enumeration: op, next candidate, number of candidates.
    """

    placed: NDArray[np.int8]
    before: IntArray
    behind: IntArray
    made: NDArray[np.int8]
    used: IntArray
    reached: IntArray
    now: FloatArray
    saved: FloatArray
    queue: IntArray
    key: FloatArray
    chosen: IntArray
    start: IntArray
    length: IntArray


@njit(cache=True, nogil=True)
def new_state(a: StageArrays) -> StageState:
    """Return a state in which nothing is placed."""
    n, m = len(a.param), len(a.tensor_src)
    state = StageState(
        np.zeros(n, np.int8),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(m, np.int8),
        np.zeros(m, np.int64),
        np.zeros((2, m), np.int64),
        np.zeros(4),
        np.zeros((n + 1, 4)),
        np.zeros(n, np.int64),
        np.zeros(n),
        np.zeros(n + 1, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros(n + 1, np.int64),
    )
    reset(a, state)
    return state


@njit(cache=True, nogil=True)
def reset(a: StageArrays, s: StageState) -> None:
    """Take everything out of all stages.

    Parameters
    ----------
    a
        The problem.
    s
        The state.
    """
    s.placed[:] = 0
    s.made[:] = 0
    s.used[:] = 0
    s.reached[:] = 0
    for v in range(len(a.param)):
        s.before[v] = a.pred_indptr[v + 1] - a.pred_indptr[v]
        s.behind[v] = a.succ_indptr[v + 1] - a.succ_indptr[v]


@njit(cache=True, nogil=True)
def _charge(a: StageArrays, s: StageState, c: int, t: int, sign: float, forward: bool) -> None:
    """Add, or take away, what tensor t costs the load."""
    if s.made[t]:
        if s.used[t] < a.tensor_indptr[t + 1] - a.tensor_indptr[t]:
            s.now[COST] += sign * a.out_s[c, t]
            if not forward:
                s.now[GROWN] += sign * a.out_s[c, t]
    elif s.used[t] > 0:
        s.now[COST] += sign * a.in_s[c, t]
        if forward:
            s.now[GROWN] += sign * a.in_s[c, t]


@njit(cache=True, nogil=True)
def _over(a: StageArrays, c: int, param: float) -> float:
    return (param - a.cache[c]) * a.overflow[c] if param > a.cache[c] else 0.0


@njit(cache=True, nogil=True)
def add(a: StageArrays, s: StageState, rule: FillRule, c: int, v: int) -> None:
    """Put op v into the load: costs, counts of tensors, and the ops that wait for it.

    Parameters
    ----------
    a
        The problem.
    s
        What is placed, and the load.
    rule
        The side, and what ops are worth.
    c
        Class of the stage.
    v
        The op; all it waits for is placed.
    """
    forward = rule.forward
    reached = s.reached[0 if forward else 1]
    param = s.now[PARAM]
    grown = a.work[c, v] + _over(a, c, param + a.param[v]) - _over(a, c, param)
    s.now[COST] += grown
    s.now[GROWN] += grown
    s.now[PARAM] = param + a.param[v]
    s.now[SCORE] += rule.value[v]
    for e in range(a.in_indptr[v], a.in_indptr[v + 1]):
        t = a.in_tensor[e]
        _charge(a, s, c, t, -1.0, forward)
        s.used[t] += 1
        reached[t] += 1
        _charge(a, s, c, t, 1.0, forward)
        if forward:
            if reached[t] == a.tensor_indptr[t + 1] - a.tensor_indptr[t]:
                s.now[SCORE] += rule.penalty[t]
        elif reached[t] == 1:
            s.now[SCORE] -= rule.penalty[t]
    for e in range(a.out_indptr[v], a.out_indptr[v + 1]):
        t = a.out_tensor[e]
        _charge(a, s, c, t, -1.0, forward)
        s.made[t] = 1
        _charge(a, s, c, t, 1.0, forward)
        s.now[SCORE] += -rule.penalty[t] if forward else rule.penalty[t]
    s.placed[v] = 1
    if forward:
        for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            s.before[a.succ[e]] -= 1
    else:
        for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            s.behind[a.pred[e]] -= 1


@njit(cache=True, nogil=True)
def remove(a: StageArrays, s: StageState, forward: bool, v: int) -> None:
    """Take op v out of the load; its figures are restored by who saved them.

    Parameters
    ----------
    a
        The problem.
    s
        What is placed, and the load.
    forward
        The side.
    v
        The op that was added last.
    """
    for e in range(a.in_indptr[v], a.in_indptr[v + 1]):
        s.used[a.in_tensor[e]] -= 1
        s.reached[0 if forward else 1, a.in_tensor[e]] -= 1
    for e in range(a.out_indptr[v], a.out_indptr[v + 1]):
        s.made[a.out_tensor[e]] = 0
    s.placed[v] = 0
    if forward:
        for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            s.before[a.succ[e]] += 1
    else:
        for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            s.behind[a.pred[e]] += 1


@njit(cache=True, nogil=True)
def fits(a: StageArrays, s: StageState, forward: bool, c: int, limit: float, v: int) -> bool:
    """Return whether what only grows of the load's cost stays within the limit when op v joins it.

    Parameters
    ----------
    a
        The problem.
    s
        What is placed, and the load.
    forward
        The side.
    c
        Class of the stage.
    limit
        Seconds.
    v
        The op.
    """
    param = s.now[PARAM] + a.param[v]
    if param > a.memory[c]:
        return False
    grown = s.now[GROWN] + a.work[c, v] + _over(a, c, param) - _over(a, c, s.now[PARAM])
    if grown > limit:
        return False
    if forward:
        for e in range(a.in_indptr[v], a.in_indptr[v + 1]):
            t = a.in_tensor[e]
            if s.made[t] == 0 and s.used[t] == 0:
                grown += a.in_s[c, t]
    else:
        for e in range(a.out_indptr[v], a.out_indptr[v + 1]):
            t = a.out_tensor[e]
            if s.used[t] < a.tensor_indptr[t + 1] - a.tensor_indptr[t]:
                grown += a.out_s[c, t]
    return bool(grown <= limit)


@njit(cache=True, nogil=True)
def place(a: StageArrays, s: StageState, forward: bool, v: int) -> None:
    """Put op v into a stage that is done, on the side it is filled from.

    Parameters
    ----------
    a
        The problem.
    s
        The state.
    forward
        The side.
    v
        The op; all it waits for is placed.
    """
    s.placed[v] = 1
    if forward:
        for e in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
            s.before[a.succ[e]] -= 1
    else:
        for e in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
            s.behind[a.pred[e]] -= 1
    for e in range(a.in_indptr[v], a.in_indptr[v + 1]):
        s.reached[0 if forward else 1, a.in_tensor[e]] += 1
