"""All boundaries between stages moved at once: the middle of each stage held together, the rest solved exactly."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.stages.ideals.node_merging import merge_nodes
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.kernels.orders import kahn
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate

_FIRST_SHARE = 0.25
"""Share of a stage's ops, half at either end, that may leave it in the first round."""

_NARROWER, _WIDER = 0.6, 1.2
"""What the share is multiplied by where there are too many ideals, and where there are not."""

_LEAST_SHARE = 1e-3
_ROUNDING = 1e-9


def improve_at_boundaries(
    problem: StageProblem,
    start: StageAssignment,
    *,
    seed: int,
    rounds: int,
    most_work: int = 10**18,
    lower: float = 0.0,
    ideal_cap: int = 200_000,
    budget: Budget | None = None,
) -> tuple[StageAssignment, Value]:
    """Return an assignment at least as good as `start`, after rounds that each solve a coarser problem exactly.

    A round draws a topological order in which the stages of the best assignment follow each other. In each stage the
    ops in the middle of that order become one node; the others, at both ends, stay free. Runs of such an order may
    be merged without a cycle, the best assignment is one of the coarser problem, and its ideals are few: those around
    one boundary do not multiply with those around the next. The dynamic program over them moves all boundaries, and
    the devices, together.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    start
        An assignment.
    seed
        Of the orders.
    rounds
        How many orders are drawn.
    most_work
        Pairs of ideals after which no further round begins.
    lower
        A bottleneck that none is below.
    ideal_cap
        Ideals of a coarser problem at most; how many ops are free follows from it.
    budget
        When to stop.
    """
    budget = budget or Budget()
    rng = np.random.default_rng(seed)
    best, value = start, evaluate(problem, start)
    share, work = _FIRST_SHARE, 0
    for _ in range(rounds):
        if work >= most_work or budget.expired or not lower < value[0] or share < _LEAST_SHARE:
            break
        merged = merge_nodes(problem, _groups(problem, best, share, rng))
        found = solve_ideals(merged.problem, ideal_cap, lower=lower, upper=(value[0] * (1 - _ROUNDING),), budget=budget)
        if found is None:
            share *= _NARROWER
            continue
        work += found.work
        share = min(1.0, share * _WIDER)
        if found.assignment is not None:
            expanded = merged.expand(found.assignment)
            if evaluate(problem, expanded) < value:
                best, value = expanded, evaluate(problem, expanded)
    return best, value


def _groups(problem: StageProblem, best: StageAssignment, share: float, rng: np.random.Generator) -> IntArray:
    """Return the group of each node, numbered along a random order of the ops within each stage."""
    n = problem.num_nodes
    position = inverse_of(problem.order) / n
    # Between 0 and 1 in a stage: some orders are random, some close to the natural one.
    within = (1.0 - position) + float(rng.random()) * rng.random(n)
    order = kahn(within / 2.0 - 1.0 * best.stage, problem.succ_indptr, problem.succ, problem.pred_indptr)
    label = inverse_of(order)
    size = np.bincount(best.stage, minlength=problem.num_stages)
    last = np.cumsum(size)
    for first, end in zip((last - size).tolist(), last.tolist(), strict=True):
        free = int(np.ceil((end - first) * share / 2))
        if end - first - 2 * free > 1:
            label[order[first + free : end - free]] = first + free
    _, group = np.unique(label, return_inverse=True)
    return group.astype(np.int64)
