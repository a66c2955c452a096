"""Annealing of excess as a heuristic of its own, from the natural order sliced."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rlinit.budget import Budget
from rlinit.heuristics.stages.excess.annealing import EFFORT_LOADS, MOVES_PER_LOAD, ExcessAnnealing
from rlinit.heuristics.stages.filling.search import bisect_from, sliced
from rlinit.heuristics.stages.slicing.orders import Found, staged_order
from rlinit.stages.problem import StageProblem, byte_costs, evaluate
from rlinit.stages.slicing import slice_order

_MOVES_A_NODE, _FEWEST, _MOST = 16_000, 160_000, 8_000_000
"""Moves by default: for each node, and at least and at most in all."""

_ATTEMPTS = 20
"""Bottlenecks that even a short run tries."""


def anneal(problem: StageProblem, *, seed: int, evaluations: int | None = None, budget: Budget | None = None) -> Found:
    """Anneal what stages cost beyond a bottleneck that is bisected; `evaluations` are moves.

    Never worse than slicing the natural order. By default 16,000 moves a node, 8 million at most. For `memory` the
    largest parameter bytes of a stage are annealed, and the order that this ends with is sliced for all levels.

    For the parameters see `StageHeuristic.__call__`.
    """
    start = sliced(problem, seed, budget)
    if start is None:
        return None
    moves = evaluations or min(_MOST, max(_FEWEST, _MOVES_A_NODE * problem.num_nodes))
    loads, of_bytes = max(1, moves // MOVES_PER_LOAD), problem.objective == "memory"
    searcher = partial(ExcessAnnealing, effort_loads=min(EFFORT_LOADS, max(1, loads // _ATTEMPTS)))
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
