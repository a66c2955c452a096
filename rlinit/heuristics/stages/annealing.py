"""Annealing of excess as a heuristic of its own, from the natural order sliced."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rlinit.budget import Budget
from rlinit.heuristics.stages.excess.annealing import ExcessAnnealing, default_moves, effort_of
from rlinit.heuristics.stages.filling.search import bisect_from, sliced
from rlinit.heuristics.stages.slicing.orders import Found, staged_order
from rlinit.stages.problem import StageProblem, byte_costs, evaluate
from rlinit.stages.slicing import slice_order


def anneal(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Anneal what stages cost beyond a bottleneck that is bisected; `evaluations` are moves.

    Never worse than slicing the natural order. By default `default_moves`. For `memory` the
    largest parameter bytes of a stage are annealed, and the order that this ends with is sliced for all levels.

    For the parameters see `StageHeuristic.__call__`.
    """
    start = sliced(problem, seed, budget)
    if start is None:
        return None
    moves = evaluations or default_moves(problem.num_nodes)
    loads, effort = effort_of(moves)
    of_bytes = problem.objective == "memory"
    searcher = partial(ExcessAnnealing, effort_loads=effort)
    annealed = _by_bytes(problem) if of_bytes else problem
    found = bisect_from(searcher, annealed, start, seed=seed, loads=loads, budget=budget)
    if found is not None and not of_bytes:
        return found
    best = start, evaluate(problem, start)
    again = found and slice_order(problem, staged_order(problem, found[0].stage), budget=budget)
    return again if again and again[1] < best[1] else best


def _by_bytes(problem: StageProblem) -> StageProblem:
    """Return the pipeline in which a stage costs its parameter bytes, and tensors nothing."""
    costs = byte_costs(problem)
    return replace(
        problem,
        objective="pipeline",
        work_s=costs.work,
        in_s=costs.in_s,
        out_s=costs.out_s,
        overflow_s_per_byte=costs.overflow,
    )
