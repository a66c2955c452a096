"""The children of states: every load of the next stage that can matter, on every device that is left.

A load is left out where another op fits into it that pays for itself, since the state with that op is as good (see
`dominance`), and where what it leaves is worth more than what the devices that are then left can hold at the prices of
the state (see `pricing`). An op that no other device can take is in the load, or the state leads nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.stages.bounds.convex_load import knapsacks
from rlinit.exact.stages.remember.pricing import Prices
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays
from rlinit.kernels.stages.stage_state import (
    COST,
    GROWN,
    SCORE,
    FillRule,
    StageState,
    add,
    fits,
    place,
    remove,
    reset,
)
from rlinit.kernels.stages.states import States, remember

_ROUNDING = 1e-9
"""Relative room before something is given up because it does not fit."""


class Keys(NamedTuple):
    """What states are known by.

    Parameters
    ----------
    op, device
        (n,) and (c,) random bits.
    pays
        (n,) whether an op pays for itself.
    silent
        (n,) whether what an op makes (from the back: what it reads) costs no stage anything while it is filled.
    class_count
        (c,) stages of each class.
    order
        (n,) ops as they may be placed from this side.
    """

    op: NDArray[np.uint64]
    device: NDArray[np.uint64]
    pays: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    class_count: IntArray
    order: IntArray


@njit(cache=True, nogil=True)
def _can_grow(a: StageArrays, s: StageState, rule: FillRule, keys: Keys, c: int, limit: float) -> bool:
    """Return whether an op fits into the load that pays for itself."""
    waiting = s.before if rule.forward else s.behind
    for v in range(len(s.placed)):
        if s.placed[v] or waiting[v] or not keys.pays[v] or not fits(a, s, rule.forward, c, limit, v):
            continue
        if keys.silent[v] and s.now[GROWN] == s.now[COST]:
            return True
        kept = s.now.copy()
        add(a, s, rule, c, v)
        cost = s.now[COST]
        remove(a, s, rule.forward, v)
        s.now[:] = kept
        if cost <= limit:
            return True
    return False


@njit(cache=True, nogil=True)
def _only_here(a: StageArrays, s: StageState, room: IntArray, c: int, limit: float, must: FloatArray) -> int:
    """Mark the ops that no device can take once one of class c is used up; return how many, -1: nor can this one."""
    count = 0
    for v in range(len(s.placed)):
        must[v] = 0.0
        if s.placed[v]:
            continue
        alone = True
        for d in range(len(room)):
            if room[d] > (1 if d == c else 0) and a.work[d, v] <= limit:
                alone = False
                break
        if alone:
            if a.work[c, v] > limit:
                return -1
            must[v] = 1.0
            count += 1
    return count


@njit(cache=True, nogil=True)
def _loads(
    a: StageArrays,
    s: StageState,
    rule: FillRule,
    keys: Keys,
    c: int,
    limits: tuple[float, float],
    most: FloatArray,
    counts: tuple[int, int],
    states: States,
    i: int,
    children: States,
) -> int:
    """Add the children of state i with a stage of class c; return the loads looked at, -1 where there is no room.

    `limits` are the seconds of the stage and the least value of its load; `counts` the ops that it must take and those
    that are left in all. Ends with a child that has placed everything.
    """
    limit, need = limits
    musts, ops = counts
    bits, used = states.bits[i].copy(), states.used[i].copy()
    used[c] += 1
    sign = states.sign[i] + keys.device[c]
    waiting = s.before if rule.forward else s.behind
    grid = most.shape[1] - 1
    steps = grid / limit * (1.0 + _ROUNDING) if limit > 0.0 else 0.0
    s.now[:] = 0.0
    s.saved[0] = s.now
    s.start[0] = 0
    depth, looked, fresh = 0, 0, True
    while depth >= 0:
        fits_all = fresh and s.now[COST] <= limit and s.now[SCORE] >= need and musts == 0
        if fits_all and not _can_grow(a, s, rule, keys, c, limit):
            if children.now[0] == len(children.sign):
                return -1
            remember(children, sign, bits, used, i, c)
            if depth == ops:
                children.now[1] = children.now[0] - 1
                return looked
        fresh = False
        q = s.start[depth]
        left = min(grid, int(max(0.0, limit - s.now[GROWN]) * steps))
        if q < len(keys.order) and s.now[SCORE] + most[q, left] >= need:
            s.start[depth] = q + 1
            v = keys.order[q]
            if s.placed[v] or waiting[v] or not fits(a, s, rule.forward, c, limit, v):
                continue
            add(a, s, rule, c, v)
            s.chosen[depth] = v
            depth += 1
            s.start[depth], s.saved[depth] = q + 1, s.now
            looked, fresh = looked + 1, True
        else:
            depth -= 1
            if depth < 0:
                break
            v = s.chosen[depth]
            remove(a, s, rule.forward, v)
            s.now[:] = s.saved[depth]
        sign = sign + keys.op[v] if fresh else sign - keys.op[v]
        bits[v >> 6] ^= np.uint64(1) << np.uint64(v & 63)
        musts -= int(rule.priority[v]) if fresh else -int(rule.priority[v])
    return looked


@njit(cache=True, nogil=True)
def _restore(
    a: StageArrays, s: StageState, rule: FillRule, keys: Keys, states: States, prices: Prices, i: int
) -> tuple[int, float]:
    """Place the ops of state i and set the prices of the others; return how many those are, and their price."""
    reset(a, s)
    n, ops, left = len(s.placed), 0, 0.0
    for q in range(n):
        v = keys.order[q]
        rule.value[v] = prices.price[i, q if rule.forward else n - 1 - q]
        if (states.bits[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
            place(a, s, rule.forward, v)
        else:
            left += rule.value[v]
            ops += 1
    return ops, left


@njit(cache=True, nogil=True)
def expand(
    a: StageArrays,
    s: StageState,
    rule: FillRule,
    keys: Keys,
    limit: float,
    states: States,
    prices: Prices,
    children: States,
    first: int,
    quota: int,
) -> tuple[int, int]:
    """Add the children of the states from `first` on; return the next state, and the loads looked at.

    Stops after a state once more than `quota` loads are looked at, with a child that has placed everything, and before
    a state whose children have no room: it is then the next state, and some of its children may be there.

    Parameters
    ----------
    a
        The problem.
    s
        Room to work in.
    rule
        The side; its values and priorities are room to work in.
    keys
        What states are known by.
    limit
        Seconds that a stage may cost.
    states, prices, children
        This level with its prices, and the next level.
    first
        Where to begin.
    quota
        When to stop.
    """
    num_classes, work = len(keys.class_count), 0
    times, values = np.empty(len(keys.order)), np.empty(len(keys.order))
    limit *= 1.0 + _ROUNDING
    for i in range(first, states.now[0]):
        if work > quota:
            return i, work
        ops, left = _restore(a, s, rule, keys, states, prices, i)
        room = keys.class_count - states.used[i]
        capacity = (room * prices.worth[i]).sum()
        for c in range(num_classes):
            if room[c] <= 0:
                continue
            musts = _only_here(a, s, room, c, limit, rule.priority)
            if musts < 0:
                continue
            for q in range(len(keys.order)):
                v = keys.order[q]
                times[q], values[q] = a.work[c, v], 0.0 if s.placed[v] else rule.value[v]
            need = left - (capacity - prices.worth[i, c]) - _ROUNDING
            most = knapsacks(times, values, limit)
            looked = _loads(a, s, rule, keys, c, (limit, need), most, (musts, ops), states, i, children)
            if looked < 0 or children.now[1] >= 0:
                return i, work
            work += looked + len(keys.order) // 4
    return states.now[0], work
