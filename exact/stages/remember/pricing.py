"""Prices of the ops that a state has left, and what loads of the devices that it has left are worth at most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.stages.bounds.convex_load import StageRoom, best_load
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.states import States

_SAFETY = 1e-7
"""Relative room for rounding before prices count as a refutation."""

_ROUNDS = 10
"""Sets of prices of one state at most."""

_HOPELESS = (np.inf, 1.1, 1.1, 1.04, 1.04, 1.04, 1.015, 1.015, 1.015, 1.015)
"""What stages hold of the prices of all ops after each round from which on further rounds seldom refute a state."""

_AIM = 0.98
"""What stages are to hold in Polyak's step: a little less than refutes the state."""

_CAP = 20_000
"""Loads that are looked at for one class and one set of prices."""


class Line(NamedTuple):
    """What does not change from state to state, ops in a topological order.

    Parameters
    ----------
    work, param
        (c, n) seconds and (n,) bytes.
    rooms
        (c, 4) what a stage may hold, as in `StageRoom`.
    behind
        (n, words) as `reach_bits` returns it.
    place
        (n,) place of each op in the order.
    class_count
        (c,) stages of each class.
    """

    work: FloatArray
    param: FloatArray
    rooms: FloatArray
    behind: NDArray[np.uint64]
    place: IntArray
    class_count: IntArray


class Prices(NamedTuple):
    """Prices of ops (w, n) by place, 0 where they are placed, and worth of loads by class (w, c), for each state."""

    price: FloatArray
    worth: FloatArray


@njit(cache=True, nogil=True)
def _left(line: Line, bits: NDArray[np.uint64], at: IntArray) -> int:
    """List the places of the ops that are not placed, ascending; return how many."""
    n = len(line.param)
    there = np.zeros(n, np.bool_)
    for v in range(n):
        there[line.place[v]] = (bits[v >> 6] >> np.uint64(v & 63)) & np.uint64(1)
    m = 0
    for q in range(n):
        if not there[q]:
            at[m] = q
            m += 1
    return m


@njit(cache=True, nogil=True)
def _step(price: FloatArray, cover: FloatArray, held: float) -> None:
    """Raise the prices of ops that no load holds, lower those that several hold, and scale them to sum up to 1."""
    apart = cover - cover.mean()
    square = (apart * apart).sum()
    step = (held - _AIM) / square if square > 0.0 else 0.0
    total = 0.0
    for q in range(len(price)):
        price[q] = max(0.0, price[q] - step * apart[q])
        total += price[q]
    for q in range(len(price)):
        price[q] = price[q] / total if total > 0.0 else 1.0 / len(price)


@njit(cache=True, nogil=True)
def _hold(
    line: Line,
    used: NDArray[np.int16],
    at: IntArray,
    load: FloatArray,
    param: FloatArray,
    price: FloatArray,
    costliest: NDArray[np.bool_],
    worth: FloatArray,
    cover: FloatArray,
) -> float:
    """Return what all stages that are left are worth at most; set that of each class, and how often loads hold ops."""
    m, held = len(at), 0.0
    cover[:] = 0.0
    worth[:] = 0.0
    chosen = np.empty(m, np.bool_)
    for c in range(len(worth)):
        count = line.class_count[c] - used[c]
        if count <= 0:
            continue
        room = StageRoom(line.rooms[c, 0], line.rooms[c, 1], line.rooms[c, 2], line.rooms[c, 3])
        floor = 0.0
        for q in range(m):
            if costliest[c, q]:
                floor += price[q]
        worth[c], _, _ = best_load(load[c, :m], param, price, room, line.behind, at, floor, _CAP, chosen)
        if chosen.any():
            costliest[c, :m] = chosen
        held += count * worth[c]
        for q in range(m):
            if costliest[c, q]:
                cover[q] += count
    return held


@njit(cache=True, nogil=True)
def refute_states(line: Line, states: States, before: Prices, prices: Prices, first: int, last: int) -> IntArray:
    """Set the prices of states first..last-1, starting from those of their parents; return those not refuted.

    A state is refuted where the devices that it has left hold less than the ops that it has left (`ConvexCover`).

    Parameters
    ----------
    line
        The problem.
    states
        The states.
    before, prices
        Prices of the level before, and of this one, which are set.
    first, last
        Which states.
    """
    num_classes, n = line.work.shape
    kept = np.empty(last - first, np.int64)
    count = 0
    worth, places = np.empty(num_classes), np.empty(n, np.int64)
    load, costliest = np.empty((num_classes, n)), np.empty((num_classes, n), np.bool_)
    for i in range(first, last):
        m = _left(line, states.bits[i], places)
        at = places[:m]
        price, param, cover = before.price[states.parent[i]][at], line.param[at], np.empty(m)
        for c in range(num_classes):
            load[c, :m] = line.work[c][at]
        price = price / price.sum() if price.sum() > 0.0 else np.full(m, 1.0 / m)
        costliest[:] = False
        least = np.inf
        for r in range(_ROUNDS):
            held = _hold(line, states.used[i], at, load, param, price, costliest, worth, cover) * (1.0 + _SAFETY)
            if held < least:
                least = held
                prices.price[i] = 0.0
                for q in range(m):
                    prices.price[i, at[q]] = price[q]
                prices.worth[i] = worth
            if least < 1.0 or least > _HOPELESS[r]:
                break
            _step(price, cover, held)
        if least >= 1.0:
            kept[count] = i
            count += 1
    return kept[:count]
