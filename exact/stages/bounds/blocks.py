"""Bounds on the bottleneck from programs of three blocks of stages, whatever the number of stages.

MTPP's hierarchy (sections 3.2 and 3.3) asks where the average work is: some stage holds it, and all stages before it
and all stages after it are one block each, in which a node or tensor costs what it costs on its cheapest class. Cuts
between blocks are exact, those inside them are left out.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import Status, run_scip
from rlinit.exact.stages.domains import StageDomains, cover_edges
from rlinit.exact.stages.milp.scaled_costs import SPAN, ScaledCosts, overflow_terms, safe_bound, single_stage_cost
from rlinit.exact.stages.milp.variables import StageVariables
from rlinit.stages.problem import StageProblem, average_work, whole_cost

_MIDDLE = 1
"""The block that is one stage with at least the average work; block 0 is before it, block 2 after it."""


class _BlockModel:
    """Assign nodes to the stages before one with the average work, to it, or to those after it.

    A block of stages costs, for each of them, at most what its worst stage costs.

    Parameters
    ----------
    problem
        The problem; but for the heavy stage, several classes are merged into one that is at least as good as each.
    domains
        Blocks each node may take, not empty.
    sizes
        Stages of each of the three blocks; 0 where there may be any number and their costs are left out.
    class_idx
        Class of the stage in the middle.
    costs
        Costs in the model's unit.
    edges
        (tails, heads) all that precedence needs.
    budget
        Writing the model raises `OutOfTime` once this has ended.
    """

    def __init__(
        self,
        problem: StageProblem,
        domains: StageDomains,
        sizes: tuple[int, int, int],
        class_idx: int,
        costs: ScaledCosts,
        edges: tuple[IntArray, IntArray],
        budget: Budget,
    ) -> None:
        self.problem, self.sizes, self.costs, self.unit = problem, sizes, costs, costs.unit
        self.class_idx = class_idx
        self.linear = LinearModel(budget=budget)
        self.nodes = StageVariables(problem, self.linear, domains.first, domains.last, 3, edges)
        self._enough_work()
        for g in range(3):
            self._memory(g)
        priced = [self._cost_per_stage(g) for g in range(3) if sizes[g] > 0]
        ceiling = max(map(self.linear.largest_value, priced))
        self.linear.objective = self.linear.max_of(0.0, ceiling, priced)

    def _classes(self, g: int) -> slice:
        """Return which classes the stages of a block may have."""
        return slice(self.class_idx, self.class_idx + 1) if g == _MIDDLE else slice(None)

    def _memory(self, g: int) -> None:
        """Sum over v of param(v) x[v, g] <= size(g) times the largest memory of a class."""
        capacity, size = float(self.problem.memory_bytes[self._classes(g)].max()), self.sizes[g]
        if np.isfinite(capacity) and size > 0:
            scale = power_of_two_unit(capacity)
            # A node that alone is too much is so at twice the capacity.
            held = self.nodes.held(np.minimum(self.problem.param_bytes, 2.0 * size * capacity) / scale, g)
            self.linear.at_most(held, size * capacity / scale)

    def _enough_work(self) -> None:
        """Sum over v of work(v) x[v, 1] >= L (equation 14), and x[v, 1] = 0 where v may not run on the class.

        The row has a unit of its own and a relative slack of 1e-9 for rounding; nodes that a solver would overlook
        count as inside.
        """
        for v in np.flatnonzero(~np.isfinite(self.problem.work_s[self.class_idx])).tolist():
            self.linear.equal(self.nodes.at(v, _MIDDLE), 0.0)
        work, least = _cheapest(self.problem.work_s), average_work(self.problem)
        unit, seen = power_of_two_unit(least), work >= least / SPAN
        held = self.nodes.held(np.where(seen, work, 0.0) / unit, _MIDDLE)
        missing = least * (1 - 1e-9) - float(work[~seen].sum())
        self.linear.at_most(Affine().add(held, -1.0), -missing / unit)

    def _cost_per_stage(self, g: int) -> Affine:
        """T >= (work + tensors in + tensors out + overflow of block g) / size(g).

        Each tensor that enters or leaves the block enters or leaves at least one of its stages, and the stages'
        overflows add up to at least that of their joint parameters over their joint cache.
        """
        problem, nodes, classes = self.problem, self.nodes, self._classes(g)
        work = _cheapest(self.costs.work[classes])
        cost = nodes.held(np.where(np.isfinite(work), work, 0.0), g)
        for scaled, count in ((self.costs.into, nodes.entering), (self.costs.out_of, nodes.leaving)):
            cheapest = _cheapest(scaled[classes])
            for t in np.flatnonzero(cheapest > 0).tolist():
                cost.add(count(t, g), float(cheapest[t]))
        size, rate = self.sizes[g], float(problem.overflow_s_per_byte[classes].min())
        cache = size * float(problem.cache_bytes[classes].max())
        terms, hidden = overflow_terms(problem.param_bytes, rate, cache, 2.0 * self.costs.ceiling)
        if terms.any():
            param = terms / self.unit
            over = nodes.held(param, g).add(Affine(constant=-hidden / self.unit))
            cost.add(Affine({self.linear.max_of(0.0, float(param.sum()), [over]): 1.0}))
        return Affine().add(cost, 1.0 / size)


def _cheapest(seconds: FloatArray) -> FloatArray:
    """Return the minimum over classes, (c, n) -> (n,)."""
    return np.asarray(seconds.min(axis=0), np.float64)


def guess_bound(
    problem: StageProblem,
    *,
    budget: Budget,
    upper: float = np.inf,
    node_limit: int | None = None,
    only_heavy: bool = False,
) -> float:
    """Return a lower bound on the bottleneck by guessing which stage holds the average work.

    Some stage holds at least L = max(largest node, total / k) of the work, each node counted on its cheapest class,
    whatever stages are empty (Lemma 3.3). For every j, and all classes of that stage, the stage at position j is the
    one, the worst of the j - 1 stages before it is at least as expensive as their average, and so are the k - j after
    it. The smallest of these bounds holds for the problem.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    budget
        Time limit and switch, shared evenly by the guesses; what it cuts short still is a bound.
    upper
        Value of a known assignment in seconds: costs above it need no exact price. The bound never exceeds it.
    node_limit
        Most branch-and-bound nodes of each guess.
    only_heavy
        Whether the stages before and after it cost nothing, so that one program stands for all positions: the bound of
        three superblocks, the cheapest convex set that holds the average work.

    References
    ----------
    MTPP, sections 3.2 (Lemma 3.3, equations 13 and 14) and 3.3.
    """
    if not np.isfinite(_cheapest(problem.work_s)).all():
        return np.inf
    edges, least, k = cover_edges(problem), average_work(problem), problem.num_stages
    known = min(single_stage_cost(problem), upper)
    costs = ScaledCosts.of(problem, min(known * (1 + 1e-6), whole_cost(problem)), least)
    positions = [(0, 0)] if only_heavy else [(j, k - 1 - j) for j in range(k)]
    guesses = [(sides, c) for sides in positions for c in np.flatnonzero(problem.class_count).tolist()]
    value = np.inf
    for i, ((before, after), c) in enumerate(guesses):
        if value <= least:  # Lemma 3.3's bound holds without any search, so nothing below it counts.
            break
        domains = _heavy_domains(problem, c, has_before=only_heavy or before > 0, has_after=only_heavy or after > 0)
        if domains.empty:
            continue
        try:
            model = _BlockModel(problem, domains, (before, 1, after), c, costs, edges, budget)
        except OutOfTime:
            return min(least, known)
        share = budget.share(min(budget.remaining_s / (len(guesses) - i), 1e9))
        cutoff = value / model.unit if np.isfinite(value) else None
        run = run_scip(model.linear, budget=share, node_limit=node_limit, cutoff=cutoff)
        if run.status is not Status.INFEASIBLE:
            value = min(value, max(safe_bound(run.bound, model.unit), least))
    return min(value, known)


def _heavy_domains(problem: StageProblem, c: int, *, has_before: bool, has_after: bool) -> StageDomains:
    """Return the blocks that nodes may take where the one in the middle has class c and the others may not be."""
    forbidden = ~np.isfinite(problem.work_s[c])
    first = np.full(problem.num_nodes, 0 if has_before else 1, np.int64)
    last = np.full(problem.num_nodes, 2 if has_after else 1, np.int64)
    # A node that may not be in the middle is before or after it, and so with it are its ancestors or descendants where
    # one side does not exist.
    if not has_before:
        first[forbidden] = 2
    if not has_after:
        last[forbidden] = 0
    return StageDomains(problem, first, last)
