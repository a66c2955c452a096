"""Published heuristics that give full, feasible placements, by name."""

from __future__ import annotations

from collections.abc import Mapping

from rlinit.heuristics.placements.baechi import m_etf, m_topo
from rlinit.heuristics.placements.balance import balance
from rlinit.heuristics.placements.common import PlacementHeuristic
from rlinit.heuristics.placements.contiguous import segments
from rlinit.heuristics.placements.data_parallel import data_parallel
from rlinit.heuristics.placements.getf import getf
from rlinit.heuristics.placements.list_scheduling import best_device, greedy, heft, minimum_execution_time
from rlinit.heuristics.placements.m_sct import m_sct
from rlinit.heuristics.placements.mapping_search import anneal, evolve

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
    "segments": segments,
    "data-parallel": data_parallel,
    "balance": balance,
}
"""name -> call(problem, seed=, evaluations=, budget=) -> placement, or None where it finds no feasible one."""
