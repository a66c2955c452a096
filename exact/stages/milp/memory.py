"""The memory objective's MILPs, one a level, whole or inside a window.

Inc-ILP's program (equations 3 to 7) minimised lexicographically: peak parameter bytes of a stage, bytes over the
caches, largest bytes leaving a stage. Stage binaries are written in "completed by" form (y instead of s), which
turns the dependence constraint into rows of two entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import SAFETY, FloatArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.quantum import exact_quantum
from rlinit.exact.solvers.scip import BOUND_SAFETY, RESOLUTION, Run, Status, run_scip, skipped_run
from rlinit.exact.stages.domains import StageDomains, cover_edges, window_domains
from rlinit.exact.stages.milp.variables import StageVariables
from rlinit.plan import OPTIMALITY_TOLERANCE
from rlinit.stages.problem import (
    MemoryValue,
    StageAssignment,
    StageProblem,
    StageResult,
    Value,
    memory_value,
)

_NOTHING: MemoryValue = (math.inf, math.inf, math.inf)


class MemoryModel:
    """One level's MILP over the nodes whose stage is still open; all else is a constant.

    Parameters
    ----------
    problem
        The problem.
    domains
        Stages each node may take, not empty.
    level
        0: peak parameter bytes; 1: bytes over the caches; 2: largest bytes leaving a stage.
    reference
        A value that need not be exceeded: its entries before `level` become constraints, its entry at `level` bounds
        the objective. Infinite where nothing is known.
    floor
        A proven lower bound on the level's objective, in bytes.
    budget
        Writing the model raises `OutOfTime` once this has ended; None: never.
    """

    def __init__(
        self,
        problem: StageProblem,
        domains: StageDomains,
        level: int,
        reference: MemoryValue,
        floor: float,
        budget: Budget | None = None,
    ) -> None:
        self.problem = problem
        self.linear = LinearModel(budget=budget)
        edges = cover_edges(problem)
        self.nodes = StageVariables(problem, self.linear, domains.first, domains.last, problem.num_stages, edges)
        stages = range(problem.num_stages)
        scale = power_of_two_unit(float(problem.param_bytes.sum()) / problem.num_stages)
        held = [self.nodes.held(problem.param_bytes / scale, b) for b in stages]
        self._allowed()
        self._memory(held, scale)
        if level > 0:
            self._peak_cap(held, scale, reference[0])
        if level == 0:
            self.unit = scale
            self._peak(held, floor / scale, min(reference[0], float(problem.param_bytes.sum())) / scale)
        elif level == 1:
            self.unit = scale
            self._total_off_cache(held, scale, floor / scale)
        else:
            self._off_cache_cap(held, scale, reference[1])
            ceiling = min(reference[2], float(problem.tensor_bytes.sum()))
            self.unit = power_of_two_unit(ceiling)
            self._traffic(floor / self.unit, ceiling / self.unit)

    def _allowed(self) -> None:
        """x[v, b] = 0 where v may not run on stage b's class; a window's fixed node there leaves nothing."""
        problem = self.problem
        for v, b in np.argwhere(~np.isfinite(problem.work_s[problem.stage_class]).T).tolist():
            self.linear.equal(self.nodes.at(v, b), 0.0)

    def _memory(self, held: list[Affine], scale: float) -> None:
        """m[b] <= memory(b), where m[b] = sum over v of p(v) x[v, b] (equation 4)."""
        for b, expression in enumerate(held):
            capacity = float(self.problem.memory_bytes[self.problem.stage_class[b]])
            if np.isfinite(capacity) and capacity < self.problem.param_bytes.sum():
                self.linear.at_most(expression, capacity / scale)

    def _peak(self, held: list[Affine], floor: float, ceiling: float) -> None:
        """m[b] <= m_peak, minimised (equation 5)."""
        self.linear.objective = self.linear.max_of(floor, max(ceiling * (1 + SAFETY), floor), held)

    def _peak_cap(self, held: list[Affine], scale: float, peak: float) -> None:
        """m[b] <= the first level's value, with a relative slack of 1e-9 that never cuts its optimum."""
        if math.isfinite(peak):
            for expression in held:
                self.linear.at_most(expression, peak * (1 + SAFETY) / scale)

    def _off_cache(self, held: list[Affine], scale: float) -> Affine:
        """o[b] >= m[b] - cache(b), o[b] >= 0; returns the sum over b."""
        total = Affine()
        for b, expression in enumerate(held):
            cache = float(self.problem.cache_bytes[self.problem.stage_class[b]])
            if cache < self.problem.param_bytes.sum():
                over = Affine(constant=-cache / scale).add(expression)
                ceiling = float(self.problem.param_bytes.sum()) / scale
                total.add(Affine({self.linear.max_of(0.0, ceiling, [over]): 1.0}))
        return total

    def _total_off_cache(self, held: list[Affine], scale: float, floor: float) -> None:
        """Sum over b of o[b], the second level's objective."""
        total = self._off_cache(held, scale)
        ceiling = float(self.problem.param_bytes.sum()) / scale
        self.linear.objective = self.linear.max_of(floor, ceiling, [total])

    def _off_cache_cap(self, held: list[Affine], scale: float, off_cache: float) -> None:
        """Sum over b of o[b] <= the second level's value, with a relative slack of 1e-9."""
        if off_cache < self.problem.param_bytes.sum():
            total = self._off_cache(held, scale)
            self.linear.at_most(total, (off_cache + float(self.problem.param_bytes.sum()) * SAFETY * 0.1) / scale)

    def _traffic(self, floor: float, ceiling: float) -> None:
        """com[b] = sum over t of bytes(t) out[t, b] <= the objective, for each stage b (equations 6 and 7)."""
        leaving = []
        for b in range(self.problem.num_stages - 1):
            total = Affine()
            for t in np.flatnonzero(self.problem.tensor_bytes > 0).tolist():
                total.add(self.nodes.leaving(t, b), float(self.problem.tensor_bytes[t]) / self.unit)
            leaving.append(total)
        self.linear.objective = self.linear.max_of(floor, max(ceiling * (1 + SAFETY), floor), leaving)

    def encode(self, assignment: StageAssignment) -> FloatArray:
        """Return the point (num_variables,) of an assignment inside the domains."""
        point = np.zeros(self.linear.num_variables)
        self.nodes.encode(assignment.stage, point)
        return self.linear.complete(point)

    def decode(self, point: FloatArray) -> StageAssignment:
        """Return the assignment of a point that satisfies the model up to a tolerance."""
        return StageAssignment(self.nodes.decode(point), self.problem.stage_class)


def _level_quantum(problem: StageProblem, level: int) -> float:
    """Return what every value of the level is a multiple of, or 0 where nothing is known."""
    if level == 2:
        return exact_quantum(problem.tensor_bytes)
    if level == 0:
        return exact_quantum(problem.param_bytes)
    # A cache that holds everything hides everything.
    cache = problem.cache_bytes[problem.cache_bytes < problem.param_bytes.sum()]
    return exact_quantum(np.concatenate([problem.param_bytes, cache]))


def _round_up(bound: float, quantum: float, unit: float = 0.0) -> float:
    """Return the smallest attainable value that a bound in bytes does not rule out: SCIP's in this unit, or a sum's."""
    room = max(BOUND_SAFETY * bound, RESOLUTION * unit) if unit else SAFETY * bound
    safe = bound if math.isinf(bound) else max(bound - room, 0.0)
    return safe if quantum == 0 or math.isinf(safe) else math.ceil(safe / quantum) * quantum


def _simple_floor(problem: StageProblem, level: int) -> float:
    """Return what each level is at least without any search: averages, and the largest node for the peak."""
    total, k = float(problem.param_bytes.sum()), problem.num_stages
    if level == 0:
        average = _round_up(total / k, _level_quantum(problem, 0))
        return max(float(problem.param_bytes.max(initial=0.0)), average)
    if level == 1:
        quantum = _level_quantum(problem, 1)
        excess = total - float(problem.cache_bytes[problem.stage_class].sum())
        return max(0.0, excess if quantum else excess - total * SAFETY)
    return 0.0


class _Search:
    """The best assignment so far."""

    def __init__(
        self,
        problem: StageProblem,
        start: StageAssignment | None,
        on_solution: Callable[[StageAssignment], object] | None,
    ) -> None:
        self.problem = problem
        self.on_solution = on_solution
        self.value = _NOTHING if start is None else memory_value(problem, start.stage)
        self.assignment = start if self.value < _NOTHING else None

    def offer(self, assignment: StageAssignment) -> None:
        """Take an assignment if it is lexicographically below the best."""
        value = memory_value(self.problem, assignment.stage)
        if value < self.value:
            self.assignment, self.value = assignment, value
            if self.on_solution is not None:
                self.on_solution(assignment)


def solve_memory_milp(
    problem: StageProblem,
    *,
    budget: Budget,
    start: StageAssignment | None = None,
    free: NDArray[np.bool_] | None = None,
    node_limit: int | None = None,
    on_solution: Callable[[StageAssignment], object] | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult[StageAssignment]:
    """Minimise the memory objective lexicographically, over all assignments or over a window around one.

    WITH `free` THE BOUND IS OF THE WINDOW, NOT OF THE PROBLEM: it says nothing about assignments that move a
    fixed node, and must never be shown as a bound on the whole. The same holds for the status and for `on_bound`.

    Parameters
    ----------
    problem
        A ``memory`` problem.
    budget
        Time limit and switch, shared by the levels.
    start
        A monotone assignment; the result is never worse than it.
    free
        (n,) nodes that may change stage; the rest keep their stage in `start`. None frees all.
    node_limit
        Most branch-and-bound nodes of each level, for limits that repeat identically.
    on_solution, on_bound
        Called in this thread with each better assignment and each better lexicographic bound.

    Returns
    -------
    StageResult
        Value recomputed from the rounded assignment. Integral bytes make exact bounds: they are rounded up to the
        next attainable value. Where bytes are not integral, a bound is discounted by 2.5e-7. Levels that were not
        solved have bound 0. `work` counts nodes.

    Notes
    -----
    Ties are exact where bytes are summed exactly, as whole bytes are. Elsewhere rounding breaks them, and a result
    that ties on an early level may come back as ``feasible``.

    Raises
    ------
    ValueError
        If the problem is not a ``memory`` problem, or `free` comes without a start.
    SolverFailure
        If SCIP fails.

    References
    ----------
    Inc-ILP, section "Phase 3", equations 3 to 7.
    """
    if problem.objective != "memory":
        raise ValueError(f"expected a memory problem, got {problem.objective!r}")
    search = _Search(problem, start, on_solution)
    bound, work, proven = [0.0, 0.0, 0.0], 0, True
    for level in range(3):
        report = None if on_bound is None else _reporter(on_bound, bound, level)
        run, bound[level] = _solve_level(search, start, free, level, budget, node_limit, report)
        work += run.nodes
        proven = proven and search.value[level] <= bound[level] * (1 + OPTIMALITY_TOLERANCE)
        if search.assignment is None:  # No level to fix.
            break
    lexicographic: MemoryValue = min((bound[0], bound[1], bound[2]), search.value)
    if search.assignment is None:
        if bound[0] == math.inf:
            return StageResult(None, None, _NOTHING, "infeasible", work)
        return StageResult(None, None, lexicographic, "no_solution", work)
    return StageResult(search.assignment, search.value, lexicographic, "optimal" if proven else "feasible", work)


def _reporter(on_bound: Callable[[Value], None], earlier: list[float], level: int) -> Callable[[float], None]:
    """Return a callback that completes a level's bound with those of the levels before it."""

    def report(value: float) -> None:
        on_bound((*earlier[:level], value, *[0.0] * (2 - level)))

    return report


def _solve_level(
    search: _Search,
    start: StageAssignment | None,
    free: NDArray[np.bool_] | None,
    level: int,
    budget: Budget,
    node_limit: int | None,
    on_bound: Callable[[float], None] | None,
) -> tuple[Run, float]:
    """Minimise one level with the earlier ones held at the reference; return the run and the level's bound.

    The bound is over all assignments in the window that are at most the reference on the earlier levels, a set
    that contains the lexicographic optimum (or only values that the reference already ties).
    """
    problem, reference = search.problem, search.value
    quantum = _level_quantum(problem, level)
    floor = _simple_floor(problem, level)
    if reference[level] <= floor:
        return skipped_run(Status.OPTIMAL), min(floor, reference[level])
    domains = window_domains(problem, start, free)
    domains.tighten(problem.param_bytes, reference[0])
    if domains.empty:
        return skipped_run(Status.INFEASIBLE), reference[level]
    try:
        model = MemoryModel(problem, domains, level, reference, floor, budget)
    except OutOfTime:
        return skipped_run(Status.NO_SOLUTION), min(floor, reference[level])

    def exact(bound: float) -> float:
        return min(max(_round_up(bound * model.unit, quantum, model.unit), floor), reference[level])

    run = run_scip(
        model.linear,
        budget=budget,
        node_limit=node_limit,
        start=None if search.assignment is None else model.encode(search.assignment),
        absolute_gap=0.5 * quantum / model.unit,
        on_point=lambda point: search.offer(model.decode(point)),
        on_bound=None if on_bound is None else lambda bound: on_bound(exact(bound)),
    )
    if run.point is not None:
        search.offer(model.decode(run.point))
    return run, exact(run.bound)
