"""Annealing over the stage vector, each run finished by slicing the order it induces."""

from __future__ import annotations

import numpy as np

from rlinit.arrays import inverse_of
from rlinit.budget import Budget
from rlinit.heuristics.stages.excess_annealing import MOVES_PER_LOAD, ExcessAnnealing
from rlinit.heuristics.stages.filling import bisect_from
from rlinit.heuristics.stages.orders import Found, natural, random_orders
from rlinit.kernels.stages.annealing import anneal_moves, annealing_state
from rlinit.kernels.stages.arrays import CostArrays
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate
from rlinit.stages.slicing import slice_order

_HOT, _COLD = 0.03, 1e-4
"""First and last temperature, relative to the 12-norm of the stage costs."""

_RUNS = 4
_ROUND = 250_000
"""Moves at most between two slicings of the order that annealing has come to."""

_CHUNK = 10_000
"""Moves between looks at the budget: 10 to 50 ms."""


def anneal(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Anneal single-node moves from sliced orders, four runs, and keep the best; `evaluations` are moves.

    By default 4 runs of 2,000 moves a node, at most a million each. For `pipeline` as many of excess follow.

    For the parameters see `StageHeuristic.__call__`.
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
    if problem.objective == "pipeline" and (budget is None or not budget.expired):
        loads = max(1, moves // MOVES_PER_LOAD)
        return bisect_from(ExcessAnnealing, problem, best[0], seed=seed, loads=loads, budget=budget) or best
    return best


def anneal_from(
    problem: StageProblem, start: StageAssignment, *, seed: int, moves: int, budget: Budget | None = None
) -> tuple[StageAssignment, Value]:
    """Return the best assignment that annealing from `start` leads to, sliced anew; never worse than `start`.

    For `memory` the energy is the parameter bytes of a stage; the other levels come in by the final slicing.

    Parameters
    ----------
    problem, start
        The problem, and a monotone assignment of it.
    seed
        Seed of the moves.
    moves
        Moves to try, in rounds of at most `_ROUND`, each finished by slicing.
    budget
        When to stop; looked at every `_CHUNK` moves.
    """
    costs = _energy_costs(problem)
    best, value = start, evaluate(problem, start)
    rounds = max(1, -(-moves // _ROUND))
    ratio = (_COLD / _HOT) ** (1.0 / rounds)
    current = start
    rng = np.random.default_rng(seed)
    for i in range(rounds):
        if budget is not None and budget.expired:
            break
        current = _anneal_round(problem, costs, current, rng, -(-moves // rounds), _HOT * ratio**i, ratio, budget)
        found = reslice(problem, current, budget)
        if found[1] < value:
            best, value = found
    return best, value


def _energy_costs(problem: StageProblem) -> CostArrays:
    """Return the costs that make up the energy: those of the objective, or parameter bytes."""
    costs = problem.cost_arrays
    if problem.objective == "pipeline":
        return costs
    free = np.zeros_like(problem.in_s)
    held = np.where(np.isfinite(problem.work_s), problem.param_bytes[None, :], np.inf)
    return costs._replace(work=held, in_s=free, out_s=free, overflow=np.zeros(problem.num_classes))


def _anneal_round(
    problem: StageProblem,
    costs: CostArrays,
    start: StageAssignment,
    rng: np.random.Generator,
    moves: int,
    hot: float,
    ratio: float,
    budget: Budget | None,
) -> StageAssignment:
    """Return the best assignment met while the temperature falls from `hot` by `ratio`."""
    tensors, precedence = problem.tensor_arrays, problem.precedence
    exchange = problem.objective == "pipeline" and problem.num_classes > 1
    state = annealing_state(start.stage, start.classes, hot, costs, tensors)
    cooling = ((hot * ratio) / hot) ** (1.0 / max(moves, 1))
    for first in range(0, moves, _CHUNK):
        anneal_moves(rng, first, min(first + _CHUNK, moves), cooling, costs, tensors, precedence, exchange, state)
        if budget is not None and budget.expired:
            break
    return StageAssignment(np.asarray(state.best), np.asarray(state.best_classes))


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
    position = inverse_of(problem.order)
    found = slice_order(problem, np.lexsort((position, assignment.stage)), budget=budget)
    value = evaluate(problem, assignment)
    return found if found is not None and found[1] < value else (assignment, value)
