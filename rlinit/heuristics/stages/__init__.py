"""Heuristics that give full, feasible stage schedules, by name."""

from __future__ import annotations

from collections.abc import Mapping

from rlinit.heuristics.stages.annealing import anneal
from rlinit.heuristics.stages.beam import beam
from rlinit.heuristics.stages.filling import fill
from rlinit.heuristics.stages.orders import Found, StageHeuristic, brkga, natural, random_orders

__all__ = ["STAGE_HEURISTICS", "Found", "StageHeuristic", "anneal", "beam", "fill"]

STAGE_HEURISTICS: Mapping[str, StageHeuristic] = {
    "natural": natural,
    "random": random_orders,
    "brkga": brkga,
    "anneal": anneal,
    "fill": fill,
    "beam": beam,
}
"""name -> call(problem, seed=, evaluations=, budget=) -> (assignment, value), or None where no slice is allowed."""
