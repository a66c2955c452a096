"""The dynamic program over ideals where the overflow of a stage counts its peak of activation memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from rlinit.budget import Budget
from rlinit.partition import counted_states
from rlinit.stage_activations import StageActivations
from rlinit.stages import FloatArray, StageAssignment, StageResult

__all__ = ["MOST_IDEALS", "MOST_STAGES", "solve_activation_ideals"]

MOST_IDEALS = 3_000
"""Ideals of the graph, all of which are enumerated in plain Python."""

MOST_STAGES = 50_000
"""Pairs of ideals whose difference is looked at as a stage."""

_SAFETY = 1.0 - 1e-9
"""Discount of a proven bound for the rounding of sums."""


def solve_activation_ideals(problem: StageActivations, *, upper: float, budget: Budget) -> StageResult | None:
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
        the bound is that of the second pricing, at most `upper`). None beyond `MOST_IDEALS` or `MOST_STAGES`, or where
        the budget ended.
    """
    lattice = _ideals(problem)
    if lattice is None:
        return None
    return _Program(problem, lattice, upper, budget).solve()


def _ideals(problem: StageActivations) -> list[int] | None:
    """Return all ideals as bits, smaller ones first; None if there are too many."""
    base = problem.problem
    n = base.num_nodes
    need = [_bits(base.pred[base.pred_indptr[v] : base.pred_indptr[v + 1]].tolist()) for v in range(n)]
    layer, found = [0], [0]
    for _ in range(n):
        grown: dict[int, None] = {}
        for ideal in layer:
            for v in range(n):
                if not ideal >> v & 1 and not need[v] & ~ideal:
                    grown[ideal | 1 << v] = None
        layer = list(grown)
        found.extend(layer)
        if len(found) > MOST_IDEALS:
            return None
    return found


def _bits(nodes: list[int]) -> int:
    return sum(1 << v for v in nodes)


class _Program:
    def __init__(self, problem: StageActivations, ideals: list[int], upper: float, budget: Budget) -> None:
        base = problem.problem
        self.problem, self.base, self.ideals, self.upper, self.budget = problem, base, ideals, upper, budget
        self.number = {ideal: at for at, ideal in enumerate(ideals)}
        n = base.num_nodes
        self.need = [_bits(base.pred[base.pred_indptr[v] : base.pred_indptr[v + 1]].tolist()) for v in range(n)]
        self.readers = [
            _bits(base.tensor_dst[base.tensor_indptr[t] : base.tensor_indptr[t + 1]].tolist())
            for t in range(base.num_tensors)
        ]
        self.lightest = base.work_s.min(axis=0)
        self.num_stages = 0

    def solve(self) -> StageResult | None:
        """Return the result as `solve_activation_ideals` describes it."""
        step, _ = counted_states(self.base)
        shape = (len(step), len(self.ideals))
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
        bound = min(float(proven[:, -1].min()) * _SAFETY, self.upper)
        state = int(np.argmin(reached[:, -1]))
        value = float(reached[state, -1])
        if value >= self.upper:
            return StageResult(None, None, (bound,), "infeasible", self.num_stages)
        status: Literal["optimal", "feasible"] = "optimal" if value * _SAFETY <= bound else "feasible"
        return StageResult(self._read(state, step, back), (value,), (bound,), status, self.num_stages)

    def _stages(self, ideal: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Yield (number of the larger ideal, costs per class that can be reached, bounds on them) of stages to keep."""
        seen = {ideal}
        stack = [ideal]
        n = self.base.num_nodes
        while stack:
            before = stack.pop()
            for v in range(n):
                larger = before | 1 << v
                if larger == before or self.need[v] & ~before or larger in seen:
                    continue
                seen.add(larger)
                member = np.array([bool((larger ^ ideal) >> u & 1) for u in range(n)])
                if self.lightest[member].sum() * _SAFETY >= self.upper:
                    continue
                self.num_stages += 1
                stack.append(larger)
                priced = self._prices(ideal, larger, member)
                if priced is not None:
                    yield self.number[larger], *priced

    def _prices(self, ideal: int, larger: int, member: np.ndarray) -> tuple[FloatArray, FloatArray] | None:
        base, inside = self.base, larger ^ ideal
        enters = [
            t for t, readers in enumerate(self.readers) if readers & inside and ideal >> int(base.tensor_src[t]) & 1
        ]
        leaves = [
            t for t, readers in enumerate(self.readers) if inside >> int(base.tensor_src[t]) & 1 and readers & ~larger
        ]
        bare = base.work_s[:, member].sum(axis=1) + base.in_s[:, enters].sum(axis=1) + base.out_s[:, leaves].sum(axis=1)
        bare[base.param_bytes[member].sum() > base.memory_bytes * (1.0 + 1e-12)] = np.inf
        classes = range(base.num_classes)
        surely = max(
            float(self.problem.floor_bytes[member].max()),
            float(base.tensor_bytes[enters].sum()),
            float(base.tensor_bytes[leaves].sum()),
        )
        least = bare + np.array([self.problem.overflow(member, c, surely) for c in classes])
        if least.min() * _SAFETY >= self.upper:
            return None
        peak = self.problem.least_peak(member)
        high = bare + np.array([self.problem.overflow(member, c, peak.peak_bytes) for c in classes])
        low = bare + np.array([self.problem.overflow(member, c, peak.bound_bytes) for c in classes])
        return high, np.maximum(low, least)

    def _read(self, state: int, step: np.ndarray, back: np.ndarray) -> StageAssignment:
        """Return the assignment that led to a state at the last ideal."""
        base = self.base
        stage = np.zeros(base.num_nodes, np.int64)
        at = len(self.ideals) - 1
        cuts: list[tuple[int, int]] = []
        while at > 0:
            before, c = map(int, back[state, at])
            cuts.append((self.ideals[at], c))
            state, at = int(np.flatnonzero(step[:, c] == state)[0]), before
        cuts.reverse()
        below = 0
        for j, (ideal, _) in enumerate(cuts):
            for v in range(base.num_nodes):
                if (ideal ^ below) >> v & 1:
                    stage[v] = j
            below = ideal
        classes = [c for _, c in cuts]
        unused = base.class_count - np.bincount(np.array(classes, np.int64), minlength=base.num_classes)
        classes += np.repeat(np.arange(base.num_classes), unused).tolist()
        return StageAssignment(stage, np.array(classes, np.int64))
