"""The exact MILP of the pipeline objective, whole or inside a window.

The formulation is MTPP's exact MIP (Figure 3, equations 5 to 12) in its "completed by" variables, with x eliminated
by equation 11 and three generalisations: tensors with several consumers, stages of several classes, and parameter
overflow. The tensor rows are a stronger form of equations 9 and 10 (see the methods).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import Run, RunSettings, Status, run_scip, skipped_run
from rlinit.exact.stages.domains import StageDomains, cover_edges, window_domains
from rlinit.exact.stages.scaled_costs import BOUND_SAFETY, ScaledCosts, safe_bound
from rlinit.exact.stages.variables import StageVariables
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value, stage_value, whole_cost

OPTIMAL_GAP = 1e-6
"""Relative gap up to which a value counts as proven best."""


class PipelineModel:
    """The MILP over nodes whose stage is still open; all else is a constant.

    On top of :class:`StageVariables`, ``p[b, c]`` is 1 iff stage b is of class c, and ``x[v, b, c]`` is 1 iff v is in
    stage b and that is of class c; with one class neither exists.

    Parameters
    ----------
    problem
        The problem.
    domains
        Stages each node may take, not empty.
    costs
        Costs in the model's unit; exact for assignments of at most `upper`.
    lower, upper
        Known bounds on the bottleneck in seconds; only assignments of at most `upper` need to fit the model.
    budget
        Writing the model raises `OutOfTime` once this has ended; None: never.
    """

    def __init__(
        self,
        problem: StageProblem,
        domains: StageDomains,
        costs: ScaledCosts,
        *,
        lower: float,
        upper: float,
        budget: Budget | None = None,
    ) -> None:
        self.problem = problem
        self.costs = costs
        self.unit = costs.unit
        self.linear = LinearModel(budget=budget)
        self.p: dict[tuple[int, int], int] = {}
        self.x: dict[tuple[int, int, int], int] = {}
        self.nodes = StageVariables(
            problem, self.linear, domains.first, domains.last, problem.num_stages, cover_edges(problem)
        )
        if problem.num_classes > 1:
            self._class_of_position()
            self._shares()
        self._memory()
        stage_costs = [self._stage_cost(b) for b in range(problem.num_stages)]
        self._bottleneck(stage_costs, lower / self.unit, upper / self.unit)

    def _class_of_position(self) -> None:
        """Sum over c of p[b, c] = 1 for each stage b, sum over b of p[b, c] = number of stages of class c.

        Windows leave the classes open: the start's classes satisfy the rows.
        """
        problem = self.problem
        stages, classes = range(problem.num_stages), range(problem.num_classes)
        self.p = {(b, c): self.linear.binary(priority=1) for b in stages for c in classes}
        for b in stages:
            self.linear.equal(Affine({self.p[b, c]: 1.0 for c in classes}), 1.0)
        for c in classes:
            self.linear.equal(Affine({self.p[b, c]: 1.0 for b in stages}), float(problem.class_count[c]))

    def _shares(self) -> None:
        """x[v, b, c] <= p[b, c] and sum over c of x[v, b, c] = x[v, b]; no variable where v is forbidden on c.

        A forbidden node that a window fixes to b rules the class out of b instead.
        """
        problem, nodes = self.problem, self.nodes
        for v in range(problem.num_nodes):
            for b in range(int(nodes.first[v]), int(nodes.last[v]) + 1):
                total = nodes.at(v, b)
                for c in range(problem.num_classes):
                    allowed = bool(np.isfinite(problem.work_s[c, v]))
                    if nodes.fixed(v):
                        if not allowed:
                            self.linear.upper[self.p[b, c]] = 0.0
                    elif allowed:
                        share = self.x[v, b, c] = self.linear.continuous(0.0, 1.0)
                        self.linear.at_most(Affine({share: 1.0, self.p[b, c]: -1.0}), 0.0)
                        total.add(Affine({share: -1.0}))
                if not nodes.fixed(v):
                    self.linear.equal(total, 0.0)

    def _share(self, v: int, b: int, c: int) -> Affine:
        """Return x[v, b, c]: x[v, b] with one class, p[b, c] for a node fixed to b, else a variable."""
        if self.problem.num_classes == 1 or not self.nodes.first[v] <= b <= self.nodes.last[v]:
            return self.nodes.at(v, b)
        if self.nodes.fixed(v):
            return Affine({self.p[b, c]: 1.0})
        return Affine({self.x[v, b, c]: 1.0}) if (v, b, c) in self.x else Affine()

    def _sum(self, weight: FloatArray, b: int, c: int) -> Affine:
        """Return the sum over v of weight[v] x[v, b, c]."""
        total = Affine()
        open_here = (self.nodes.first <= b) & (b <= self.nodes.last)
        for v in np.flatnonzero(open_here & (weight > 0) & (weight < np.inf)).tolist():
            total.add(self._share(v, b, c), float(weight[v]))
        return total

    def _memory(self) -> None:
        """Sum over v of param(v) x[v, b, c] <= memory(c), for each stage and class of finite memory."""
        for b in range(self.problem.num_stages):
            for c in range(self.problem.num_classes):
                capacity = float(self.problem.memory_bytes[c])
                if np.isfinite(capacity):
                    scale = power_of_two_unit(capacity)
                    # A node that alone is too much is so at twice the capacity.
                    held = np.minimum(self.problem.param_bytes, 2.0 * capacity)
                    self.linear.at_most(self._sum(held / scale, b, c), capacity / scale)

    def _stage_cost(self, b: int) -> Affine:
        """block[b] = work + tensors in + tensors out + overflow of stage b (equation 7), in the model's unit."""
        problem, several = self.problem, self.problem.num_classes > 1
        into, out_of = self.costs.into, self.costs.out_of
        cost = Affine()
        for c in range(problem.num_classes):
            share = partial(self._share, c=c) if several else None
            cost.add(self._sum(self.costs.work[c], b, c))
            for t in range(problem.num_tensors):
                if into[c, t] > 0:
                    cost.add(self.nodes.entering(t, b, share), float(into[c, t]))
                if out_of[c, t] > 0:
                    cost.add(self.nodes.leaving(t, b, share), float(out_of[c, t]))
            cost.add(self._overflow(b, c))
        return cost

    def _overflow(self, b: int, c: int) -> Affine:
        """o[b, c] >= sum over v of param(v) x[v, b, c] - cache(c) p[b, c], at the class's seconds per byte."""
        # The variable counts the overflow's cost in the model's unit, so that its column is as well scaled.
        cost = self.costs.overflow[c]
        if not cost.any():
            return Affine()
        here = Affine({self.p[b, c]: 1.0}) if self.problem.num_classes > 1 else Affine(constant=1.0)
        over = self._sum(cost, b, c).add(here, -float(self.costs.hidden[c]))
        return Affine({self.linear.max_of(0.0, float(cost.sum()), [over]): 1.0})

    def _bottleneck(self, costs: list[Affine], lower: float, upper: float) -> None:
        """T >= block[b] for each stage b (equations 5 and 6)."""
        self.linear.objective = self.linear.max_of(lower, max(upper, lower), costs)

    def encode(self, assignment: StageAssignment) -> FloatArray:
        """Return the point (num_variables,) of an assignment inside the domains."""
        point = np.zeros(self.linear.num_variables)
        self.nodes.encode(assignment.stage, point)
        for (b, c), handle in self.p.items():
            point[handle] = assignment.classes[b] == c
        for (v, b, c), handle in self.x.items():
            point[handle] = assignment.stage[v] == b and assignment.classes[b] == c
        return self.linear.complete(point)

    def decode(self, point: FloatArray) -> StageAssignment:
        """Return the assignment of a point that satisfies the model up to SCIP's tolerance."""
        classes = self.problem.stage_class.copy()
        for (b, c), handle in self.p.items():
            if point[handle] > 0.5:
                classes[b] = c
        return StageAssignment(self.nodes.decode(point), classes)


def average_work(problem: StageProblem) -> float:
    """Return Lemma 3.3's bound with each node on its cheapest class: max(largest, total / k)."""
    work = problem.work_s.min(axis=0)
    return float(max(work.max(initial=0.0), work.sum() / problem.num_stages)) * (1 - 1e-12)


def _build(
    problem: StageProblem,
    start: StageAssignment | None,
    free: NDArray[np.bool_] | None,
    reference: float,
    lower: float,
    budget: Budget,
) -> PipelineModel | None:
    """Return the model of all assignments in the window of value at most `reference`, or None if there are none."""
    domains = window_domains(problem, start, free)
    work = problem.work_s.min(axis=0)
    if not np.isfinite(work).all():
        return None
    domains.tighten(work, reference)
    if domains.empty:
        return None
    ceiling = min(reference * (1 + 1e-6), whole_cost(problem))
    floor = min(max(lower, average_work(problem)), ceiling)
    return PipelineModel(problem, domains, ScaledCosts.of(problem, ceiling), lower=floor, upper=ceiling, budget=budget)


def solve_pipeline_milp(
    problem: StageProblem,
    *,
    budget: Budget,
    start: StageAssignment | None = None,
    free: NDArray[np.bool_] | None = None,
    lower: float | None = None,
    node_limit: int | None = None,
    on_solution: Callable[[StageAssignment, Value], None] | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult:
    """Minimise the bottleneck, exactly, over all assignments or over a window around one.

    WITH `free` THE BOUND IS OF THE WINDOW, NOT OF THE PROBLEM: it says nothing about assignments that move a
    fixed node, and must never be shown as a bound on the whole. The same holds for the status and for `on_bound`.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    budget
        Time limit and switch.
    start
        A monotone assignment; the result is never worse than it.
    free
        (n,) nodes that may change stage; the rest keep their stage in `start`. None frees all. Stage classes
        stay open in either case.
    lower
        A proven lower bound of the same (windowed or whole) problem, in seconds: SCIP stops when it is met.
    node_limit
        Most branch-and-bound nodes, for limits that repeat identically.
    on_solution, on_bound
        Called in this thread with each better assignment and each better bound.

    Returns
    -------
    StageResult
        Value recomputed from the rounded assignment; bound discounted by 2.5e-7 for SCIP's tolerances. `work` counts
        nodes.

    Raises
    ------
    ValueError
        If the problem is not a ``pipeline`` problem, or `free` comes without a start.
    SolverFailure
        If SCIP fails.

    References
    ----------
    MTPP, section 3.1 and Figure 3.
    """
    if problem.objective != "pipeline":
        raise ValueError(f"expected a pipeline problem, got {problem.objective!r}")
    reference = np.inf if start is None else stage_value(problem, start.stage, start.classes)
    floor = max(0.0 if lower is None else lower, average_work(problem))
    best = _Best(problem, start, reference, on_solution)
    try:
        model = _build(problem, start, free, reference, floor, budget)
    except OutOfTime:
        return _result(best, skipped_run(Status.NO_SOLUTION), min(floor, reference))
    if model is None:
        # Counted, not solved: only the rounding of sums stands between the reference and a bound.
        return _result(best, skipped_run(Status.INFEASIBLE), max(reference * (1 - BOUND_SAFETY), floor))
    unit = model.unit
    # Cutting planes cost more than they close here (on random graphs of 180 nodes at k = 4, a bound of 0.960 of the
    # value in 30 s with them, 0.968 without), and primal heuristics have little to add to a good start of the
    # whole problem.
    settings = RunSettings(separation="off", heuristics="default" if start is None or free is not None else "off")
    run = run_scip(
        model.linear,
        budget=budget,
        node_limit=node_limit,
        start=model.encode(start) if start is not None and reference < np.inf else None,
        settings=settings,
        on_point=lambda point: best.offer(model.decode(point)),
        on_bound=None if on_bound is None else lambda bound: on_bound((_safe_bound(bound, unit, reference, floor),)),
    )
    if run.point is not None:
        best.offer(model.decode(run.point))
    return _result(best, run, _safe_bound(run.bound, unit, reference, floor))


class _Best:
    """The best assignment so far, its value always recomputed."""

    def __init__(
        self,
        problem: StageProblem,
        start: StageAssignment | None,
        value: float,
        on_solution: Callable[[StageAssignment, Value], None] | None,
    ) -> None:
        self._problem = problem
        self._on_solution = on_solution
        self.assignment = start if value < np.inf else None
        self.value = value

    def offer(self, assignment: StageAssignment) -> None:
        """Take an assignment if it is below the best."""
        value = stage_value(self._problem, assignment.stage, assignment.classes)
        if value < self.value:
            self.assignment, self.value = assignment, value
            if self._on_solution is not None:
                self._on_solution(assignment, (value,))


def _safe_bound(bound: float, unit: float, reference: float, floor: float) -> float:
    """Return a bound in seconds that survives SCIP's tolerances.

    The model holds every assignment of value at most `reference`, so nothing it proves goes beyond that.
    """
    return max(safe_bound(min(bound, reference / unit), unit), floor)


def _result(best: _Best, run: Run, bound: float) -> StageResult:
    """Join what SCIP proved with the best assignment."""
    value = None if best.assignment is None else (best.value,)
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    if best.assignment is not None and best.value <= bound * (1 + OPTIMAL_GAP):
        status = "optimal"
    elif best.assignment is not None:
        status = "feasible"
    else:
        status = "infeasible" if run.status is Status.INFEASIBLE or bound == np.inf else "no_solution"
    return StageResult(best.assignment, value, (min(bound, best.value),), status, run.nodes)


def pipeline_lp_bound(problem: StageProblem, *, budget: Budget) -> float:
    """Return a lower bound on the bottleneck, in seconds, from the LP relaxation of the whole problem.

    The bound is evaluated from dual multipliers (weak duality), so it does not rest on the LP solver's
    tolerances. It is at least Lemma 3.3's, and ``inf`` where no assignment at all is allowed.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    budget
        Time limit for the LP.
    """
    floor = average_work(problem)
    try:
        model = _build(problem, None, None, np.inf, floor, budget)
    except OutOfTime:
        return floor
    if model is None:
        return np.inf
    bound = model.linear.relaxation_bound(budget.remaining_s) * model.unit * (1 - 1e-9)
    return max(bound, floor)
