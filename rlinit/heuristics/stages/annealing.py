"""Annealing over the stage vector, each run finished by slicing the order it induces."""

from __future__ import annotations

import numpy as np

from rlinit.budget import Budget
from rlinit.heuristics.stages.orders import Found, natural, random_orders
from rlinit.kernels.stages.annealing import anneal_stages
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate
from rlinit.stages.slicing import slice_order

__all__ = ["anneal", "anneal_from", "reslice"]

_HOT, _COLD = 0.03, 1e-4
"""First and last temperature, relative to the 12-norm of the stage costs."""

_RUNS = 4
_CHUNK = 250_000
"""Moves of one run at most, so that the budget is looked at often."""


def anneal(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Anneal single-node moves from sliced orders, four runs, and keep the best; `evaluations` are moves.

    By default 4 runs of 2,000 moves a node, at most a million each.
    """
    n = problem.num_nodes
    moves = evaluations or _RUNS * int(min(1_000_000, max(20_000, 2_000 * n)))
    best = natural(problem)
    if best is None:
        best = random_orders(problem, seed=seed, budget=budget)
    if best is None:
        return None
    for run in range(_RUNS):
        if budget is not None and budget.expired:
            break
        origin = best[0]
        found = anneal_from(problem, origin, seed=seed * _RUNS + run, moves=max(1, moves // _RUNS), budget=budget)
        if found[1] < best[1]:
            best = found
    return best


def anneal_from(
    problem: StageProblem, start: StageAssignment, *, seed: int, moves: int, budget: Budget | None = None
) -> tuple[StageAssignment, Value]:
    """Return the best assignment that annealing from `start` leads to, sliced anew; never worse than `start`.

    For `memory` the energy is the parameter bytes of a stage; the other levels come in by the final slicing.
    """
    piped = problem.objective == "pipeline"
    forbidden = np.where(np.isfinite(problem.work_s), problem.param_bytes[None, :], np.inf)
    work = problem.work_s if piped else forbidden
    free = np.zeros_like(problem.in_s)
    in_s, out_s = (problem.in_s, problem.out_s) if piped else (free, free)
    overflow = problem.overflow_s_per_byte if piped else np.zeros(problem.num_classes)
    best, value = start, evaluate(problem, start)
    rounds = max(1, -(-moves // _CHUNK))
    ratio = (_COLD / _HOT) ** (1.0 / rounds)
    current = start
    rng = np.random.default_rng(seed)
    for i in range(rounds):
        if budget is not None and budget.expired:
            break
        hot = _HOT * ratio**i
        stage = anneal_stages(
            rng,
            -(-moves // rounds),
            hot,
            hot * ratio,
            current.stage,
            current.classes,
            work,
            problem.param_bytes,
            problem.cache_bytes,
            problem.memory_bytes,
            overflow,
            in_s,
            out_s,
            problem.out_indptr,
            problem.out_tensor,
            problem.in_indptr,
            problem.in_tensor,
            problem.tensor_src,
            problem.tensor_indptr,
            problem.tensor_dst,
            problem.succ_indptr,
            problem.succ,
            problem.pred_indptr,
            problem.pred,
        )
        current = StageAssignment(stage, current.classes)
        found = reslice(problem, current, budget)
        if found[1] < value:
            best, value = found
    return best, value


def reslice(
    problem: StageProblem, assignment: StageAssignment, budget: Budget | None = None
) -> tuple[StageAssignment, Value]:
    """Slice the order that an assignment induces (by stage, then by position); never worse than the assignment.

    Parameters
    ----------
    problem, assignment
        The problem, and a monotone assignment of it.
    budget
        When to stop slicing.
    """
    position = np.empty(problem.num_nodes, np.int64)
    position[problem.order] = np.arange(problem.num_nodes)
    found = slice_order(problem, np.lexsort((position, assignment.stage)), budget=budget)
    value = evaluate(problem, assignment)
    return found if found is not None and found[1] < value else (assignment, value)
