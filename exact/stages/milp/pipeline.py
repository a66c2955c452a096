"""The exact MILP of the pipeline objective, whole or inside a window, of one stage a device or of several.

The formulation is MTPP's exact MIP (Figure 3, equations 5 to 12) in its "completed by" variables, with x eliminated
by equation 11 and four generalisations: tensors with several consumers, stages of several classes, parameter overflow,
and devices that run several stages, whose costs are added up. The tensor rows are a stronger form of equations 9 and 10
(see `StageVariables`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import RunSettings
from rlinit.exact.stages.domains import StageDomains, cover_edges, window_domains
from rlinit.exact.stages.milp.program import StageProgram
from rlinit.exact.stages.milp.scaled_costs import ScaledCosts
from rlinit.exact.stages.milp.variables import StageVariables
from rlinit.stages.problem import (
    StageAssignment,
    StageProblem,
    StageResult,
    Value,
    average_work,
    stage_value,
    whole_cost,
)
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, chunk_value


class PipelineModel:
    """The MILP over nodes whose stage is still open; all else is a constant.

    A *kind* says what a stage may run on: the class of the device of its slot, where stage j is bound to slot j mod k,
    or the device itself, where the order of chunks is free. On top of :class:`StageVariables`, ``p[j, i]`` is 1 iff
    stage j is of kind i (one variable for all stages of a slot), and ``x[v, j, i]`` is 1 iff v is in stage j and that
    is of kind i; with one kind neither exists.

    Parameters
    ----------
    chunked
        The problem; with one chunk, that of one stage a device.
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
        chunked: ChunkedStages,
        domains: StageDomains,
        costs: ScaledCosts,
        *,
        lower: float,
        upper: float,
        budget: Budget | None = None,
    ) -> None:
        problem = chunked.problem
        self.chunked, self.problem, self.costs, self.unit = chunked, problem, costs, costs.unit
        self.linear = LinearModel(budget=budget)
        self.free = chunked.order == "free" and chunked.chunks > 1
        self.class_of_kind: list[int] = (
            problem.stage_class.tolist() if self.free else np.flatnonzero(problem.class_count).tolist()
        )
        self.several = len(self.class_of_kind) > 1
        self.p: dict[tuple[int, int], int] = {}
        self.x: dict[tuple[int, int, int], int] = {}
        edges = cover_edges(problem)
        self.nodes = StageVariables(problem, self.linear, domains.first, domains.last, chunked.num_stages, edges)
        if self.several:
            self._kind_of_stage()
            self._shares()
        self.linear.objective = self.linear.max_of(lower / self.unit, max(upper, lower) / self.unit, self._loads())

    def _kind_of_stage(self) -> None:
        """Each stage is of one kind; each device has v stages (free), each class as many slots as devices.

        Windows leave the classes open: the start's classes satisfy the rows.
        """
        chunked, linear, kinds = self.chunked, self.linear, range(len(self.class_of_kind))
        own = range(chunked.num_stages) if self.free else range(chunked.num_slots)
        p = {(j, i): linear.binary(priority=1) for j in own for i in kinds}
        for j in own:
            linear.equal(Affine({p[j, i]: 1.0 for i in kinds}), 1.0)
        for i in kinds:
            count = chunked.chunks if self.free else int(self.problem.class_count[self.class_of_kind[i]])
            linear.equal(Affine({p[j, i]: 1.0 for j in own}), float(count))
        self.p = {(j, i): p[j % len(own), i] for j in range(chunked.num_stages) for i in kinds}

    def _shares(self) -> None:
        """x[v, j, i] <= p[j, i] and the sum over i of x[v, j, i] is x[v, j]; no variable where v is forbidden on i.

        A forbidden node that a window fixes to j rules the kind out of j instead.
        """
        problem, nodes = self.problem, self.nodes
        for v in range(problem.num_nodes):
            for j in range(int(nodes.first[v]), int(nodes.last[v]) + 1):
                total = nodes.at(v, j)
                for i, c in enumerate(self.class_of_kind):
                    allowed = bool(np.isfinite(problem.work_s[c, v]))
                    if nodes.fixed(v):
                        if not allowed:
                            self.linear.upper[self.p[j, i]] = 0.0
                    elif allowed:
                        share = self.x[v, j, i] = self.linear.continuous(0.0, 1.0)
                        self.linear.at_most(Affine({share: 1.0, self.p[j, i]: -1.0}), 0.0)
                        total.add(Affine({share: -1.0}))
                if not nodes.fixed(v):
                    self.linear.equal(total, 0.0)

    def _share(self, v: int, j: int, i: int) -> Affine:
        """Return x[v, j, i]: x[v, j] with one kind, p[j, i] for a node fixed to j, else a variable."""
        if not self.several or not self.nodes.first[v] <= j <= self.nodes.last[v]:
            return self.nodes.at(v, j)
        if self.nodes.fixed(v):
            return Affine({self.p[j, i]: 1.0})
        return Affine({self.x[v, j, i]: 1.0}) if (v, j, i) in self.x else Affine()

    def _sum(self, weight: FloatArray, stages: list[int], i: int) -> Affine:
        """Return the sum over v and j of weight[v] x[v, j, i]."""
        total = Affine()
        for j in stages:
            open_here = (self.nodes.first <= j) & (j <= self.nodes.last)
            for v in np.flatnonzero(open_here & (weight > 0) & (weight < np.inf)).tolist():
                total.add(self._share(v, j, i), float(weight[v]))
        return total

    def _loads(self) -> list[Affine]:
        """Return the cost of each slot: the sum over its stages, or over all stages as far as they are on a device."""
        chunked = self.chunked
        everything, loads = list(range(chunked.num_stages)), []
        for s in range(chunked.num_slots):
            kinds = [s] if self.free and self.several else list(range(len(self.class_of_kind)))
            stages = everything if self.free else everything[s :: chunked.num_slots]
            load = Affine()
            for i in kinds:
                load.add(self._cost(stages, i))
                self._memory(stages, i)
            loads.append(load)
        return loads

    def _cost(self, stages: list[int], i: int) -> Affine:
        """Return work + tensors in + tensors out + overflow of stages that are of kind i (equation 7), in units.

        The overflow is o >= sum over v of param(v) x[v, j, i] - cache(i) p[j, i], at the class's seconds per byte.
        """
        problem, costs, c = self.problem, self.costs, self.class_of_kind[i]
        cost = self._sum(costs.work[c], stages, i)
        share = partial(self._share, i=i) if self.several else None
        for j in stages:
            for t in range(problem.num_tensors):
                if costs.into[c, t] > 0:
                    cost.add(self.nodes.entering(t, j, share), float(costs.into[c, t]))
                if costs.out_of[c, t] > 0:
                    cost.add(self.nodes.leaving(t, j, share), float(costs.out_of[c, t]))
        # The variable counts the overflow's cost in the model's unit, so that its column is as well scaled.
        overflow = costs.overflow[c]
        if overflow.any():
            here = Affine({self.p[stages[0], i]: 1.0}) if self.several and not self.free else Affine(constant=1.0)
            over = self._sum(overflow, stages, i).add(here, -float(costs.hidden[c]))
            cost.add(Affine({self.linear.max_of(0.0, float(overflow.sum()), [over]): 1.0}))
        return cost

    def _memory(self, stages: list[int], i: int) -> None:
        """Sum over v of param(v) x[v, j, i] <= memory(i), over the stages of a device, where it is finite."""
        capacity = float(self.problem.memory_bytes[self.class_of_kind[i]])
        if np.isfinite(capacity):
            scale = power_of_two_unit(capacity)
            # A node that alone is too much is so at twice the capacity.
            held = np.minimum(self.problem.param_bytes, 2.0 * capacity)
            self.linear.at_most(self._sum(held / scale, stages, i), capacity / scale)

    def _kinds(self, assignment: ChunkAssignment) -> IntArray:
        """Return (K,) the kind of each stage: its class, or its device, numbered within its class as slots come."""
        classes, slots = assignment.classes, assignment.slot
        if not self.free:
            return np.searchsorted(self.class_of_kind, classes)[slots]
        device = np.empty(len(classes), np.int64)
        for c in range(self.problem.num_classes):
            device[classes == c] = np.flatnonzero(self.problem.stage_class == c)
        return device[slots]

    def encode(self, assignment: ChunkAssignment) -> FloatArray:
        """Return the point (num_variables,) of an assignment inside the domains."""
        kinds, point = self._kinds(assignment), np.zeros(self.linear.num_variables)
        self.nodes.encode(assignment.stage, point)
        for (j, i), handle in self.p.items():
            point[handle] = kinds[j] == i
        for (v, j, i), handle in self.x.items():
            point[handle] = assignment.stage[v] == j and kinds[j] == i
        return self.linear.complete(point)

    def decode(self, point: FloatArray) -> ChunkAssignment:
        """Return the assignment of a point that satisfies the model up to SCIP's tolerance."""
        chunked, stage_class = self.chunked, self.problem.stage_class
        stage, slot = self.nodes.decode(point), chunked.interleaved_slots
        if not self.p:
            return ChunkAssignment(stage, slot, stage_class)
        kinds = np.zeros(chunked.num_stages, np.int64)
        for (j, i), handle in self.p.items():
            if point[handle] > 0.5:
                kinds[j] = i
        if self.free:
            return ChunkAssignment(stage, kinds, stage_class)
        return ChunkAssignment(stage, slot, np.array(self.class_of_kind)[kinds[: chunked.num_slots]])


def chunk_program(chunked: ChunkedStages) -> StageProgram[ChunkAssignment]:
    """Return the program over all monotone assignments of nodes to chunks, and of chunks to devices."""
    n, last = chunked.problem.num_nodes, chunked.num_stages - 1

    def write(lower: float, upper: float, budget: Budget) -> PipelineModel:
        domains = StageDomains(chunked.problem, np.zeros(n, np.int64), np.full(n, last, np.int64))
        costs = ScaledCosts.of(chunked.problem, upper)
        return PipelineModel(chunked, domains, costs, lower=lower, upper=upper, budget=budget)

    most = chunked.chunks * whole_cost(chunked.problem)
    return StageProgram(write, lambda assignment: chunk_value(chunked, assignment)[0], most)


def _build(
    problem: StageProblem,
    start: StageAssignment | None,
    free: NDArray[np.bool_] | None,
    reference: float,
    lower: float,
    upper: float,
    budget: Budget,
) -> PipelineModel | None:
    """Return the model of all assignments in the window of value at most `reference`, or None if there are none."""
    domains = window_domains(problem, start, free)
    work = problem.work_s[problem.class_count > 0].min(axis=0)
    if not np.isfinite(work).all():
        return None
    domains.tighten(work, reference)
    if domains.empty:
        return None
    floor, costs = min(max(lower, average_work(problem)), upper), ScaledCosts.of(problem, upper)
    return PipelineModel(ChunkedStages(problem, 1), domains, costs, lower=floor, upper=upper, budget=budget)


def solve_pipeline_milp(
    problem: StageProblem,
    *,
    budget: Budget,
    start: StageAssignment | None = None,
    free: NDArray[np.bool_] | None = None,
    lower: float | None = None,
    node_limit: int | None = None,
    on_solution: Callable[[StageAssignment], object] | None = None,
    on_bound: Callable[[Value], object] | None = None,
) -> StageResult[StageAssignment]:
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
    chunked = ChunkedStages(problem, 1)
    given = None if start is None else ChunkAssignment(start.stage, chunked.interleaved_slots, start.classes)
    reference = np.inf if start is None else stage_value(problem, start.stage, start.classes)
    # Cutting planes cost more than they close here (on random graphs of 180 nodes at k = 4, a bound of 0.960 of the
    # value in 30 s with them, 0.968 without), and primal heuristics have little to add to a good start of the
    # whole problem.
    settings = RunSettings(separation="off", heuristics="default" if start is None or free is not None else "off")
    found = StageProgram(
        lambda floor, upper, clock: _build(problem, start, free, reference, floor, upper, clock),
        lambda one: stage_value(problem, one.stage, one.classes),
        whole_cost(problem),
        settings,
    ).solve(
        budget=budget,
        start=given,
        lower=max(0.0 if lower is None else lower, average_work(problem)),
        node_limit=node_limit,
        on_solution=None if on_solution is None else lambda one: on_solution(one.stages),
        on_bound=on_bound,
    )
    best = None if found.assignment is None else found.assignment.stages
    return StageResult(best, found.value, found.bound, found.status, found.work)


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
        model = _build(problem, None, None, np.inf, floor, whole_cost(problem), budget)
    except OutOfTime:
        return floor
    if model is None:
        return np.inf
    bound = model.linear.relaxation_bound(budget.remaining_s) * model.unit * (1 - 1e-9)
    return max(bound, floor)
