"""The dynamic program over ideals where the overflow of a stage counts its peak of activation memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.budget import Budget, reserve
from rlinit.exact.stages.ideals.enumeration import enumerate_ideals
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.activation_problem import StageActivations
from rlinit.stages.problem import StageAssignment, StageResult
from rlinit.stages.states import MOST_STEPS, StageStates, num_counted

MOST_IDEALS = 3_000
"""Ideals of the graph, which are gone through in plain Python."""

MOST_STAGES = 400_000
"""Pairs of ideals whose difference is looked at as a stage."""


def solve_activation_ideals(
    problem: StageActivations, *, upper: float, budget: Budget
) -> StageResult[StageAssignment] | None:
    """Solve a problem with activations by dynamic programming over its ideals.

    Every pair of nested ideals is a stage, unless its work, its transfers and the overflow of what it surely holds cost
    `upper` already. The others are priced twice: with the peak of the best order that was found, which can be reached,
    and with what no order is below. The first pricing gives an assignment, the second one a bound; where all peaks are
    exact they agree.

    Parameters
    ----------
    problem
        The problem.
    upper
        Bottleneck of a schedule at hand.
    budget
        When to stop.

    Returns
    -------
    StageResult or None
        ``optimal`` or ``feasible`` with an assignment better than `upper`, or ``infeasible`` where there is none (then
        the bound is that of the second pricing, at most `upper`). None beyond `MOST_IDEALS`, `MOST_STAGES` or
        `MOST_STEPS`, or where the budget ended.
    """
    base = problem.problem
    ideals = enumerate_ideals(base, MOST_IDEALS, budget, merge=False)
    if ideals is None:
        return None
    lattice = [0]
    for before, node in zip(ideals.parent[1:].tolist(), ideals.node[1:].tolist(), strict=True):
        lattice.append(lattice[before] | 1 << node)
    num_states = num_counted(base.class_count, min(base.num_stages, base.num_nodes))
    if num_states * max(len(lattice), base.num_classes) > MOST_STEPS:
        return None
    return _Program(problem, lattice, upper, budget).solve()


def _rows(indptr: IntArray, values: IntArray) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, indptr[1:-1])]


def _bits(nodes: list[int]) -> int:
    return sum(1 << v for v in nodes)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What lies between two ideals.

    Parameters
    ----------
    ideal
        The larger one, as bits.
    work_s, param_bytes, floor_bytes
        Work on each class, parameters, and what the peak surely is.
    enters, leaves
        Tensors that come in and go out.
    ready
        Nodes that may come next.
    """

    ideal: int
    work_s: tuple[float, ...]
    param_bytes: float
    floor_bytes: float
    enters: frozenset[int]
    leaves: frozenset[int]
    ready: tuple[int, ...]


class _Program:
    def __init__(self, problem: StageActivations, ideals: list[int], upper: float, budget: Budget) -> None:
        base = problem.problem
        self.problem, self.base, self.ideals, self.upper, self.budget = problem, base, ideals, upper, budget
        self.number = {ideal: at for at, ideal in enumerate(ideals)}
        n = base.num_nodes
        self.need = [_bits(row) for row in _rows(base.pred_indptr, base.pred)]
        self.next = _rows(base.succ_indptr, base.succ)
        self.readers = [_bits(row) for row in _rows(base.tensor_indptr, base.tensor_dst)]
        self.made = [1 << u for u in base.tensor_src.tolist()]
        self.reads, self.makes = _rows(base.in_indptr, base.in_tensor), _rows(base.out_indptr, base.out_tensor)
        self.work = [tuple(base.work_s[:, v].tolist()) for v in range(n)]
        self.param, self.floor = base.param_bytes.tolist(), problem.floor_bytes.tolist()
        self.size, self.in_s, self.out_s = base.tensor_bytes.tolist(), base.in_s.tolist(), base.out_s.tolist()
        self.cache, self.rate = base.cache_bytes.tolist(), base.overflow_s_per_byte.tolist()
        self.memory = (base.memory_bytes * CAPACITY_SLACK).tolist()
        self.num_stages = 0

    def solve(self) -> StageResult[StageAssignment] | None:
        """Return the result as `solve_activation_ideals` describes it."""
        states = StageStates.counted(self.base.class_count, min(self.base.num_stages, self.base.num_nodes))
        step = states.step
        shape = (len(step), len(self.ideals))
        reserve(32 * shape[0] * shape[1], f"{shape[0] * shape[1]:,} labels of ideals")
        reached, proven = np.full(shape, np.inf), np.full(shape, np.inf)
        reached[0, 0] = proven[0, 0] = 0.0
        back = np.full((*shape, 2), -1, np.int64)
        for first, ideal in enumerate(self.ideals):
            if self.budget.expired or self.num_stages > MOST_STAGES:
                return None
            if not np.isfinite(proven[:, first]).any():
                continue
            for last, high, low in self._stages(ideal):
                for c in range(self.base.num_classes):
                    if low[c] >= self.upper:
                        continue
                    start = np.flatnonzero(step[:, c] >= 0)
                    after = step[start, c]
                    proven[after, last] = np.minimum(proven[after, last], np.maximum(proven[start, first], low[c]))
                    value = np.maximum(reached[start, first], high[c])
                    better = value < reached[after, last]
                    reached[after[better], last] = value[better]
                    back[after[better], last] = first, c
        bound = min(float(proven[:, -1].min()) * (1.0 - SAFETY), self.upper)
        state = int(np.argmin(reached[:, -1]))
        value = float(reached[state, -1])
        if value >= self.upper:
            return StageResult(None, None, (bound,), "infeasible", self.num_stages)
        status: Literal["optimal", "feasible"] = "optimal" if value * (1.0 - SAFETY) <= bound else "feasible"
        return StageResult(self._read(state, states, back), (value,), (bound,), status, self.num_stages)

    def _stages(self, ideal: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Yield (number of the larger ideal, costs per class that can be reached, bounds on them) of stages to keep."""
        seen = {ideal}
        ready = tuple(v for v, need in enumerate(self.need) if not ideal >> v & 1 and not need & ~ideal)
        nothing = (0.0,) * self.base.num_classes
        stack = [_Stage(ideal, nothing, 0.0, 0.0, frozenset(), frozenset(), ready)]
        while stack:
            before = stack.pop()
            for v in before.ready:
                if before.ideal | 1 << v in seen:
                    continue
                seen.add(before.ideal | 1 << v)
                stage = self._grown(before, v, ideal)
                if min(stage.work_s) * (1.0 - SAFETY) >= self.upper:
                    continue
                self.num_stages += 1
                stack.append(stage)
                priced = self._prices(stage, ideal)
                if priced is not None:
                    yield self.number[stage.ideal], *priced

    def _grown(self, stage: _Stage, v: int, ideal: int) -> _Stage:
        """Add a node to a stage that starts at an ideal."""
        larger = stage.ideal | 1 << v
        enters = [t for t in self.reads[v] if self.made[t] & ideal]
        ended = [t for t in self.reads[v] if not self.made[t] & ideal and not self.readers[t] & ~larger]
        freed = tuple(w for w in self.next[v] if not self.need[w] & ~larger)
        return _Stage(
            larger,
            tuple(map(float.__add__, stage.work_s, self.work[v])),
            stage.param_bytes + self.param[v],
            max(stage.floor_bytes, self.floor[v]),
            stage.enters.union(enters),
            stage.leaves.difference(ended).union(self.makes[v]),
            (*(w for w in stage.ready if w != v), *freed),
        )

    def _prices(self, stage: _Stage, ideal: int) -> tuple[FloatArray, FloatArray] | None:
        """Return the costs on each class that can be reached, and bounds on them; None where they cannot matter."""
        bare = []
        for c, work in enumerate(stage.work_s):
            moved = sum(self.in_s[c][t] for t in stage.enters) + sum(self.out_s[c][t] for t in stage.leaves)
            bare.append(work + moved if stage.param_bytes <= self.memory[c] else math.inf)
        surely = max(
            stage.floor_bytes, sum(self.size[t] for t in stage.enters), sum(self.size[t] for t in stage.leaves)
        )
        least = self._with_overflow(bare, stage.param_bytes, surely)
        if float(least.min()) * (1.0 - SAFETY) >= self.upper:
            return None
        inside = stage.ideal ^ ideal
        member = np.array([bool(inside >> v & 1) for v in range(self.base.num_nodes)])
        peak = self.problem.least_peak(member, int(np.argmin(self.base.cache_bytes)))
        high = self._with_overflow(bare, stage.param_bytes, peak.peak_bytes)
        return high, np.maximum(self._with_overflow(bare, stage.param_bytes, peak.bound_bytes), least)

    def _with_overflow(self, bare: list[float], param_bytes: float, peak_bytes: float) -> FloatArray:
        over = (max(0.0, param_bytes + peak_bytes - cache) for cache in self.cache)
        return np.array([one + (o * r if o > 0 else 0.0) for one, o, r in zip(bare, over, self.rate, strict=True)])

    def _read(self, state: int, states: StageStates, back: np.ndarray) -> StageAssignment:
        """Return the assignment that led to a state at the last ideal."""
        base = self.base
        stage = np.zeros(base.num_nodes, np.int64)
        ends, classes = states.trace(state, len(self.ideals) - 1, back[..., 0], back[..., 1])
        for j, end in reversed(list(enumerate(ends))):
            stage[[bool(self.ideals[end] >> v & 1) for v in range(base.num_nodes)]] = j
        return StageAssignment(stage, base.completed_classes(classes))
