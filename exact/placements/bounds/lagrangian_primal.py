"""Placements from the columns of a Lagrangian chain: devices for its segments that fit the memory together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.exact.placements.bounds.lagrangian_chain import LagrangianChain
from rlinit.exact.placements.bounds.lagrangian_segments import Column
from rlinit.hardware import CAPACITY_SLACK
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority

_WIDTH = 500
_COLUMNS = 40
_CELLS = 64
_TRIED = 12


def assemble(chain: LagrangianChain) -> Placement | None:
    """Return the best placement that a beam over the segments finds; None where no choice of columns fits.

    Labels are sums of lengths and of what the devices hold, ranked by the largest bound over the multipliers, one kept
    for each cell of a grid of what is held. The last ones get ops beside the chain where there is room, and an order.
    """
    problem = chain.problem
    best, value = None, np.inf
    for device in _choices(chain):
        if not _complete(problem, chain.beside, device):
            continue
        for priority in _priorities(problem, device):
            found = placement_from_priority(problem, device[:, None], priority)
            seconds = makespan(problem, found)
            if seconds < value:
                best, value = found, seconds
    return best


def _choices(chain: LagrangianChain) -> Iterator[IntArray]:
    """Yield (n,) devices of the ops of the chain's segments, best first; -1 for ops beside."""
    multiplier = np.array(chain.multipliers)
    if not len(multiplier):
        return
    behind = chain.behind()
    length, held, device = np.zeros(1), np.zeros((1, chain.num_devices)), np.zeros(1, np.int64)
    steps: list[tuple[IntArray, IntArray, list[Column]]] = []
    for k in range(len(chain.segments)):
        columns, source, target = _columns(chain, k, multiplier)
        if not columns:
            return
        of_column = np.array([column.length_s for column in columns])
        held_by = np.array([column.held for column in columns])
        label, column = np.nonzero(device[:, None] == source[None, :])
        total = length[label] + of_column[column]
        holds = held[label] + held_by[column]
        to = target[column]
        fits = np.flatnonzero((holds <= chain.capacity).all(axis=1))
        rank = (total[fits, None] + holds[fits] @ multiplier.T + chain.base + behind[k + 1][:, to[fits]].T).max(axis=1)
        chosen = fits[_distinct(rank, to[fits], holds[fits])]
        length, held, device = total[chosen], holds[chosen], to[chosen]
        steps.append((label[chosen], column[chosen], columns))
    for last in range(min(_TRIED, len(length))):
        result, at = np.full(chain.problem.num_ops, -1, np.int64), last
        for k in reversed(range(len(steps))):
            before, which, columns = steps[k]
            own = np.flatnonzero(chain.segments[k].ops[:-1] >= 0)
            result[chain.segments[k].ops[own]] = columns[which[at]].device[own]
            at = int(before[at])
        yield result


def _columns(chain: LagrangianChain, k: int, multiplier: FloatArray) -> tuple[list[Column], IntArray, IntArray]:
    """Return the distinct columns of a segment, the cheapest `_COLUMNS` of each pair, and their end devices."""
    pairs: dict[tuple[int, int], dict[bytes, Column]] = {}
    for arc in chain.arcs[k]:
        known = pairs.setdefault((arc.source, arc.target), {})
        for column in arc.columns:
            known.setdefault(column.device.tobytes(), column)
    columns, source, target = [], [], []
    for (i, j), known in sorted(pairs.items()):
        ranked = sorted(known.values(), key=lambda column: float((column.length_s + multiplier @ column.held).mean()))
        columns += ranked[:_COLUMNS]
        source += [i] * min(_COLUMNS, len(ranked))
        target += [j] * min(_COLUMNS, len(ranked))
    return columns, np.array(source, np.int64), np.array(target, np.int64)


def _distinct(rank: FloatArray, device: IntArray, held: FloatArray) -> IntArray:
    """Return which labels to keep, best first: at most `_WIDTH`, one for each cell of what is held."""
    order = np.argsort(rank, kind="stable")
    cells = np.column_stack([device, np.round(held * _CELLS).astype(np.int64)])[order]
    _, first = np.unique(cells, axis=0, return_index=True)
    kept: IntArray = order[np.sort(first)[:_WIDTH]]
    return kept


def _complete(problem: PlacementProblem, beside: IntArray, device: IntArray) -> bool:
    """Give the ops beside the chain devices in place, those of least time with transfers; return whether all fit."""
    need = problem.weight_bytes + problem.shard_bytes
    placed = device >= 0
    room = problem.capacity_bytes * CAPACITY_SLACK
    room = room - np.bincount(device[placed], weights=need[placed], minlength=problem.num_devices)
    seconds = problem.op_time_s
    aside = set(beside.tolist())
    for v in problem.order.tolist():
        if v not in aside:
            continue
        cost = np.where(need[v] <= room, seconds[v], np.inf)
        for u in problem.pred_of(v).tolist():
            if device[u] >= 0:
                cost = cost + np.array([problem.transfer_s(u, int(device[u]), i) for i in range(len(cost))])
        for w in problem.succ_of(v).tolist():
            if device[w] >= 0:
                cost = cost + np.array([problem.transfer_s(v, i, int(device[w])) for i in range(len(cost))])
        choice = int(cost.argmin())
        if not cost[choice] < np.inf:
            return False
        device[v] = choice
        room[choice] -= need[v]
    return True


def _priorities(problem: PlacementProblem, device: IntArray) -> Iterator[FloatArray]:
    """Yield (n,) priorities: the start if no device were busy, and the time to the end, longest first."""
    seconds = problem.op_time_s[np.arange(problem.num_ops), device]
    start, rest = np.zeros(problem.num_ops), seconds.copy()
    for v in problem.order.tolist():
        for u in problem.pred_of(v).tolist():
            arrival = start[u] + seconds[u] + problem.transfer_s(u, int(device[u]), int(device[v]))
            start[v] = max(start[v], arrival)
    for v in problem.order[::-1].tolist():
        for w in problem.succ_of(v).tolist():
            through = problem.transfer_s(v, int(device[v]), int(device[w])) + rest[w]
            rest[v] = max(rest[v], seconds[v] + through)
    yield start
    yield -rest
