"""One level of a beam search over partial assignments: what is placed, and which devices are used.

From every state each class of device that is left takes its best loads next. What is left is worth, at the given
prices, at least the sum over its ops of the cheapest price times time on devices that are left; a state whose rest is
worth more than these devices can take within the limit leads nowhere, and the others are ranked by how full the rest
would be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays
from rlinit.kernels.stages.filling import Loads, fill_stage
from rlinit.kernels.stages.stage_state import FillRule, StageState, place, reset

__all__ = ["BeamStates", "beam_level", "new_states"]

_ROUNDING = 1e-9
"""Relative room before a state is given up because its rest does not fit."""


class BeamStates(NamedTuple):
    """States of one level, w at most.

    Parameters
    ----------
    bits
        (w, words) ops that are placed.
    used
        (w, c) stages used of each class.
    parent, last
        (w,) state of the level before, and class of the last stage.
    sign
        (w,) exclusive or of the keys of the ops that are placed.
    rank
        (w,) fullness of the rest; small is good.
    """

    bits: NDArray[np.uint64]
    used: NDArray[np.int16]
    parent: IntArray
    last: IntArray
    sign: NDArray[np.uint64]
    rank: FloatArray


@njit(cache=True, nogil=True)
def new_states(width: int, num_nodes: int, num_classes: int) -> BeamStates:
    """Return room for states of which the first is the empty one.

    Parameters
    ----------
    width
        How many states.
    num_nodes, num_classes
        Sizes of the problem.
    """
    return BeamStates(
        np.zeros((width, (num_nodes + 63) // 64), np.uint64),
        np.zeros((width, num_classes), np.int16),
        np.full(width, -1, np.int64),
        np.full(width, -1, np.int64),
        np.zeros(width, np.uint64),
        np.zeros(width),
    )


@njit(cache=True, nogil=True)
def _restore(a: StageArrays, s: StageState, forward: bool, bits: NDArray[np.uint64]) -> int:
    """Place the ops of a state; return how many are left."""
    reset(a, s)
    left = len(a.param)
    for v in range(len(a.param)):
        if bits[v >> 6] >> np.uint64(v & 63) & np.uint64(1):
            place(a, s, forward, v)
            left -= 1
    return left


@njit(cache=True, nogil=True)
def _fullness(
    a: StageArrays,
    s: StageState,
    load: NDArray[np.bool_],
    used: NDArray[np.int16],
    class_count: IntArray,
    price: FloatArray,
    limit: float,
) -> float:
    """Return the worth of the rest, without the load, over what the devices that are left can take; inf if too much."""
    room = 0.0
    for c in range(len(price)):
        room += price[c] * (class_count[c] - used[c]) * limit
    rest = 0.0
    for v in range(len(load)):
        if s.placed[v] or load[v]:
            continue
        least = np.inf
        for c in range(len(price)):
            if used[c] < class_count[c] and a.work[c, v] <= limit:
                least = min(least, price[c] * a.work[c, v])
        rest += least
        if rest > room * (1.0 + _ROUNDING):
            return np.inf
    return rest / room if room > 0.0 else 0.0


@njit(cache=True, nogil=True)
def beam_level(
    rng: np.random.Generator,
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rule: FillRule,
    limit: float,
    states: BeamStates,
    children: BeamStates,
    price: FloatArray,
    class_count: IntArray,
    fixed: int,
    width: int,
) -> tuple[BeamStates, int, int]:
    """Return the best `width` states of the next level, the one that has placed everything or -1, and the work.

    Parameters
    ----------
    rng
        For the dives of fillings and for ties.
    a
        The problem.
    s, loads, children
        Room to work in; as many children as states times classes times loads.
    rule
        How stages are filled.
    limit
        Seconds that a stage may cost.
    states
        The states of this level.
    price, class_count
        (c,) worth of a second, and number of stages, of each class.
    fixed
        Class of the next stage, or -1 where any may come.
    width
        States to keep.
    """
    n, num_classes = len(a.param), len(class_count)
    count, work = 0, 0
    load = np.zeros(n, np.bool_)
    for i in range(len(states.rank)):
        left = _restore(a, s, rule.forward, states.bits[i])
        for c in range(num_classes):
            if states.used[i, c] == class_count[c] or (fixed >= 0 and fixed != c):
                continue
            work += fill_stage(rng, a, s, loads, rule, c, limit)
            for j in range(len(loads.score)):
                if loads.score[j] == -np.inf:
                    continue
                load[:] = False
                children.bits[count] = states.bits[i]
                for q in range(loads.size[j]):
                    v = loads.member[j, q]
                    load[v] = True
                    children.bits[count, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
                children.used[count] = states.used[i]
                children.used[count, c] += 1
                children.parent[count] = i
                children.last[count] = c
                if loads.size[j] == left:
                    return _selected(children, np.full(1, count)), 0, work
                rank = _fullness(a, s, load, children.used[count], class_count, price, limit)
                if rank == np.inf:
                    continue
                children.rank[count] = rank * (1.0 + 0.02 * rule.noise * rng.standard_normal())
                children.sign[count] = states.sign[i] ^ loads.sign[j]
                count += 1
    best = np.argsort(children.rank[:count], kind="mergesort")
    kept = np.empty(min(width, count), np.int64)
    size = 0
    for i in best:
        if size == width:
            break
        fresh = True
        for j in range(size):
            if children.sign[kept[j]] == children.sign[i] and np.all(children.used[kept[j]] == children.used[i]):
                fresh = False
                break
        if fresh:
            kept[size] = i
            size += 1
    return _selected(children, kept[:size]), -1, work


@njit(cache=True, nogil=True)
def _selected(states: BeamStates, rows: IntArray) -> BeamStates:
    """Return copies of some states."""
    return BeamStates(
        states.bits[rows],
        states.used[rows],
        states.parent[rows],
        states.last[rows],
        states.sign[rows],
        states.rank[rows],
    )
