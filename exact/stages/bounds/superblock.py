"""Bounds on the bottleneck from MILPs whose size does not depend on the number of stages.

Both merge all stages before, and all stages after, one stage that holds at least the average work (MTPP, sections 3.2
and 3.3). Both run once for each class that the stage may have; the best class counts, so the smallest result is the
bound. In the other stages a node or tensor costs what it costs on its cheapest class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, OutOfTime, power_of_two_unit
from rlinit.exact.solvers.scip import Status, run_scip
from rlinit.exact.stages.domains import StageDomains, cover_edges
from rlinit.exact.stages.pipeline_milp import average_work
from rlinit.exact.stages.scaled_costs import ScaledCosts, safe_bound, single_stage_cost
from rlinit.exact.stages.variables import StageVariables
from rlinit.stages.problem import StageProblem, whole_cost

_BEFORE, _MIDDLE, _AFTER = range(3)

_TINY = 1e-8
"""Share of the work a stage holds at least below which a solver would not see a node's."""


class _SuperblockModel:
    """Assign nodes to before, the stage in the middle, or after (MTPP's exact MIP at k = 3, with equation 14).

    Parameters
    ----------
    problem
        The problem.
    costs
        Its costs in the model's unit.
    edges
        (tails, heads) all that precedence needs.
    class_idx
        Class of the stage in the middle.
    least_work
        Seconds of work, each node on its cheapest class, that the stage holds at least (equation 14).
    budget
        Writing the model raises `OutOfTime` once this has ended.
    num_before, num_after
        Stages that the two superblocks stand for, or None to leave their costs out.
    """

    def __init__(
        self,
        problem: StageProblem,
        costs: ScaledCosts,
        edges: tuple[IntArray, IntArray],
        class_idx: int,
        least_work: float,
        budget: Budget,
        num_before: int | None = None,
        num_after: int | None = None,
    ) -> None:
        self.problem = problem
        self.costs = costs
        self.unit = costs.unit
        self.linear = LinearModel(budget=budget)
        n = problem.num_nodes
        first = np.full(n, _MIDDLE if num_before == 0 else _BEFORE, np.int64)
        last = np.full(n, _MIDDLE if num_after == 0 else _AFTER, np.int64)
        # The stage has one class: a node that may not run there is before or after it, and so with it are its
        # ancestors or descendants where one side does not exist.
        forbidden = ~np.isfinite(problem.work_s[class_idx])
        if num_before == 0:
            first[forbidden] = _AFTER
        if num_after == 0:
            last[forbidden] = _BEFORE
        domains = StageDomains(problem, first, last)
        if domains.empty:
            self.linear.infeasible = True
            return
        self.nodes = StageVariables(problem, self.linear, domains.first, domains.last, 3, edges)
        for v in np.flatnonzero(forbidden).tolist():
            self.linear.equal(self.nodes.at(v, _MIDDLE), 0.0)
        self._memory(class_idx)
        self._enough_work(least_work)
        block_costs = [self._middle_cost(class_idx)]
        if num_before:
            block_costs.append(self._before_cost(num_before))
        if num_after:
            block_costs.append(self._after_cost(num_after))
        most = max(map(self.linear.largest_value, block_costs))
        self.linear.objective = self.linear.max_of(0.0, most, block_costs)

    def _enough_work(self, least_work: float) -> None:
        """Sum over v of work(v) x[v, middle] >= L (equation 14), with a relative slack of 1e-9 for rounding.

        The row has a unit of its own, and nodes that a solver would overlook count as inside.
        """
        work, unit = _cheapest(self.problem.work_s), power_of_two_unit(least_work)
        seen = work >= _TINY * least_work
        held = self.nodes.held(np.where(seen, work, 0.0) / unit, _MIDDLE)
        least = least_work * (1 - 1e-9) - float(work[~seen].sum())
        self.linear.at_most(Affine().add(held, -1.0), -least / unit)

    def _memory(self, class_idx: int) -> None:
        """Sum over v of param(v) x[v, middle] <= memory of the class."""
        capacity = float(self.problem.memory_bytes[class_idx])
        if np.isfinite(capacity):
            scale = power_of_two_unit(capacity)
            held = np.minimum(self.problem.param_bytes, 2.0 * capacity)
            self.linear.at_most(self.nodes.held(held / scale, _MIDDLE), capacity / scale)

    def _middle_cost(self, class_idx: int) -> Affine:
        """block[2] = the full cost of the stage on its class (equation 7 and overflow)."""
        costs = self.costs
        work = np.where(np.isfinite(costs.work[class_idx]), costs.work[class_idx], 0.0)
        cost = self.nodes.held(work, _MIDDLE)
        self._add_tensors(cost, costs.into[class_idx], _MIDDLE, entering=True)
        self._add_tensors(cost, costs.out_of[class_idx], _MIDDLE, entering=False)
        param = costs.overflow[class_idx]
        if param.any():
            over = self.nodes.held(param, _MIDDLE).add(Affine(constant=-float(costs.hidden[class_idx])))
            cost.add(Affine({self.linear.max_of(0.0, float(param.sum()), [over]): 1.0}))
        return cost

    def _before_cost(self, num_stages: int) -> Affine:
        """block[1] / (j - 1): work, and each tensor that leaves the superblock once; cuts inside it are left out."""
        cost = self.nodes.held(_cheapest(self.costs.work), _BEFORE)
        self._add_tensors(cost, _cheapest(self.costs.out_of), _BEFORE, entering=False)
        return Affine().add(cost, 1.0 / num_stages)

    def _after_cost(self, num_stages: int) -> Affine:
        """block[3] / (k - j): work, and each tensor that enters the superblock once; cuts inside it are left out."""
        cost = self.nodes.held(_cheapest(self.costs.work), _AFTER)
        self._add_tensors(cost, _cheapest(self.costs.into), _AFTER, entering=True)
        return Affine().add(cost, 1.0 / num_stages)

    def _add_tensors(self, cost: Affine, scaled: FloatArray, block: int, *, entering: bool) -> None:
        """Add the cost of every tensor that enters, or leaves, a block."""
        count = self.nodes.entering if entering else self.nodes.leaving
        for t in np.flatnonzero(scaled > 0).tolist():
            cost.add(count(t, block), float(scaled[t]))


def _cheapest(seconds: FloatArray) -> FloatArray:
    """Return the minimum over classes, (c, n) -> (n,)."""
    return np.asarray(seconds.min(axis=0), np.float64)


@dataclass(slots=True)
class _Minimum:
    """The smallest result so far of several models, of which the smallest one is the bound."""

    floor: float
    value: float = np.inf

    def take(self, model: _SuperblockModel, budget: Budget, node_limit: int | None) -> None:
        """Solve a model, only as far as it could lower the minimum.

        Lemma 3.3's bound holds without any search, so a result below it counts as it.
        """
        if self.value <= self.floor:
            return
        cutoff = self.value / model.unit if np.isfinite(self.value) else None
        run = run_scip(model.linear, budget=budget, node_limit=node_limit, cutoff=cutoff)
        if run.status is Status.INFEASIBLE:
            return
        self.value = min(self.value, max(safe_bound(run.bound, model.unit), self.floor))


def _allowed(problem: StageProblem) -> bool:
    return bool(np.isfinite(problem.work_s.min(axis=0)).all())


def _costs(problem: StageProblem, upper: float | None, least: float) -> tuple[ScaledCosts, float]:
    """Return the costs of the models, and a value that the bottleneck does not exceed, if it has any."""
    known = min(single_stage_cost(problem), np.inf if upper is None else upper)
    ceiling = min(known * (1 + 1e-6), whole_cost(problem))
    return ScaledCosts.of(problem, ceiling, least), known


def three_superblock_bound(
    problem: StageProblem,
    *,
    budget: Budget,
    upper: float | None = None,
    node_limit: int | None = None,
) -> float:
    """Return a lower bound on the bottleneck: the cheapest convex set that holds the average work.

    Lemma 3.3: some stage holds at least L = max(largest node, total / k) of the work, each node counted on its cheapest
    class, whatever stages are empty. That stage is a convex set of one class c and costs f_c of it, so the cheapest
    such set over all classes is a bound. At least L; ``inf`` where a node may run nowhere.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    budget
        Time limit and switch; what it cuts short still is a bound.
    upper
        Value of a known assignment in seconds: costs above it need no exact price. The bound never exceeds it.
    node_limit
        Most branch-and-bound nodes of each class's model.

    References
    ----------
    MTPP, section 3.2, Lemma 3.3 and equations 13 and 14.
    """
    if not _allowed(problem):
        return np.inf
    edges, least = cover_edges(problem), average_work(problem)
    costs, known = _costs(problem, upper, least)
    minimum = _Minimum(least)
    for c in np.flatnonzero(problem.class_count).tolist():
        try:
            model = _SuperblockModel(problem, costs, edges, c, least, budget)
        except OutOfTime:
            return min(least, known)
        minimum.take(model, budget, node_limit)
    return min(minimum.value, known)


def guess_bound(
    problem: StageProblem,
    *,
    budget: Budget,
    upper: float | None = None,
    node_limit: int | None = None,
) -> float:
    """Return a lower bound on the bottleneck by guessing which stage holds the average work.

    For every j the stage at position j is the one of Lemma 3.3, the worst of the j - 1 stages before it is at least as
    expensive as their average, and so are the k - j after it. The smallest bound over all j, and all classes of that
    stage, holds for the problem. A superblock's cost leaves out the tensors cut inside it and counts a tensor that
    enters the last one once, so it is at most what its stages cost together; empty stages cost nothing and only lower
    the average.

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

    References
    ----------
    MTPP, section 3.3.
    """
    if not _allowed(problem):
        return np.inf
    edges, least, k = cover_edges(problem), average_work(problem), problem.num_stages
    costs, known = _costs(problem, upper, least)
    minimum = _Minimum(least)
    guesses = [(j, c) for j in range(k) for c in np.flatnonzero(problem.class_count).tolist()]
    for i, (j, c) in enumerate(guesses):
        try:
            model = _SuperblockModel(problem, costs, edges, c, least, budget, j, k - 1 - j)
        except OutOfTime:
            return min(least, known)
        share = budget.share(min(budget.remaining_s / (len(guesses) - i), 1e9))
        minimum.take(model, share, node_limit)
    return min(minimum.value, known)
