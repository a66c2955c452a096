"""Published heuristics that give full, feasible placements, by name."""

from __future__ import annotations

from collections.abc import Mapping

from rlinit.heuristics.placement.assembly import PlacementHeuristic
from rlinit.heuristics.placement.favourites import m_sct
from rlinit.heuristics.placement.list_scheduling import best_device, greedy, heft, minimum_execution_time
from rlinit.heuristics.placement.related import getf
from rlinit.heuristics.placement.search import anneal, evolve, tabu
from rlinit.heuristics.placement.segments import segments
from rlinit.heuristics.placement.topological import m_etf, m_topo

__all__ = ["PLACEMENT_HEURISTICS", "PlacementHeuristic"]

PLACEMENT_HEURISTICS: Mapping[str, PlacementHeuristic] = {
    "best-device": best_device,
    "met": minimum_execution_time,
    "greedy": greedy,
    "heft": heft,
    "m-topo": m_topo,
    "m-etf": m_etf,
    "m-sct": m_sct,
    "getf": getf,
    "sa": anneal,
    "ea": evolve,
    "tabu": tabu,
    "segments": segments,
}
"""name -> call(problem, seed=, evaluations=, budget=) -> placement, or None where it finds no feasible one."""
