"""The exact dynamic program over all ideals of a stage problem."""

from __future__ import annotations

from collections.abc import Callable

from rlinit.budget import Budget
from rlinit.exact.stages.ideals.enumeration import enumerate_ideals
from rlinit.exact.stages.ideals.memory import solve_memory_ideals
from rlinit.exact.stages.ideals.parts import solve_parts
from rlinit.exact.stages.ideals.pipeline import solve_pipeline_ideals
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value

_MOST_BITS = 4_000_000_000
"""Ideals times nodes to enumerate at most: half a gigabyte while they are told apart."""


def solve_ideals(
    problem: StageProblem,
    cap: int,
    *,
    lower: float = 0.0,
    upper: Value | None = None,
    budget: Budget | None = None,
    on_bound: Callable[[Value], None] | None = None,
) -> StageResult[StageAssignment] | None:
    """Solve the whole problem exactly by dynamic programming over its ideals.

    Parameters
    ----------
    problem
        The problem.
    cap
        Largest number of ideals to enumerate; fewer for graphs of more than 2,000 nodes, to bound the memory.
    lower, upper
        A proven lower bound on the first level, and the value of a schedule at hand.
    budget, on_bound
        When to stop, and who hears of each proven lower bound on the problem.

    Returns
    -------
    StageResult or None
        ``optimal`` with the best assignment, or ``infeasible`` where none is better than `upper` (then its bound is
        `upper`) or none exists (then its bound is infinite); where the budget ended, ``no_solution`` with the bound
        proven so far, or ``feasible`` (`memory`, first level done). None beyond `cap`, or beyond the labels that fit.

    References
    ----------
    Tarnawski et al., NeurIPS 2020 (ideals); thresholds and dead states are this project's.
    """
    budget = budget or Budget()
    ceiling = None if upper is None else upper[0]
    if problem.objective == "pipeline":
        result = solve_parts(problem, cap, lower=lower, upper=ceiling, budget=budget, on_bound=on_bound)
        if result is not None:
            return result
    ideals = enumerate_ideals(problem, min(cap, _MOST_BITS // problem.num_nodes), budget)
    if ideals is None:
        return None
    if problem.objective == "memory":
        most = None if upper is None else (upper[0], upper[1], upper[2])
        return solve_memory_ideals(problem, ideals, lower=lower, upper=most, budget=budget, on_bound=on_bound)
    return solve_pipeline_ideals(problem, ideals, lower=lower, upper=ceiling, budget=budget, on_bound=on_bound)
