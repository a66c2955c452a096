"""A bound on the bottleneck from the exact MILP with neighbouring stages merged into groups.

Between guessing a bottleneck (three unequal blocks) and the exact program (k blocks) lies the exact program on fewer,
larger blocks: it keeps the cuts between groups exact and leaves out the cuts inside them, and where k blocks
are too many to search it is often the strongest of the three.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import RunSettings, run_scip
from rlinit.exact.stages.domains import StageDomains, cover_edges, window_domains
from rlinit.exact.stages.pipeline_milp import average_work
from rlinit.exact.stages.scaled_costs import ScaledCosts, overflow_terms, safe_bound
from rlinit.exact.stages.variables import StageVariables
from rlinit.stages.problem import StageAssignment, StageProblem, whole_cost


class _MergedModel:
    """Assign nodes to groups of stages; a group's cost per stage is at most its worst stage's cost.

    Parameters
    ----------
    problem
        The problem; several classes are merged into one that is at least as good as each.
    domains
        Stages each node may take, not empty.
    sizes
        Number of stages of each group, in order.
    costs
        Costs in the model's unit.
    budget
        Writing the model raises `OutOfTime` once this has ended.
    """

    def __init__(
        self, problem: StageProblem, domains: StageDomains, sizes: IntArray, costs: ScaledCosts, budget: Budget
    ) -> None:
        self.problem = problem
        self.sizes = sizes
        self.costs = costs
        self.unit = costs.unit
        self.linear = LinearModel(budget=budget)
        self.group = np.repeat(np.arange(len(sizes)), sizes)
        first, last = self.group[domains.first], self.group[domains.last]
        self.nodes = StageVariables(problem, self.linear, first, last, len(sizes), cover_edges(problem))
        self._memory()
        group_costs = [self._cost_per_stage(g) for g in range(len(sizes))]
        ceiling = max(self.linear.largest_value(cost) for cost in group_costs)
        self.linear.objective = self.linear.max_of(0.0, ceiling, group_costs)

    def _memory(self) -> None:
        """Sum over v of param(v) x[v, g] <= size(g) times the largest memory of a class."""
        capacity = float(self.problem.memory_bytes.max())
        if np.isfinite(capacity):
            scale = power_of_two_unit(capacity)
            for g, size in enumerate(self.sizes.tolist()):
                held = self.nodes.held(np.minimum(self.problem.param_bytes, 2.0 * capacity) / scale, g)
                self.linear.at_most(held, size * capacity / scale)

    def _cost_per_stage(self, g: int) -> Affine:
        """T >= (work + tensors in + tensors out + overflow of group g) / size(g).

        Each tensor that enters or leaves the group enters or leaves at least one of its stages, and the stages'
        overflows add up to at least that of their joint parameters over their joint cache.
        """
        problem, nodes = self.problem, self.nodes
        cost = nodes.held(_cheapest(self.costs.work), g)
        for scaled, count in ((self.costs.into, nodes.entering), (self.costs.out_of, nodes.leaving)):
            cheapest = _cheapest(scaled)
            for t in np.flatnonzero(cheapest > 0).tolist():
                cost.add(count(t, g), float(cheapest[t]))
        size, rate = int(self.sizes[g]), float(problem.overflow_s_per_byte.min())
        cache = size * float(problem.cache_bytes.max())
        terms, hidden = overflow_terms(problem.param_bytes, rate, cache, 2.0 * self.costs.ceiling)
        if terms.any():
            param = terms / self.unit
            over = nodes.held(param, g).add(Affine(constant=-hidden / self.unit))
            cost.add(Affine({self.linear.max_of(0.0, float(param.sum()), [over]): 1.0}))
        return Affine().add(cost, 1.0 / size)

    def encode(self, start: StageAssignment) -> FloatArray:
        """Return the point of an assignment inside the domains."""
        point = np.zeros(self.linear.num_variables)
        self.nodes.encode(self.group[start.stage], point)
        return self.linear.complete(point)


def _cheapest(seconds: FloatArray) -> FloatArray:
    return np.asarray(seconds.min(axis=0), np.float64)


def even_groups(num_stages: int, num_groups: int) -> list[int]:
    """Return group sizes that add up to `num_stages` and differ by at most one, larger ones first.

    >>> even_groups(8, 3)
    [3, 3, 2]

    Parameters
    ----------
    num_stages
        At least `num_groups`.
    num_groups
        At least 1.
    """
    size, larger = divmod(num_stages, num_groups)
    return [size + 1] * larger + [size] * (num_groups - larger)


def merged_bound(
    problem: StageProblem,
    sizes: Sequence[int],
    *,
    budget: Budget,
    start: StageAssignment | None = None,
    upper: float | None = None,
    node_limit: int | None = None,
) -> float:
    """Return a lower bound on the bottleneck, in seconds, from groups of neighbouring stages.

    Whatever the optimal assignment, its first ``sizes[0]`` stages form the first group, the next ``sizes[1]`` the
    second, and so on; the worst stage of a group costs at least the group's cost divided by its size. With one group a
    stage and one class this is the exact program; with one group it is the average work. Nodes, tensors, caches and
    memories are taken at their best class, so one model covers every order of unequal stages.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    sizes
        Number of stages of each group, positive, adding up to the number of stages.
    budget
        Time limit and switch; what it cuts short still is a bound.
    start
        A monotone assignment, only to help the search.
    upper
        Value of a known assignment in seconds; rules out stages for nodes. The bound never exceeds it.
    node_limit
        Most branch-and-bound nodes.

    Raises
    ------
    ValueError
        If the sizes do not add up.
    """
    groups = np.array(sizes, np.int64)
    if (groups < 1).any() or groups.sum() != problem.num_stages:
        raise ValueError(f"sizes: expected positive sizes adding up to {problem.num_stages}, got {list(sizes)}")
    reference = np.inf if upper is None else upper
    work = _cheapest(problem.work_s)
    if not np.isfinite(work).all():
        return np.inf
    floor = average_work(problem)
    domains = window_domains(problem, None, None)
    domains.tighten(work, reference)
    if domains.empty:
        return reference
    ceiling = min(reference * (1 + 1e-6), whole_cost(problem))
    try:
        model = _MergedModel(problem, domains, groups, ScaledCosts.of(problem, ceiling, floor), budget)
    except OutOfTime:
        return min(floor, reference)
    inside = start is not None and bool(((domains.first <= start.stage) & (start.stage <= domains.last)).all())
    run = run_scip(
        model.linear,
        budget=budget,
        node_limit=node_limit,
        start=model.encode(start) if start is not None and inside else None,
        settings=RunSettings(separation="off", heuristics="fast"),
    )
    return min(max(safe_bound(run.bound, model.unit), floor), reference)
