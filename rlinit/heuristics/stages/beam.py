"""Beam search over what is placed and which devices are used, under a bottleneck that is bisected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlinit.budget import Budget
from rlinit.heuristics.stages.filling import FillSettings, quick_lower_bound
from rlinit.heuristics.stages.orders import Found, natural, random_orders
from rlinit.heuristics.stages.threshold_search import ThresholdSearch
from rlinit.kernels.stages.beam import BeamStates, expand_states, new_states, rank_states
from rlinit.kernels.stages.filling import new_loads
from rlinit.kernels.stages.stage_state import new_state
from rlinit.stages.passes import run_in_chunks
from rlinit.stages.problem import StageAssignment, StageProblem

__all__ = ["Beam", "beam", "beam_from"]

_WORK = 5_000_000
"""Loads looked at by default: some ten seconds of compiled work."""

_WIDTH, _MOST_WIDTH = 10, 2_000
"""States kept of a level at the first effort, and at most."""

_LOADS = 4
"""Loads of one stage that a state goes on with."""

_QUOTA = 100_000
"""Loads between looks at the budget: some 20 to 50 ms."""

_SHAKE = 0.02
"""Standard deviation of what ranks are multiplied by, relative to the noise of the rule."""

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
        # Values are set state by state; what stays of these is the preference for ops that much follows.
        tilt = rule.value - settings.value_of_ops(price)
        child_bytes = num_classes * _LOADS * (n // 8 + 8 * num_classes + 40)
        width = max(1, min(_WIDTH * effort, _MOST_WIDTH, _BITS // child_bytes))
        levels = [new_states(1, n, num_classes)]
        levels[0].price[0] = price
        children = new_states(width * num_classes * _LOADS, n, num_classes)
        args = (self.rng, settings.arrays, self.state, self.loads, rule, tilt, threshold)
        total = n
        for j in range(k):
            at = j if forward else k - 1 - j
            count = problem.class_count
            if len(settings.fixed):
                count = np.where(np.arange(num_classes) == settings.fixed[at], count, 0)
            children.now[:] = 0, -1
            first = 0
            while first < levels[-1].now[0]:
                if self.budget.expired:
                    return None, total
                first, work = expand_states(*args, levels[-1], children, count, first, _QUOTA)
                total += work
            if children.now[1] < 0 and not self._ranked(children, threshold, rule.noise):
                return None, total
            total += 12 * n * num_classes * int(children.now[0]) // 128
            levels.append(_best(children, width))
            if levels[-1].now[1] >= 0:
                return _read(problem, levels, 0, forward), total
            if levels[-1].now[0] == 0:
                break
        return None, total

    def _ranked(self, children: BeamStates, threshold: float, noise: float) -> bool:
        """Rank the children, a little at random; return False if the budget ended first."""
        size, work = int(children.now[0]), self.settings.arrays.work

        def call(first: int, last: int) -> int:
            return int(rank_states(work, self.settings.problem.class_count, threshold, children, first, last))

        if not run_in_chunks(call, size, self.budget):
            return False
        children.rank[:size] *= 1.0 + _SHAKE * noise * self.rng.standard_normal(size)
        return True


def _best(children: BeamStates, width: int) -> BeamStates:
    """Return copies of the best `width` states, none twice; of the one that has placed everything if there is one."""
    count, done = int(children.now[0]), int(children.now[1])
    kept: list[int] = [done] if done >= 0 else []
    seen: set[tuple[int, bytes]] = set()
    ranked = np.argsort(children.rank[:count], kind="stable") if done < 0 else np.zeros(0, np.int64)
    for i in ranked.tolist():
        if len(kept) == width or children.rank[i] == np.inf:
            break
        state = (int(children.sign[i]), children.used[i].tobytes())
        if state not in seen:
            seen.add(state)
            kept.append(i)
    now = np.array([len(kept), 0 if done >= 0 else -1])
    return BeamStates(
        children.bits[kept],
        children.used[kept],
        children.parent[kept],
        children.last[kept],
        children.sign[kept],
        children.rank[kept],
        children.price[kept],
        now,
    )


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
    quantum: float = 0.0,
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
    quantum
        Every bottleneck is a whole multiple of it; 0: not known.
    budget
        When to stop.
    weights
        Weights of `priorities.FEATURES` in the priority of ops, for instance learned ones; None: drawn at random.
    """
    settings = FillSettings(problem, weights)
    if not np.isfinite(settings.cheapest).all():
        return None
    clock = budget or Budget()
    search = ThresholdSearch(
        problem, Beam(settings, seed, clock), max(lower, quick_lower_bound(settings)), clock, quantum
    )
    if start is not None:
        search.offer(start)
    search.run(settings.everything, loads)
    return None if search.best is None or search.value is None else (search.best, search.value)
