"""Beam search over what is placed and which devices are used, under a bottleneck that is bisected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlinit.budget import Budget
from rlinit.heuristics.stages.filling import FillSettings, quick_lower_bound
from rlinit.heuristics.stages.orders import Found, natural, random_orders
from rlinit.heuristics.stages.threshold_search import ThresholdSearch
from rlinit.kernels.stages.beam import BeamStates, beam_level, new_states
from rlinit.kernels.stages.filling import new_loads
from rlinit.kernels.stages.stage_state import new_state
from rlinit.stages.problem import StageAssignment, StageProblem

__all__ = ["Beam", "beam", "beam_from"]

_WORK = 5_000_000
"""Loads looked at by default: some ten seconds of compiled work."""

_WIDTH, _MOST_WIDTH = 10, 2_000
"""States kept of a level at the first effort, and at most."""

_LOADS = 4
"""Loads of one stage that a state goes on with."""

_BITS = 2**27
"""Bytes that the children of one level may take; the width is smaller where ops are many."""


class Beam:
    """Searches from one end at a time; one call is one attempt of a `ThresholdSearch`.

    Parameters
    ----------
    settings
        What is known of the problem, and the weights of its ops' priority.
    seed
        Of everything random.
    budget
        When to stop.
    """

    def __init__(self, settings: FillSettings, seed: int, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget
        self.rng = np.random.default_rng(seed)
        self.state = new_state(settings.arrays)
        self.loads = new_loads(_LOADS, settings.key)
        self.runs = 0

    def __call__(self, threshold: float, effort: int) -> tuple[StageAssignment | None, int]:
        """Return an assignment within the threshold, or None after a search from each end, and the loads looked at."""
        total = 0
        for forward in (True, False):
            if total and self.budget.expired:
                break
            found, work = self._search(threshold, effort, forward)
            self.runs += 1
            total += work
            if found is not None:
                return found, total
        return None, total

    def _search(self, threshold: float, effort: int, forward: bool) -> tuple[StageAssignment | None, int]:
        settings, problem = self.settings, self.settings.problem
        n, k, num_classes = problem.num_nodes, problem.num_stages, problem.num_classes
        price, rules = settings.draw(self.rng, self.runs // 2, threshold, 1)
        rule = rules[0 if forward else 1]._replace(cap=200, dives=6, full=2.0)
        child_bytes = num_classes * _LOADS * (n // 8 + 40)
        width = max(1, min(_WIDTH * effort, _MOST_WIDTH, _BITS // child_bytes))
        levels = [new_states(1, n, num_classes)]
        children = new_states(width * num_classes * _LOADS, n, num_classes)
        total = n
        for j in range(k):
            at = j if forward else k - 1 - j
            fixed = int(settings.fixed[at]) if len(settings.fixed) else -1
            states, done, work = beam_level(
                self.rng,
                settings.arrays,
                self.state,
                self.loads,
                rule,
                threshold,
                levels[-1],
                children,
                price,
                problem.class_count,
                fixed,
                width,
            )
            total += work
            levels.append(states)
            if done >= 0:
                return _read(problem, levels, done, forward), total
            if len(states.rank) == 0 or self.budget.expired:
                break
        return None, total


def _read(problem: StageProblem, levels: Sequence[BeamStates], row: int, forward: bool) -> StageAssignment:
    """Return the assignment that led to a state of the last level."""
    n, k = problem.num_nodes, problem.num_stages
    last = len(levels) - 1
    stage = np.zeros(n, np.int64)
    used: list[int] = []
    for j in range(last, 0, -1):
        level = levels[j]
        before = _ops(levels[j - 1], int(level.parent[row]), n)
        stage[_ops(level, row, n) & ~before] = j - 1 if forward else k - j
        used.append(int(level.last[row]))
        row = int(level.parent[row])
    classes = problem.completed_classes(used[::-1])
    if problem.objective == "memory":
        return StageAssignment(stage, problem.stage_class)
    return StageAssignment(stage, classes if forward else np.ascontiguousarray(classes[::-1]))


def _ops(states: BeamStates, row: int, num_nodes: int) -> NDArray[np.bool_]:
    """Return (n,) whether a state has placed each op."""
    bits = np.unpackbits(states.bits[row].view(np.uint8), bitorder="little")
    return bits[:num_nodes].astype(np.bool_)


def beam(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Search a beam from either end and bisect the bottleneck; never worse than slicing the natural order.

    Parameters
    ----------
    problem
        The problem; for `memory` only the first level counts.
    seed
        Of everything random.
    evaluations
        Loads of stages that are looked at; by default 5 million.
    budget
        When to stop.
    """
    start = natural(problem)
    if start is None:
        start = random_orders(problem, seed=seed, budget=budget)
    return beam_from(problem, start[0] if start else None, seed=seed, loads=evaluations or _WORK, budget=budget)


def beam_from(
    problem: StageProblem,
    start: StageAssignment | None,
    *,
    seed: int,
    loads: int,
    lower: float = 0.0,
    budget: Budget | None = None,
    weights: Sequence[float] | None = None,
) -> Found:
    """Return the best assignment found, never worse than `start`; None where there is none at all.

    Parameters
    ----------
    problem
        The problem.
    start
        An assignment to improve, or None.
    seed
        Of everything random.
    loads
        Loads of stages that are looked at.
    lower
        A bottleneck that none is below.
    budget
        When to stop.
    weights
        Weights of `priorities.FEATURES` in the priority of ops, for instance learned ones; None: drawn at random.
    """
    settings = FillSettings(problem, weights)
    if not np.isfinite(settings.cheapest).all():
        return None
    clock = budget or Budget()
    search = ThresholdSearch(problem, Beam(settings, seed, clock), max(lower, quick_lower_bound(settings)), clock)
    if start is not None:
        search.offer(start)
    search.run(settings.everything, loads)
    return None if search.best is None or search.value is None else (search.best, search.value)
