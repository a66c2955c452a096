"""The exact programs of the placement problems, whole or inside a window, on SCIP.

DIVIML's program (conditions 1 to 7) and Moirai's (equations 4 to 8), with what heads, tails and a value to beat decide
beforehand. Where the papers differ, the meaning is that of :mod:`rlinit.placements.problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings, PlacementModel
from rlinit.exact.placements.milp.batch_model import BatchModel
from rlinit.exact.placements.milp.op_model import OpModel
from rlinit.exact.placements.milp.symmetry import alike_devices, alike_nodes, in_order
from rlinit.exact.placements.milp.time_windows import batch_windows, horizon_s
from rlinit.exact.solvers.linear_model import OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import Run, Status, run_scip, skipped_run
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, placement_from_priority

__all__ = ["BOUND_SAFETY", "OPTIMAL_GAP", "PlacementMilpSettings", "placement_lp_bound", "solve_placement_milp"]

BOUND_SAFETY = 2.5e-7
"""Relative discount on SCIP's dual bounds, which rest on LPs solved to 1e-9 on rows scaled to about 1e2."""

CUTOFF = 5e-7
"""Only placements better than the value to beat by this relative margin are looked for: a smaller one is within SCIP's
tolerances, and what is proven without it still counts as optimal."""

OPTIMAL_GAP = 1e-6
"""Relative gap up to which a value counts as proven best."""

_ROOM = 1e-9
"""Relative room between the value to beat and the limit of the windows, for the rounding of their sums."""


def solve_placement_milp(
    problem: PlacementProblem,
    *,
    budget: Budget,
    start: Placement | None = None,
    free: NDArray[np.bool_] | None = None,
    settings: PlacementMilpSettings | None = None,
    lower: float | None = None,
    upper: float | None = None,
    node_of_device: IntArray | None = None,
    node_limit: int | None = None,
    on_solution: Callable[[Placement, float], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> PlacementResult:
    """Minimise the makespan, exactly, over all placements or over a window around one.

    WITH `free` THE BOUND IS OF THE WINDOW, NOT OF THE PROBLEM: it says nothing about placements that move a fixed op,
    and must never be shown as a bound on the whole. The same holds for the status and for `on_bound`.

    Parameters
    ----------
    problem
        The problem.
    budget
        Time limit and switch.
    start
        A placement; the result is never worse than it.
    free
        (n,) ops that may change device and order, also relative to the fixed ones. The others keep their devices in
        `start` and their order among themselves on each device. None frees all.
    settings
        Which formulation; None: the defaults.
    lower
        A proven lower bound of the same (windowed or whole) problem, in seconds.
    upper
        Only look for makespans below this many seconds.
    node_of_device
        (d,) node of each device, for `inter_symmetry`; None: all devices are in one node.
    node_limit
        Most branch-and-bound nodes, for limits that repeat identically.
    on_solution, on_bound
        Called in this thread with each better placement and its makespan, and with each better bound.

    Returns
    -------
    PlacementResult
        Value recomputed by list scheduling; bound discounted for SCIP's tolerances. ``optimal`` means within 1e-6 of
        the best. Status ``infeasible`` with `upper` means that nothing is below `upper`. `work` counts nodes.

    Raises
    ------
    ValueError
        If `free` comes without a feasible start, or the settings do not fit the problem.
    SolverFailure
        If SCIP fails.

    References
    ----------
    DIVIML, section IV-A, conditions 1 to 7. Moirai, section III-D, equations 4 to 8.
    """
    settings = settings or PlacementMilpSettings()
    _form(problem, settings)
    cutoff = np.inf if upper is None else upper
    start_value = np.inf if start is None else makespan(problem, start)
    if free is not None and not np.all(free) and start_value == np.inf:
        raise ValueError("expected a feasible start together with free")
    best = _Best(problem, start, start_value, cutoff, on_solution)
    if start is None:
        best.try_single_devices()
    reference = min(best.value, cutoff)
    floor = 0.0 if lower is None else min(lower, reference)
    if reference <= floor * (1 + OPTIMAL_GAP):
        return _result(best, skipped_run(Status.OPTIMAL), cutoff, min(floor, reference))
    try:
        model = _build(problem, best.placement, free, settings, reference, floor, node_of_device, budget)
    except OutOfTime:
        return _result(best, skipped_run(Status.NO_SOLUTION), cutoff, floor)
    if model is None:
        return _result(best, skipped_run(Status.INFEASIBLE), cutoff, _safe_bound(np.inf, 1.0, reference, floor))
    unit = model.unit
    point = _start_point(model, best, cutoff, node_of_device)
    # A start has to be within the cutoff to be taken.
    most = reference * (1 + _ROOM / 2 if point is not None else 1 - CUTOFF) / unit
    work = 0
    while True:
        run = run_scip(
            model.linear,
            budget=budget,
            node_limit=None if node_limit is None else max(node_limit - work, 1),
            cutoff=most if np.isfinite(most) else None,
            start=point,
            settings=settings.search,
            on_point=lambda point: best.offer(model.decode(point)),
            on_bound=None if on_bound is None else lambda bound: on_bound(_safe_bound(bound, unit, reference, floor)),
        )
        work += run.nodes
        if run.point is None:
            break
        found = model.decode(run.point)
        best.offer(found)
        if not model.forbid_overload(found.device) or (node_limit is not None and work >= node_limit):
            break
    return _result(best, replace(run, nodes=work), cutoff, _safe_bound(run.bound, unit, reference, floor))


def _start_point(
    model: PlacementModel, best: _Best, cutoff: float, node_of_device: IntArray | None
) -> FloatArray | None:
    """Return the point of the best placement for SCIP to start from, or None where there is none in the model."""
    if best.placement is None or best.value > cutoff:
        return None
    placement = best.placement
    if model.windows.free.all():
        by = model.settings
        nodes = alike_nodes(model.problem, node_of_device)
        placement = in_order(model.problem, placement, nodes, by.inter_symmetry)
        devices = alike_devices(model.problem, node_of_device)
        placement = in_order(model.problem, placement, devices, by.intra_symmetry)
    return model.encode(placement)


class _Best:
    """The best placement so far, its value always recomputed."""

    def __init__(
        self,
        problem: PlacementProblem,
        start: Placement | None,
        value: float,
        cutoff: float,
        on_solution: Callable[[Placement, float], None] | None,
    ) -> None:
        self._problem = problem
        self._cutoff = cutoff
        self._on_solution = on_solution
        self.placement = start if value < np.inf else None
        self.value = value

    def offer(self, placement: Placement) -> None:
        """Take a placement if it is below the best and the cutoff."""
        value = makespan(self._problem, placement)
        if value < min(self.value, self._cutoff):
            self.placement, self.value = placement, value
            if self._on_solution is not None:
                self._on_solution(placement, value)

    def try_single_devices(self) -> None:
        """Offer all ops on each device in turn, so that there is a value to beat."""
        n, s = self._problem.num_ops, self._problem.num_shards
        rank = np.empty(n)
        rank[self._problem.order] = np.arange(n)
        for i in range(self._problem.num_devices):
            self.offer(placement_from_priority(self._problem, np.full((n, s), i, np.int64), rank))


def _form(problem: PlacementProblem, settings: PlacementMilpSettings) -> type[OpModel] | type[BatchModel]:
    """Return the program that the settings and the problem ask for."""
    able = problem.num_shards == 1 and problem.transfers == "parallel"
    if settings.variables == "ops" and not able:
        raise ValueError("expected parallel transfers and one shard for variables 'ops'")
    return OpModel if able and settings.variables != "batches" else BatchModel


def _build(
    problem: PlacementProblem,
    start: Placement | None,
    free: NDArray[np.bool_] | None,
    settings: PlacementMilpSettings,
    reference: float,
    floor: float,
    node_of_device: IntArray | None,
    budget: Budget,
) -> PlacementModel | None:
    """Return the model of the placements in the window of value at most `reference`, or None if there are none."""
    limit = min(reference * (1 + _ROOM), horizon_s(problem))
    windows = batch_windows(problem, limit, start, free)
    if windows.empty:
        return None
    unit = power_of_two_unit(limit)
    model = _form(problem, settings)(problem, windows, settings, unit=unit, lower_s=floor, budget=budget)
    if windows.free.all():
        model.order_devices(alike_devices(problem, node_of_device), settings.intra_symmetry)
        model.order_devices(alike_nodes(problem, node_of_device), settings.inter_symmetry)
        if settings.shard_symmetry:
            model.order_shards()
    return model


def _safe_bound(bound: float, unit: float, reference: float, floor: float) -> float:
    """Return a bound in seconds that survives SCIP's tolerances.

    The model holds every placement of value at most `reference`, so nothing it proves goes beyond that.
    """
    return max(min(bound * unit, reference) * (1 - BOUND_SAFETY), floor)


def _result(best: _Best, run: Run, cutoff: float, bound: float) -> PlacementResult:
    """Join what SCIP proved with the best placement."""
    value = None if best.placement is None else best.value
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    if best.placement is not None and best.value <= bound * (1 + OPTIMAL_GAP):
        status = "optimal"
    elif best.value >= cutoff and (run.status is Status.INFEASIBLE or cutoff <= bound * (1 + OPTIMAL_GAP)):
        status = "infeasible"
    else:
        status = "no_solution" if best.placement is None else "feasible"
    return PlacementResult(best.placement, value, min(bound, best.value), status, run.nodes)


def placement_lp_bound(
    problem: PlacementProblem,
    *,
    budget: Budget,
    upper: float | None = None,
    settings: PlacementMilpSettings | None = None,
) -> float:
    """Return a lower bound on the makespan, in seconds, from the LP relaxation of the whole problem.

    The bound is evaluated from dual multipliers (weak duality), so it does not rest on the LP solver's tolerances.
    ``inf`` where no placement at all is allowed.

    Parameters
    ----------
    problem
        The problem.
    budget
        Time limit for the LP.
    upper
        Makespan of a known placement, in seconds; tightens the windows. The bound never exceeds it.
    settings
        Which formulation; None: the defaults without orders, which add rows but next to nothing to the relaxation.
    """
    reference = np.inf if upper is None else upper
    settings = settings or PlacementMilpSettings(disjunction="none")
    try:
        model = _build(problem, None, None, settings, reference, 0.0, None, budget)
    except OutOfTime:
        return 0.0
    if model is None:
        return reference
    bound = model.linear.relaxation_bound(budget.remaining_s) * model.unit * (1 - 1e-9)
    return min(bound, reference)
