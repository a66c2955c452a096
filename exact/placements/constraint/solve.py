"""CP-SAT on placement problems of up to a few hundred ops: schedules, and bounds up to the proof.

A value is always recomputed from the decoded placement. A bound is CP-SAT's on times rounded down
(`rlinit.exact.placements.constraint.integer_times`). One worker, a seed and deterministic work make runs repeatable.

References
----------
OR-Tools, CP-SAT. DIVIML, section IV-A, conditions 1 to 7, as intervals.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.exact.placements.constraint.integer_times import IntegerTimes
from rlinit.exact.placements.constraint.model import ConstraintModel
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, placement_of, timeline

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["ConstraintSettings", "is_available", "solve_constraints"]

_COARSE = 0.5
"""A makespan below this part of the start's gets steps of its own."""

_POLL_S = 0.02
"""Seconds between two looks at the budget while CP-SAT searches."""


@dataclass(frozen=True, slots=True)
class ConstraintSettings:
    """How CP-SAT searches.

    Parameters
    ----------
    work
        Deterministic work limit, about seconds of one core; None: the budget's seconds alone.
    seed
        Of its random choices.
    """

    work: float | None = None
    seed: int = 0


def is_available() -> bool:
    """Return whether CP-SAT is installed, and highspy, which breaks it in the same process, is not loaded."""
    return "highspy" not in sys.modules and importlib.util.find_spec("ortools") is not None


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
            search = _Search(model, budget, settings, work)
            ended = search.run(found.offer, lambda steps, unit_s=times.unit_s: found.raise_bound(steps * unit_s))  # type: ignore[misc]
            work += search.work
            found.raise_bound(search.bound * times.unit_s)
            if ended != "optimal" or search.device is None or not model.forbid_overfull(search.device):
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

    def offer(self, device: IntArray, steps: FloatArray) -> None:
        """Take the placement that runs ops in the order of their steps, if it is better."""
        placement = placement_of(self.problem, device, steps)
        value = makespan(self.problem, placement)
        if value < self.value:
            self.placement, self.value = placement, value
            if self.on_solution is not None:
                self.on_solution(placement)

    def raise_bound(self, bound: float) -> None:
        """Take a bound in seconds, if it is better."""
        if bound > self.bound:
            self.bound = bound
            if self.on_bound is not None:
                self.on_bound(bound)


class _Search:
    """One call of CP-SAT that looks at a budget."""

    def __init__(self, model: ConstraintModel, budget: Budget, settings: ConstraintSettings, spent: float) -> None:
        from ortools.sat.python import cp_model

        self.model, self.budget = model, budget
        self.device: IntArray | None = None
        self.bound = self.work = 0.0
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = settings.seed % (1 << 31)
        parameters.catch_sigint_signal = False
        if np.isfinite(budget.remaining_s):
            parameters.max_time_in_seconds = max(budget.remaining_s, 1e-3)
        if settings.work is not None:
            parameters.max_deterministic_time = max(settings.work - spent, 1e-3)

    def run(self, offer: Callable[[IntArray, FloatArray], None], raise_bound: Callable[[float], None]) -> str:
        """Search; return ``optimal``, ``infeasible`` or ``stopped``."""
        from ortools.sat.python import cp_model

        solver, model = self.solver, self.model
        found: list[tuple[IntArray, FloatArray]] = []
        lock = threading.Lock()

        class Collector(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                with lock:
                    found.append(model.solution(self))

        def take() -> None:
            with lock:
                arrived, found[:] = list(found), []
            for device, steps in arrived:
                offer(device, steps)

        outcome: list[cp_model.CpSolverStatus] = []
        bounds: list[float] = []
        solver.best_bound_callback = bounds.append
        thread = threading.Thread(target=lambda: outcome.append(solver.solve(model.cp, Collector())), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
            take()
            if bounds:
                raise_bound(bounds[-1])
            if self.budget.cancelled:
                solver.stop_search()
        take()
        self.work = solver.response_proto.deterministic_time
        ended = outcome[0] if outcome else cp_model.UNKNOWN
        if ended == cp_model.MODEL_INVALID:
            raise SolverFailure(f"CP-SAT calls the model invalid: {model.cp.validate()}")
        if ended in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.device, _ = model.solution(solver)
            self.bound = solver.best_objective_bound
        elif ended == cp_model.INFEASIBLE:
            # Nothing is at most the horizon, which the start reaches: its value in steps is a bound.
            self.bound = float(model.horizon + 1)
            return "infeasible"
        else:
            self.bound = solver.best_objective_bound
        return "optimal" if ended == cp_model.OPTIMAL else "stopped"
