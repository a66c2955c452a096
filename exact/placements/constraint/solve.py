"""CP-SAT on placement problems of up to a few hundred ops: schedules, and bounds up to the proof.

A value is always recomputed from the decoded placement. A bound is CP-SAT's on times rounded down
(`rlinit.exact.placements.constraint.integer_times`). One worker, a seed and deterministic work make runs repeatable.

References
----------
OR-Tools, CP-SAT. DIVIML, section IV-A, conditions 1 to 7, as intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.constraint.integer_times import IntegerTimes
from rlinit.exact.placements.constraint.model import ConstraintModel
from rlinit.exact.solvers.cp_sat import ConstraintSearch, ConstraintSettings
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, placement_of, timeline

_COARSE = 0.5
"""A makespan below this part of the start's gets steps of its own."""


def solve_constraints(
    problem: PlacementProblem,
    *,
    budget: Budget,
    start: Placement,
    settings: ConstraintSettings,
    on_solution: Callable[[Placement], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> PlacementResult:
    """Minimise the makespan of a latency problem over all placements.

    Under ``exclusive`` and ``blocking`` transfers the model is a relaxation: its bound holds, its placements are the
    problem's, and their value is the problem's own.

    Parameters
    ----------
    problem
        With one batch an op.
    budget
        Time limit and switch.
    start
        A feasible placement; the result is never worse.
    settings
        Work limit and seed.
    on_solution
        Called with each placement of the search, in whatever order; its value is for the receiver to compute.
    on_bound
        Called with each better bound in seconds.

    Returns
    -------
    PlacementResult
        `work` is CP-SAT's deterministic time in thousandths. ``optimal`` is left to the receiver's comparison of value
        and bound.

    Raises
    ------
    ValueError
        Ops are split into batches.
    SolverFailure
        CP-SAT calls the model invalid.
    """
    if problem.num_shards != 1:
        raise ValueError(f"expected a latency problem with whole ops, got {problem.num_shards} batches an op")
    found, work = _Found(problem, start, on_solution, on_bound), 0.0
    while True:
        times = IntegerTimes.of(problem, found.value)
        reached = found.value
        model = ConstraintModel(problem, times, times.floor(reached))
        run, rows = timeline(problem, found.placement), np.arange(problem.num_ops)
        model.add_hint(found.placement, run.start_s[rows, found.placement.device[:, 0]])
        while True:
            search = ConstraintSearch(model, budget, settings, work)
            ended = search.run(found.offer, partial(found.raise_steps, times.unit_s))
            work += search.work
            found.raise_bound(search.bound * times.unit_s)
            if ended != "optimal" or search.last is None or not model.forbid_overfull(search.last[0]):
                break
        # Steps that were fine for the start are coarse for what is much shorter: the last digits are worth another run.
        if ended != "optimal" or times.exact or found.value > _COARSE * reached or found.value <= 0.0:
            break
    proven = found.bound >= found.value
    return PlacementResult(
        found.placement,
        found.value,
        min(found.bound, found.value),
        "optimal" if proven else "feasible",
        round(1000 * work),
    )


class _Found:
    """The best placement and bound so far, and the callback that hears of better ones."""

    def __init__(
        self,
        problem: PlacementProblem,
        start: Placement,
        on_solution: Callable[[Placement], None] | None,
        on_bound: Callable[[float], None] | None,
    ) -> None:
        self.problem, self.placement, self.value, self.bound = problem, start, makespan(problem, start), 0.0
        self.on_solution, self.on_bound = on_solution, on_bound

    def offer(self, solution: tuple[IntArray, FloatArray]) -> None:
        """Take the placement that runs ops on their devices in the order of their steps, if it is better."""
        device, steps = solution
        placement = placement_of(self.problem, device, steps)
        value = makespan(self.problem, placement)
        if value < self.value:
            self.placement, self.value = placement, value
            if self.on_solution is not None:
                self.on_solution(placement)

    def raise_steps(self, unit_s: float, steps: float) -> None:
        """Take a bound in steps of so many seconds."""
        self.raise_bound(steps * unit_s)

    def raise_bound(self, bound: float) -> None:
        """Take a bound in seconds, if it is better."""
        if bound > self.bound:
            self.bound = bound
            if self.on_bound is not None:
                self.on_bound(bound)
