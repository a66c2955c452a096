"""Neighbouring stages solved again exactly, as long as that makes the bottleneck smaller."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.stages.ideals.node_merging import merge_nodes
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate, stage_costs
from rlinit.stages.segment import Segment, segment

_SIZES = (2, 3, 4, 6)
"""Stages that are solved again together."""

_FREE_SHARES = (1.0, 0.5, 0.25, 0.12)
"""Share of the ops of two stages, around the boundary between them, that may move where all have too many ideals."""

_CLOSER = 1e-9
"""A segment counts as better where its bottleneck falls by this share at least."""


@dataclass(slots=True)
class _Search:
    """The best assignment, and the segments of it that are known to be as good as they can be."""

    problem: StageProblem
    best: StageAssignment
    lower: float
    ideal_cap: int
    budget: Budget
    settled: set[tuple[bytes, int, int]] = field(default_factory=set)

    def improve(self, first: int, last: int) -> bool:
        """Solve a segment again; return whether its bottleneck fell."""
        inside = (self.best.stage >= first) & (self.best.stage <= last)
        key = (np.where(inside, self.best.stage, -1).tobytes() + self.best.classes.tobytes(), first, last)
        if key in self.settled:
            return False
        self.settled.add(key)
        cut = segment(self.problem, self.best, first, last)
        before = float(stage_costs(self.problem, self.best)[first : last + 1].max())
        for share in _FREE_SHARES if last == first + 1 else (1.0,):
            if self.budget.expired:
                return False
            merged = merge_nodes(cut.problem, _groups(cut, share))
            found = solve_ideals(
                merged.problem, self.ideal_cap, lower=self.lower, upper=(before * (1 - _CLOSER),), budget=self.budget
            )
            if found is None:
                continue
            if found.assignment is None:
                return False
            self.best = cut.inserted(merged.expand(found.assignment))
            return True
        return False


def improve_by_segments(
    problem: StageProblem,
    start: StageAssignment,
    *,
    lower: float = 0.0,
    ideal_cap: int = 100_000,
    budget: Budget | None = None,
) -> tuple[StageAssignment, Value]:
    """Return an assignment in which no few neighbouring stages around the bottleneck can be assigned better.

    From the costliest stage on, two to six stages around it are cut out and solved by dynamic programming over their
    ideals, in any order of their devices, as long as their own bottleneck falls; devices of two stages anywhere are
    exchanged where that helps.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    start
        An assignment.
    lower
        A bottleneck that none is below.
    ideal_cap
        Ideals of a segment at most. Of two stages with more, the ops far from their boundary keep their stage.
    budget
        When to stop.
    """
    search = _Search(problem, start, lower, ideal_cap, budget or Budget())
    while not search.budget.expired:
        costs = stage_costs(problem, search.best)
        if costs.max() <= lower or not (_swapped(search, costs) or _resolved(search, int(costs.argmax()))):
            break
    return search.best, evaluate(problem, search.best)


def _resolved(search: _Search, at: int) -> bool:
    """Solve segments around a stage again, small ones first; return whether one became better."""
    k = search.problem.num_stages
    for size in _SIZES:
        for first in range(max(0, at - size + 1), min(at, k - size) + 1):
            if search.improve(first, first + size - 1):
                return True
    return False


def _swapped(search: _Search, costs: FloatArray) -> bool:
    """Exchange the devices of the costliest stage and another where the larger cost of the two falls."""
    classes, at = search.best.classes, int(costs.argmax())
    for other in range(search.problem.num_stages):
        if classes[other] == classes[at]:
            continue
        changed = classes.copy()
        changed[[at, other]] = classes[[other, at]]
        tried = StageAssignment(search.best.stage, changed)
        if stage_costs(search.problem, tried)[[at, other]].max() < costs[at] * (1 - _CLOSER):
            search.best = tried
            return True
    return False


def _groups(cut: Segment, share: float) -> IntArray:
    """Return the group of each node: ops of two stages far from their boundary are one group for each stage."""
    n = cut.problem.num_nodes
    if share >= 1.0:
        return np.arange(n, dtype=np.int64)
    stage = cut.assignment.stage[cut.nodes]
    front = 1 + np.flatnonzero(stage == cut.first)
    back = 1 + np.flatnonzero(stage == cut.last)
    # Nodes are in topological order: the first ops of a stage have all their predecessors among them.
    held_front = front[: int(len(front) * (1 - share))]
    held_back = back[len(back) - int(len(back) * (1 - share)) :]
    label = np.arange(n, dtype=np.int64)
    if len(held_front):
        label[held_front] = held_front[0]
    if len(held_back):
        label[held_back] = held_back[0]
    _, group = np.unique(label, return_inverse=True)
    return group.astype(np.int64)
