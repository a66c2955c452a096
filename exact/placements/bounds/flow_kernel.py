"""Compiled ascent over multipliers of the placement relaxation; see :mod:`rlinit.exact.placements.bounds.flow`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import UNIT_ROUNDING, BoolArray, FloatArray, IntArray
from rlinit.kernels.compiled import njit

HEAD, EDGE, TAIL, LOAD = 0, 1, 2, 3
"""Kinds of arcs."""

_FULL_DEVICES = 8
"""Devices up to which potentials of a transfer may be any that its costs allow; beyond, each lies below its own."""

_LEAST = -25.0
"""Logarithm of the least share of an arc relative to the largest one of its node."""


class FlowArrays(NamedTuple):
    """What the ascent works on: n ops, d devices, and arcs between n + 2 nodes, of which n is the start, n + 1 the end.

    `visit` (n,) is topological. Arcs leave node v at ``arc_ptr[v] : arc_ptr[v + 1]``, to `target`, are of `kind`, and
    their `item` is an edge for EDGE, ``interval * d + device`` for LOAD. Seconds `time`, `head` and `tail` (n, d) are 0
    where not `allowed`. Edges have the cost (m, d, d) of a transfer. Interval i holds ``inside[inside_ptr[v] : ...]``
    for each op v. Each device may hold `capacity` (d,) of `held` (n,), inf: any.
    """

    visit: IntArray
    arc_ptr: IntArray
    target: IntArray
    kind: NDArray[np.int8]
    item: IntArray
    time: FloatArray
    head: FloatArray
    tail: FloatArray
    allowed: BoolArray
    group: IntArray
    edges: IntArray
    cost: FloatArray
    inside_ptr: IntArray
    inside: IntArray
    held: FloatArray
    capacity: FloatArray


class FlowState(NamedTuple):
    """Multipliers: logarithms of the shares of arcs, potentials (m, d) of transfers, penalties (d,) of memory.

    `place` (n, d) is the mean of the cheapest devices so far.
    """

    logit: FloatArray
    potential: FloatArray
    penalty: FloatArray
    place: FloatArray


@njit(cache=True, nogil=True)
def _shares(a: FlowArrays, logit: FloatArray, share: FloatArray) -> None:
    """Set the share of each arc in the flow of its node."""
    for v in range(len(a.arc_ptr) - 1):
        first, last = a.arc_ptr[v], a.arc_ptr[v + 1]
        if first == last:
            continue
        most = logit[first]
        for k in range(first + 1, last):
            most = max(most, logit[k])
        total = 0.0
        for k in range(first, last):
            logit[k] = max(logit[k] - most, _LEAST)
            share[k] = np.exp(logit[k])
            total += share[k]
        for k in range(first, last):
            share[k] /= total


@njit(cache=True, nogil=True)
def _flows(a: FlowArrays, share: FloatArray, flow: FloatArray, arc_flow: FloatArray) -> None:
    """Send one unit from the start along the arcs by their shares."""
    n = len(a.visit)
    flow[:] = 0.0
    flow[n] = 1.0
    for at in range(-1, n):
        v = n if at < 0 else a.visit[at]
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            arc_flow[k] = flow[v] * share[k]
            flow[a.target[k]] += arc_flow[k]


@njit(cache=True, nogil=True)
def _costs(
    a: FlowArrays, flow: FloatArray, arc_flow: FloatArray, s: FlowState, loads: FloatArray, cost: FloatArray
) -> float:
    """Set what each op costs on each device, groups at their first op; return the sum of all that was added up."""
    n, d = a.time.shape
    cost[:] = 0.0
    loads[:] = 0.0
    size = 0.0
    for v in range(n + 1):
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            f, kind, item = arc_flow[k], a.kind[k], a.item[k]
            if kind == LOAD:
                loads[item] += f
            elif kind == HEAD:
                w = a.target[k]
                for i in range(d):
                    cost[a.group[w], i] += f * a.head[w, i]
            elif kind == TAIL:
                for i in range(d):
                    cost[a.group[v], i] += f * a.tail[v, i]
            else:
                w = a.target[k]
                for i in range(d):
                    part = f * s.potential[item, i]
                    cost[a.group[v], i] += part
                    cost[a.group[w], i] -= part
                    size += 2.0 * part
    for v in range(n):
        g = a.group[v]
        for i in range(d):
            rate = flow[v]
            for at in range(a.inside_ptr[v], a.inside_ptr[v + 1]):
                rate += loads[a.inside[at] * d + i]
            cost[g, i] += a.time[v, i] * rate + s.penalty[i] * a.held[v]
    return size


@njit(cache=True, nogil=True)
def _value(a: FlowArrays, cost: FloatArray, size: float, s: FlowState) -> float:
    """Return what the multipliers prove, less all that rounding may have added; see `flow.FlowBound`."""
    n, d = a.time.shape
    total, extent = 0.0, size
    for v in range(n):
        if a.group[v] != v:
            continue
        least, most = np.inf, 0.0
        for i in range(d):
            if a.allowed[v, i]:
                least = min(least, cost[v, i])
                most = max(most, abs(cost[v, i]))
        total += least
        extent += most
    paid = 0.0
    for i in range(d):
        if s.penalty[i] > 0.0:
            paid += s.penalty[i] * a.capacity[i]
    return float(total - paid - UNIT_ROUNDING * (16.0 + n + len(a.target)) * (extent + paid))


@njit(cache=True, nogil=True)
def _respond(a: FlowArrays, cost: FloatArray, step: float, place: FloatArray) -> None:
    """Move the mean placement a step towards the cheapest devices."""
    n, d = a.time.shape
    for v in range(n):
        g = a.group[v]
        best = -1
        for i in range(d):
            place[v, i] *= 1.0 - step
            if a.allowed[g, i] and (best < 0 or cost[g, i] < cost[g, best]):
                best = i
        place[v, best] += step


@njit(cache=True, nogil=True)
def _lengths(a: FlowArrays, s: FlowState, loads: FloatArray, length: FloatArray) -> None:
    """Set the seconds of each arc in the mean placement; `loads` is room to work in."""
    n, d = a.time.shape
    loads[:] = 0.0
    for v in range(n):
        for at in range(a.inside_ptr[v], a.inside_ptr[v + 1]):
            base = a.inside[at] * d
            for i in range(d):
                loads[base + i] += a.time[v, i] * s.place[v, i]
    for v in range(n + 1):
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            kind, item, amount = a.kind[k], a.item[k], 0.0
            if kind == LOAD:
                amount = loads[item]
            elif kind == HEAD:
                w = a.target[k]
                for i in range(d):
                    amount += a.head[w, i] * s.place[w, i]
            elif kind == TAIL:
                for i in range(d):
                    amount += a.tail[v, i] * s.place[v, i]
            else:
                w = a.target[k]
                for i in range(d):
                    amount += s.potential[item, i] * (s.place[v, i] - s.place[w, i])
            length[k] = amount


@njit(cache=True, nogil=True)
def _reroute(a: FlowArrays, s: FlowState, share: FloatArray, length: FloatArray, step: float, rest: FloatArray) -> None:
    """Raise the share of arcs by which the rest of the way is longer than on average."""
    n, d = a.time.shape
    rest[n + 1] = 0.0
    for at in range(n - 1, -2, -1):
        v = n if at < 0 else a.visit[at]
        own = 0.0
        if v < n:
            for i in range(d):
                own += a.time[v, i] * s.place[v, i]
        mean = 0.0
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            mean += share[k] * (length[k] + rest[a.target[k]])
        rest[v] = own + mean
    scale = step / max(float(rest[n]), 1e-300)
    for v in range(n + 1):
        mean = rest[v]
        if v < n:
            for i in range(d):
                mean -= a.time[v, i] * s.place[v, i]
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            s.logit[k] += scale * (length[k] + rest[a.target[k]] - mean)


@njit(cache=True, nogil=True)
def _allow(cost: FloatArray, potential: FloatArray) -> None:
    """Lower potentials (d,) until none exceeds another by more than the cost (d, d) between them."""
    d = len(potential)
    if d > _FULL_DEVICES:
        for i in range(d):
            least = np.inf
            for j in range(d):
                if j != i:
                    least = min(least, cost[i, j])
            potential[i] = min(max(potential[i], 0.0), least)
        return
    changed = True
    while changed:
        changed = False
        for i in range(d):
            for j in range(d):
                if potential[i] > potential[j] + cost[i, j]:
                    potential[i] = potential[j] + cost[i, j]
                    changed = True
    least = potential[0]
    for i in range(1, d):
        least = min(least, potential[i])
    for i in range(d):
        potential[i] -= least


@njit(cache=True, nogil=True)
def _reprice(a: FlowArrays, s: FlowState, step: float, mean_cost: FloatArray, bound: float) -> None:
    """Move potentials and penalties along the mean placement's transfers and excess of memory."""
    d = a.time.shape[1]
    for e in range(len(a.edges)):
        if mean_cost[e] <= 0.0:
            continue
        u, w = a.edges[e, 0], a.edges[e, 1]
        for i in range(d):
            s.potential[e, i] += step * mean_cost[e] * (s.place[u, i] - s.place[w, i])
        _allow(a.cost[e], s.potential[e])
    for i in range(d):
        if 0.0 < a.capacity[i] < np.inf:
            amount = 0.0
            for v in range(len(a.held)):
                amount += a.held[v] * s.place[v, i]
            s.penalty[i] = max(0.0, s.penalty[i] + step * bound / a.capacity[i] * (amount / a.capacity[i] - 1.0))


@njit(cache=True, nogil=True)
def ascend(
    a: FlowArrays, s: FlowState, best: FlowState, first: int, rounds: int, steps: FloatArray, mean_cost: FloatArray
) -> float:
    """Improve the multipliers for some rounds; return the best bound, whose multipliers are left in `best`.

    Parameters
    ----------
    a
        The problem.
    s
        Multipliers, changed in place.
    best
        Receives those of the best bound.
    first
        Rounds that went before, which made steps smaller.
    rounds
        How many.
    steps
        (6,) of shares, placement and potentials at first, and the rounds after which each is half as large.
    mean_cost
        (m,) of a transfer between different devices.
    """
    n, d = a.time.shape
    num_arcs = len(a.target)
    share, arc_flow, length = np.empty(num_arcs), np.empty(num_arcs), np.empty(num_arcs)
    flow, rest = np.empty(n + 2), np.empty(n + 2)
    intervals = 0
    for item in a.inside:
        intervals = max(intervals, item + 1)
    for k in range(num_arcs):
        if a.kind[k] == LOAD:
            intervals = max(intervals, a.item[k] // d + 1)
    loads, cost = np.empty(intervals * d), np.empty((n, d))
    bound = -np.inf
    for t in range(first, first + rounds):
        _shares(a, s.logit, share)
        _flows(a, share, flow, arc_flow)
        size = _costs(a, flow, arc_flow, s, loads, cost)
        value = _value(a, cost, size, s)
        if value > bound:
            bound = value
            best.logit[:] = s.logit
            best.potential[:] = s.potential
            best.penalty[:] = s.penalty
        _respond(a, cost, 1.0 if t == 0 else steps[1] / (1.0 + t / steps[4]), s.place)
        _lengths(a, s, loads, length)
        _reroute(a, s, share, length, steps[0] / (1.0 + t / steps[3]), rest)
        _reprice(a, s, steps[2] / (1.0 + t / steps[5]), mean_cost, max(value, 0.0))
    return bound
