"""Heuristics that give full, feasible stage schedules, by name.

- `slicing`: orders of the ops cut into stages, random ones and BRKGA's (MTPP, Algorithms 1 to 5).
- `filling`: stages filled one after another up to a trial load; the start of `auto`.
- `beam`: a beam search over filled stages; the best start within a second.
- `excess`: annealing by the excess over a trial load, of whole rows and of split runs.
- `activations`: slicing where tensors in flight count, for training and activation memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlinit.heuristics.stages.annealing import anneal
from rlinit.heuristics.stages.beam.search import beam
from rlinit.heuristics.stages.filling.search import fill
from rlinit.heuristics.stages.slicing.orders import Found, StageHeuristic, brkga, natural, random_orders

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
