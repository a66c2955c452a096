"""One level of a beam search over partial assignments: what is placed, and which devices are used.

From every state each class of device that is left is filled greedily by several priorities. The rest of a child is
estimated at a blend of each op's cheapest and harmonic mean time over the devices that are then left. At the cheapest
times the estimate is a bound, but precedence keeps most ops from the device that is best for them, and the mean ranks
better. An op that only this device can still take goes first; a child without it leads nowhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, WORK_A_LOOK, FloatArray, IntArray
from rlinit.heuristics.stages.beam.states import States, remember
from rlinit.heuristics.stages.filling.kernel import Loads, dive
from rlinit.heuristics.stages.filling.stage_state import FillRule, StageState, place, reset
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays

_PAIRS = 128
"""Pairs of an op and a class that are estimated in about the time of one load."""


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
def rest_times(work: FloatArray, placed: NDArray[np.int8], room: IntArray, limit: float, times: FloatArray) -> None:
    """Set times (4, n) of what is not placed: cheapest, its class, cheapest of other classes, sum of speeds.

    A class with two stages left and more counts as another class of its own.

    Parameters
    ----------
    work
        (c, n) seconds.
    placed
        (n,) whether an op is placed.
    room
        (c,) devices that are left.
    limit
        Seconds of a stage; where an op takes longer it cannot run.
    times
        Receives them.
    """
    floor = max(SAFETY * limit, 1e-300)  # rounding beside the limit
    for v in range(work.shape[1]):
        if placed[v]:
            continue
        least, at, second, speed = np.inf, -1, np.inf, 0.0
        for c in range(len(room)):
            if room[c] <= 0 or work[c, v] > limit:
                continue
            speed += room[c] / max(work[c, v], floor)
            if work[c, v] < least:
                second = least
                least, at = work[c, v], c
                if room[c] > 1:
                    second = least
            else:
                second = min(second, work[c, v])
        times[0, v], times[1, v], times[2, v], times[3, v] = least, at, second, speed


@njit(cache=True, nogil=True)
def _least_after(times: FloatArray, v: int, c: int) -> float:
    """Return the cheapest seconds of op v once one device of class c is used up as well; inf: none can take it."""
    return float(times[2, v] if times[1, v] == c else times[0, v])


@njit(cache=True, nogil=True)
def times_after(
    work: FloatArray,
    placed: NDArray[np.int8],
    c: int,
    left: int,
    limit: float,
    blend: float,
    times: FloatArray,
    value: FloatArray,
) -> None:
    """Set the estimated seconds of each op once one device of class c is used up as well; inf: none can take it.

    Parameters
    ----------
    work, placed, limit, times
        As in `rest_times`, which sets `times`.
    c
        The class.
    left
        Devices that are left, this one among them.
    blend
        0: the cheapest time; 1: the harmonic mean.
    value
        (n,) receives the estimates.
    """
    floor = max(SAFETY * limit, 1e-300)  # rounding beside the limit
    for v in range(len(value)):
        if placed[v]:
            continue
        least = _least_after(times, v, c)
        value[v] = least
        if 0.0 < least < np.inf:
            speed = times[3, v]
            if work[c, v] <= limit:
                speed -= 1.0 / max(work[c, v], floor)
            mean = (left - 1) / max(speed, 1.0 / least)
            value[v] = least * max(1.0, mean / least) ** blend


@njit(cache=True, nogil=True)
def _rest(
    placed: NDArray[np.int8], c: int, times: FloatArray, value: FloatArray, must: FloatArray
) -> tuple[float, float, int]:
    """Return the estimated and the least seconds of what is left after class c, and how many ops it alone can take.

    These are set to be worth nothing and to go first.
    """
    total, bound, musts = 0.0, 0.0, 0
    for v in range(len(value)):
        must[v] = 0.0
        if placed[v]:
            continue
        if value[v] == np.inf:
            value[v], must[v] = 0.0, np.inf
            musts += 1
        else:
            total += value[v]
            bound += _least_after(times, v, c)
    return total, bound, musts


@njit(cache=True, nogil=True)
def _append(children: States, states: States, i: int, c: int, loads: Loads, j: int) -> int:
    """Append state i with load j on a device of class c to the children; return where, -1 where it is there already."""
    bits, used = states.bits[i].copy(), states.used[i].copy()
    for q in range(loads.size[j]):
        v = loads.member[j, q]
        bits[v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    used[c] += 1
    return int(remember(children, states.sign[i] ^ loads.sign[j], bits, used, i, c))


@njit(cache=True, nogil=True)
def _fill(
    rng: np.random.Generator,
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rule: FillRule,
    urgency: FloatArray,
    c: int,
    limit: float,
) -> int:
    """Fill a stage of class c by each of the urgencies (r, n), a little at random; return the loads looked at."""
    loads.score[:] = -np.inf
    s.now[:] = 0.0
    work, least = 0, np.inf
    for v in range(len(s.placed)):
        if s.placed[v] == 0:
            least = min(least, a.work[c, v])
    if least > limit:
        return 0
    for r in range(len(urgency)):
        for v in range(len(s.placed)):
            if s.placed[v] == 0:
                s.key[v] = urgency[r, v] + rule.noise * rng.standard_normal() + rule.priority[v]
        work += dive(a, s, loads, rule, c, limit, np.inf, 0)
    return work


@njit(cache=True, nogil=True)
def expand_states(
    rng: np.random.Generator,
    a: StageArrays,
    s: StageState,
    loads: Loads,
    rule: FillRule,
    urgency: FloatArray,
    blend: float,
    limit: float,
    states: States,
    children: States,
    class_count: IntArray,
    first: int,
) -> tuple[int, int]:
    """Add the children of the states from `first` on; return the next state, and the loads looked at.

    Stops after a state once more than `WORK_A_LOOK` loads are looked at, and where a child has placed everything.

    Parameters
    ----------
    rng
        For the priorities of fillings.
    a
        The problem.
    s, loads
        Room to work in.
    rule
        Side, penalties and noise; its values and priorities are room to work in.
    urgency
        (c, r, n) priorities by which a stage of each class is filled, one load each.
    blend
        As in `times_after`.
    limit
        Seconds that a stage may cost.
    states, children
        This level and the next, which has room for as many as states times classes times r.
    class_count
        (2, c) stages of each class, and those that may come next at all.
    first
        Where to begin.
    """
    n, num_classes, work = len(a.param), class_count.shape[1], 0
    room, times, value, must = np.empty(num_classes, np.int64), np.empty((4, n)), rule.value, rule.priority
    for i in range(first, states.now[0]):
        if work > WORK_A_LOOK:
            return i, work
        ops = _restore(a, s, rule.forward, states.bits[i])
        left = 0
        for c in range(num_classes):
            room[c] = class_count[0, c] - states.used[i, c]
            left += room[c]
        rest_times(a.work, s.placed, room, limit, times)
        work += 2 * n * num_classes // _PAIRS
        for c in range(num_classes):
            if room[c] <= 0 or class_count[1, c] == 0:
                continue
            times_after(a.work, s.placed, c, left, limit, blend, times, value)
            total, bound, musts = _rest(s.placed, c, times, value, must)
            work += _fill(rng, a, s, loads, rule, urgency[c], c, limit)
            for j in range(len(loads.score)):
                if loads.score[j] == -np.inf:
                    continue
                taken, least, forced = 0.0, 0.0, 0
                for q in range(loads.size[j]):
                    v = loads.member[j, q]
                    taken += value[v]
                    if must[v] > 0.0:
                        forced += 1
                    else:
                        least += _least_after(times, v, c)
                if forced < musts or bound - least > (left - 1) * limit * (1.0 + SAFETY) + SAFETY * bound:
                    continue
                at = _append(children, states, i, c, loads, j)
                if at < 0:
                    continue
                if loads.size[j] == ops:
                    children.now[1] = at
                    return states.now[0], work
                children.penalty[at] = states.penalty[i] + taken - loads.score[j]
                children.rank[at] = (total - taken + children.penalty[at]) / max(left - 1, SAFETY)
    return states.now[0], work
