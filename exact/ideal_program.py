"""The exact dynamic program over all ideals of a stage problem."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlinit.budget import Budget
from rlinit.exact.dominance import merge_weightless
from rlinit.exact.ideals import enumerate_ideals
from rlinit.partition import Lattice, OnBound, partition
from rlinit.stages import StageProblem, StageResult, Value, evaluate

__all__ = ["solve_ideals"]

_MOST_BITS = 4_000_000_000
"""Ideals times nodes to enumerate at most: half a gigabyte while they are told apart."""


def solve_ideals(
    problem: StageProblem,
    cap: int,
    *,
    lower: float = 0.0,
    upper: Value | None = None,
    budget: Budget | None = None,
    on_bound: OnBound | None = None,
) -> StageResult | None:
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
        As `rlinit.partition.partition`, where every bound holds for the whole problem; None beyond `cap`.

    References
    ----------
    Tarnawski et al., NeurIPS 2020 (ideals); thresholds and dead states are this project's.
    """
    merged = merge_weightless(problem)
    ideals = enumerate_ideals(merged.problem, min(cap, _MOST_BITS // merged.problem.num_nodes))
    if ideals is None:
        return None
    lattice = Lattice(ideals.indptr, ideals.added.astype(np.int64), ideals.next_ideal.astype(np.int64))
    result = partition(merged.problem, lattice, lower=lower, upper=upper, budget=budget, on_bound=on_bound)
    if result is None or result.assignment is None:
        return result
    assignment = merged.expand(result.assignment)
    return dataclasses.replace(result, assignment=assignment, value=evaluate(problem, assignment))
