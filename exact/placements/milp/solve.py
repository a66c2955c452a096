"""The exact program of the placement problems on SCIP.

DIVIML's program (conditions 1 to 7) and Moirai's (equations 4 to 8), with what heads, tails and a value to beat decide
beforehand. Where the papers differ, the meaning is that of :mod:`rlinit.placements.problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from rlinit.arrays import SAFETY, inverse_of
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.exact.placements.analysis.symmetry import alike_devices, alike_nodes
from rlinit.exact.placements.analysis.time_windows import latest_end, possible_batches, shard_windows
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings
from rlinit.exact.placements.milp.batch_model import BatchModel
from rlinit.exact.solvers.linear_model import OutOfTime
from rlinit.exact.solvers.scip import BOUND_SAFETY, Run, RunSettings, Status, run_scip, skipped_run
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, placement_from_priority
from rlinit.plan import OPTIMALITY_TOLERANCE

CUTOFF = 5e-7
"""Only placements better than the value to beat by this relative margin are looked for: a smaller one is within SCIP's
tolerances, and what is proven without it still counts as optimal."""

_ABSOLUTE_SAFETY = 1e-8
"""Least discount on SCIP's dual bounds, relative to the limit of the windows, by which the model is scaled."""

_FINE = BOUND_SAFETY / _ABSOLUTE_SAFETY
"""Limit over value up to which the relative discount is the larger one."""

_SEARCH = RunSettings(separation="off", heuristics="fast")
"""Cutting planes cost more than they close here: a window of 12 ops in 340 took 0.7 s without them and 2.2 s with, and
20 ops on two devices 0.4 s against more than 6."""


def solve_placement_milp(
    problem: PlacementProblem,
    *,
    budget: Budget,
    start: Placement | None = None,
    settings: PlacementMilpSettings | None = None,
    lower: float | None = None,
    on_solution: Callable[[Placement, float], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> PlacementResult:
    """Minimise the makespan, exactly, over all placements.

    Parameters
    ----------
    problem
        The problem.
    budget
        Time limit and switch.
    start
        A placement; the result is never worse than it.
    settings
        Which formulation; None: the defaults.
    lower
        A proven lower bound, in seconds.
    on_solution, on_bound
        Called in this thread with each better placement and its makespan, and with each better bound.

    Returns
    -------
    PlacementResult
        Value recomputed by list scheduling; bound discounted for SCIP's tolerances. ``optimal`` means within 1e-6 of
        the best. `work` counts nodes.

    Raises
    ------
    SolverFailure
        If SCIP fails, or the times are too long to be summed.

    References
    ----------
    DIVIML, section IV-A, conditions 1 to 7. Moirai, section III-D, equations 4 to 8.
    """
    settings = settings or PlacementMilpSettings()
    start_value = np.inf if start is None else makespan(problem, start)
    best = _Best(problem, start, start_value, on_solution)
    if start is None:
        best.try_single_devices()
    reference = best.value
    floor = 0.0 if lower is None else min(lower, reference)
    if reference <= floor * (1 + OPTIMALITY_TOLERANCE):
        return _result(best, skipped_run(Status.OPTIMAL), min(floor, reference))
    possible = possible_batches(problem)
    limit_s = min(reference, latest_end(problem, possible)) * (1 + SAFETY)
    if not np.isfinite(limit_s):
        raise SolverFailure("a schedule may take longer than the largest number: no program can be written in seconds")
    try:
        windows = shard_windows(problem, float(np.nextafter(limit_s, np.inf)), possible)
        model = None
        if windows is not None:
            model = BatchModel(problem, windows, settings, limit_s=limit_s, lower_s=floor, budget=budget)
            model.order_devices(alike_devices(problem, settings.node_of_device), settings.intra_symmetry)
            model.order_devices(alike_nodes(problem, settings.node_of_device), settings.inter_symmetry)
            model.order_shards()
    except OutOfTime:
        return _result(best, skipped_run(Status.NO_SOLUTION), floor)
    if model is None:
        return _result(best, skipped_run(Status.INFEASIBLE), _safe_bound(np.inf, reference, floor, limit_s))
    run = _search(model, best, floor, limit_s, budget, on_bound)
    bound = _safe_bound(run.bound * model.unit, reference, floor, limit_s)
    result = _result(best, run, bound)
    if run.status is Status.OPTIMAL and result.status == "feasible" and limit_s > _FINE * best.value:
        # SCIP is done, but its tolerances were those of far longer schedules: once more, measured by what was found.
        left = None if settings.node_limit is None else max(settings.node_limit - run.nodes, 1)
        return solve_placement_milp(
            problem,
            budget=budget,
            start=best.placement,
            settings=replace(settings, node_limit=left),
            lower=bound,
            on_solution=on_solution,
            on_bound=on_bound,
        )
    return result


def _search(
    model: BatchModel,
    best: _Best,
    floor: float,
    limit_s: float,
    budget: Budget,
    on_bound: Callable[[float], None] | None,
) -> Run:
    """Run SCIP until what it finds fits the memory to the byte; the nodes are those of all runs."""
    unit, reference, settings, work = model.unit, best.value, model.settings, 0
    most = reference * (1 - CUTOFF) / unit
    while True:
        run = run_scip(
            model.linear,
            budget=budget,
            node_limit=None if settings.node_limit is None else max(settings.node_limit - work, 1),
            cutoff=most if np.isfinite(most) else None,
            settings=_SEARCH,
            on_point=lambda point: best.offer(model.decode(point)),
            on_bound=None
            if on_bound is None
            else lambda bound: on_bound(_safe_bound(bound * unit, reference, floor, limit_s)),
        )
        work += run.nodes
        if run.point is None:
            break
        found = model.decode(run.point)
        best.offer(found)
        if not model.forbid_overload(found.device) or (settings.node_limit is not None and work >= settings.node_limit):
            break
    return replace(run, nodes=work)


class _Best:
    """The best placement so far, its value always recomputed."""

    def __init__(
        self,
        problem: PlacementProblem,
        start: Placement | None,
        value: float,
        on_solution: Callable[[Placement, float], None] | None,
    ) -> None:
        self._problem = problem
        self._on_solution = on_solution
        self.placement = start if value < np.inf else None
        self.value = value

    def offer(self, placement: Placement) -> None:
        """Take a placement if it is below the best."""
        value = makespan(self._problem, placement)
        if value < self.value:
            self.placement, self.value = placement, value
            if self._on_solution is not None:
                self._on_solution(placement, value)

    def try_single_devices(self) -> None:
        """Offer all ops on each device in turn, so that there is a value to beat."""
        n, s = self._problem.num_ops, self._problem.num_shards
        rank = inverse_of(self._problem.order)
        for i in range(self._problem.num_devices):
            self.offer(placement_from_priority(self._problem, np.full((n, s), i, np.int64), rank))


def _safe_bound(bound_s: float, reference: float, floor: float, limit_s: float) -> float:
    """Return a bound in seconds that survives SCIP's tolerances.

    The model holds every placement of value at most `reference`, so nothing it proves goes beyond that. Tolerances are
    absolute in the model's unit, a part of the limit: what is proven of a value far below it is worth less, and 1e8
    times below it nothing.
    """
    proven = min(bound_s, reference)
    if proven == np.inf:
        return proven  # There is no placement at all.
    return max(proven - max(BOUND_SAFETY * proven, _ABSOLUTE_SAFETY * limit_s), floor)


def _result(best: _Best, run: Run, bound: float) -> PlacementResult:
    """Join what SCIP proved with the best placement."""
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    if best.placement is None:
        status = "infeasible" if run.status is Status.INFEASIBLE else "no_solution"
        return PlacementResult(None, None, bound, status, run.nodes)
    status = "optimal" if best.value <= bound * (1 + OPTIMALITY_TOLERANCE) else "feasible"
    return PlacementResult(best.placement, best.value, min(bound, best.value), status, run.nodes)
