"""One level of a beam search over partial assignments: what is placed, and which devices are used.

From every state each class of device that is left takes its best loads next. At any prices of the devices that are
left, the rest is worth at least the sum over its ops of the cheapest price times time, over devices where the op keeps
within the limit; a state whose rest is worth more than these devices can take leads nowhere. The others are ranked by
how full the rest would be at the prices at which it is fullest, and an op in a load is worth what it would cost there.
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

__all__ = ["BeamStates", "expand_states", "new_states", "rank_states", "rest_fullness"]

_ROUNDING = 1e-9
"""Relative room before a state is given up because its rest does not fit."""

_ROUNDS, _FIRST_STEP, _STEP_FALL = 12, 0.4, 0.15
"""Changes of prices for a state, the first relative step, and how fast steps become smaller."""

_PRICED = 128
"""Pairs of an op and a class that are priced in about the time of one load."""


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
    price
        (w, c) prices of devices at which the rest is fullest.
    now
        (2,) number of states, and the one that has placed everything, or -1.
    """

    bits: NDArray[np.uint64]
    used: NDArray[np.int16]
    parent: IntArray
    last: IntArray
    sign: NDArray[np.uint64]
    rank: FloatArray
    price: FloatArray
    now: IntArray


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
        np.ones((width, num_classes)),
        np.array([1, -1]),
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
def rest_fullness(
    work: FloatArray, rest: IntArray, room: IntArray, limit: float, price: FloatArray, rounds: int
) -> float:
    """Return how full the rest makes the devices that are left at the best prices found; inf where it does not fit.

    Prices of classes that would be loaded more than the average rise, the others fall (multiplicative weights).

    Parameters
    ----------
    work
        (c, n) seconds.
    rest
        The ops that are left.
    room
        (c,) devices that are left.
    limit
        Seconds of a stage.
    price
        (c,) prices to start from; those found afterwards.
    rounds
        Changes of prices.
    """
    num_classes = len(room)
    load, best, best_price = np.empty(num_classes), -1.0, price.copy()
    for i in range(rounds):
        load[:] = 0.0
        paid, capacity = 0.0, 0.0
        for c in range(num_classes):
            capacity += price[c] * room[c]
        for v in rest:
            least, at = np.inf, -1
            for c in range(num_classes):
                if room[c] > 0 and work[c, v] <= limit and price[c] * work[c, v] < least:
                    least, at = price[c] * work[c, v], c
            if at < 0:
                return np.inf
            load[at] += work[at, v]
            paid += least
        if paid > limit * capacity * (1.0 + _ROUNDING):
            return np.inf
        level = paid / capacity if capacity > 0.0 else 0.0
        if level > best:
            best = level
            best_price[:] = price
        if level <= 0.0:
            break
        step = _FIRST_STEP / (1.0 + _STEP_FALL * i)
        for c in range(num_classes):
            if room[c] > 0:
                over = load[c] / (room[c] * level) - 1.0
                price[c] *= np.exp(step * min(1.0, max(-1.0, over)))
    price[:] = best_price
    return best / limit if limit > 0.0 else 0.0


@njit(cache=True, nogil=True)
def rank_states(
    work: FloatArray, class_count: IntArray, limit: float, states: BeamStates, first: int, last: int
) -> int:
    """Set rank and prices of the states first..last-1, inf where the rest does not fit; return the pairs priced.

    Parameters
    ----------
    work
        (c, n) seconds.
    class_count
        (c,) stages of each class.
    limit
        Seconds that a stage may cost.
    states
        The states; prices are those to start from.
    first, last
        Which.
    """
    bits, used, rank, price = states.bits, states.used, states.rank, states.price
    num_classes, n = work.shape
    rest, room, priced = np.empty(n, np.int64), np.empty(num_classes, np.int64), 0
    for i in range(first, last):
        left = 0
        for v in range(n):
            if bits[i, v >> 6] >> np.uint64(v & 63) & np.uint64(1) == 0:
                rest[left] = v
                left += 1
        for c in range(num_classes):
            room[c] = class_count[c] - used[i, c]
        rank[i] = rest_fullness(work, rest[:left], room, limit, price[i], _ROUNDS)
        priced += _ROUNDS * left * num_classes
    return priced


@njit(cache=True, nogil=True)
def _set_values(
    work: FloatArray, limit: float, room: IntArray, price: FloatArray, at: int, tilt: FloatArray, value: FloatArray
) -> None:
    """Set the value of each op to what it costs on the cheapest class left at state `at`'s prices, and its tilt."""
    for v in range(len(value)):
        least = np.inf
        for c in range(len(room)):
            if room[c] > 0 and work[c, v] <= limit:
                least = min(least, price[at, c] * work[c, v])
        value[v] = least + tilt[v] if least < np.inf else 0.0


@njit(cache=True, nogil=True)
def expand_states(
    rng: np.random.Generator,
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rule: FillRule,
    tilt: FloatArray,
    limit: float,
    states: BeamStates,
    children: BeamStates,
    class_count: IntArray,
    first: int,
    quota: int,
) -> tuple[int, int]:
    """Add the children of the states from `first` on; return the next state, and the loads looked at.

    Stops after a state once more than `quota` loads are looked at, and where a child has placed everything.

    Parameters
    ----------
    rng
        For the dives of fillings.
    a
        The problem.
    s, loads
        Room to work in.
    rule
        How stages are filled; its values are set for each state to what ops would cost at the state's prices.
    tilt
        (n,) what is added to them.
    limit
        Seconds that a stage may cost.
    states, children
        This level and the next, which has room for as many as states times classes times loads.
    class_count
        (c,) stages of each class that may come next at all.
    first, quota
        Where to begin, and when to stop.
    """
    n, num_classes, work = len(a.param), len(class_count), 0
    now, bits, used, price, sign = children.now, children.bits, children.used, children.price, children.sign
    room = np.empty(num_classes, np.int64)
    for i in range(first, states.now[0]):
        if work > quota:
            return i, work
        left = _restore(a, s, rule.forward, states.bits[i])
        for c in range(num_classes):
            room[c] = class_count[c] - states.used[i, c]
        _set_values(a.work, limit, room, states.price, i, tilt, rule.value)
        work += n * num_classes // _PRICED
        for c in range(num_classes):
            if room[c] <= 0:
                continue
            work += fill_stage(rng, a, s, loads, rule, c, limit)
            for j in range(len(loads.score)):
                if loads.score[j] == -np.inf:
                    continue
                at = now[0]
                for w in range(bits.shape[1]):
                    bits[at, w] = states.bits[i, w]
                for q in range(loads.size[j]):
                    v = loads.member[j, q]
                    bits[at, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
                for d in range(num_classes):
                    used[at, d] = states.used[i, d] + (1 if d == c else 0)
                    price[at, d] = states.price[i, d]
                children.parent[at] = i
                children.last[at] = c
                sign[at] = states.sign[i] ^ loads.sign[j]
                now[0] += 1
                if loads.size[j] == left:
                    now[1] = at
                    return states.now[0], work
    return states.now[0], work
