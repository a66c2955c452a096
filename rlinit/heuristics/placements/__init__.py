"""Heuristics that give full, feasible placements, by name.

- `list_scheduling`: HEFT, greedy, MET; what the others place ops with.
- `published`: Baechi's m-TOPO, m-ETF and m-SCT, and GETF, the rivals in Moirai.
- `mapping_search`: annealing and evolution of mappings, the rivals in DIVIML.
- `contiguous`: cuts of one order into runs.
- `local_search`: what `auto` spends most of its time in.
- `memory`: starts and repairs where memory binds.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlinit.heuristics.placements.contiguous.search import segments
from rlinit.heuristics.placements.data_parallel import data_parallel
from rlinit.heuristics.placements.list_scheduling.common import PlacementHeuristic
from rlinit.heuristics.placements.list_scheduling.heuristics import best_device, greedy, heft, minimum_execution_time
from rlinit.heuristics.placements.mapping_search.search import anneal, evolve
from rlinit.heuristics.placements.published.baechi import m_etf, m_topo
from rlinit.heuristics.placements.published.getf import getf
from rlinit.heuristics.placements.published.m_sct import m_sct

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
}
"""name -> call(problem, seed=, evaluations=, budget=) -> placement, or None where it finds no feasible one."""
