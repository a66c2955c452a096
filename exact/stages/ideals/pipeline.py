"""The exact bottleneck by dynamic programming over ideals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlinit.arrays import ROUNDING
from rlinit.budget import Budget
from rlinit.exact.effort import PREPARATION
from rlinit.exact.stages.ideals.bottleneck_search import BottleneckSearch
from rlinit.exact.stages.ideals.chain_order import ChainOrder
from rlinit.exact.stages.ideals.enumeration import Ideals
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value, evaluate
from rlinit.stages.states import LABEL_CAP, MOST_STEPS, StageStates, num_counted


def solve_pipeline_ideals(
    problem: StageProblem,
    ideals: Ideals,
    *,
    budget: Budget,
    lower: float = 0.0,
    upper: float | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult[StageAssignment] | None:
    """Return the assignment of the smallest bottleneck, exact over all monotone assignments and orders of classes.

    Parameters
    ----------
    problem
        A ``pipeline`` problem.
    ideals
        Its ideals (`enumerate_ideals`).
    budget
        When to stop; looked at several times a second.
    lower
        A proven lower bound in seconds, where one is known. The closer, the fewer passes.
    upper
        Value in seconds of a schedule at hand: only better ones are looked for.
    on_bound
        Told of each proven bound.

    Returns
    -------
    StageResult or None
        ``optimal``; ``infeasible``: nothing is better than `upper`, which is then the bound, or nothing is allowed at
        all, and the bound is infinite; ``no_solution``: the budget ended first. `work` counts pairs of ideals.
        None: it would take more than `LABEL_CAP` labels, one for each ideal and each way to count
        the stages used of each class.

    Notes
    -----
    Time is that of the pairs of ideals whose weights are compatible with the threshold, each a few nanoseconds.
    """
    most = min(problem.num_stages, ideals.merged.problem.num_nodes)
    num_states = num_counted(problem.class_count, most)
    if num_states * ideals.num_ideals > LABEL_CAP or num_states * problem.num_classes > MOST_STEPS:
        return None
    cutoff = np.inf if upper is None else upper
    merged = ideals.merged.problem
    order = ChainOrder.of(merged, cutoff)
    if order is not None:
        lower = order.raised(lower, cutoff, budget.share(PREPARATION * budget.remaining_s))
    states = StageStates.counted(problem.class_count, most) if order is None else order.states
    search = BottleneckSearch(ideals, states, merged.cost_arrays, budget, order)

    def tell(proven: float) -> None:
        if on_bound is not None:
            on_bound((proven,))

    found = search.run(lower, cutoff * (1 - 2 * ROUNDING), tell)
    if not found.complete:
        return StageResult(None, None, (found.proven,), "no_solution", search.work)
    if found.value is None:
        return StageResult(None, None, (cutoff,), "infeasible", search.work)
    stage = search.table.stages(found.chain)
    assignment = ideals.merged.expand(StageAssignment(stage, problem.completed_classes(found.classes)))
    value = evaluate(problem, assignment)
    if value[0] >= cutoff:
        return StageResult(None, None, (cutoff,), "infeasible", search.work)
    return StageResult(assignment, value, (min(value[0], found.value),), "optimal", search.work)
