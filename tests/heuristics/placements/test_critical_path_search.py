"""Moves of critical ops, against the plain timeline."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.list_scheduling.common import device_memory
from rlinit.heuristics.placements.local_search.critical_path_search import new_critical_search, tabu_steps
from rlinit.heuristics.placements.local_search.window_passes import search_critical_paths
from rlinit.placements.problem import Placement
from rlinit.placements.timeline import held_bytes, makespan, timeline, timeline_arrays
from tests.placement_cases import brute_force_placement, random_placement, random_placement_problem

CASES = [
    {"integer": True},
    {"identical": True, "density": 0.15},
    {"memory_fraction": 0.7},
    {"group_fraction": 0.3},
    {"zero_fraction": 0.5, "scale": 1e-9},
    {"missing_links": 0.3, "scale": 1e9},
    {"group_fraction": 0.4, "missing_links": 0.2},
    {"group_fraction": 0.3, "memory_fraction": 0.7},
]


@pytest.mark.parametrize("seed", range(42))
def test_times_stay_those_of_the_timeline(seed: int) -> None:
    """However ops move, ends and makespan are those of the plain timeline, memory is kept, and lines hold all ops."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(seed, 15, 3, **CASES[seed % len(CASES)])  # type: ignore[arg-type]
    start = random_placement(problem, rng)
    if not makespan(problem, start) < np.inf:
        pytest.skip("the random placement is not feasible")
    a, memory = timeline_arrays(problem), device_memory(problem)
    s = new_critical_search(a, start.sequence // 3, start.device[:, 0], held_bytes(problem, start.device))
    for _ in range(40):
        tabu_steps(rng, a, memory, s, 1, 4, 3)
        now = Placement(s.device[:, None].copy(), s.sequence * 3 + s.device[s.sequence])
        ran = timeline(problem, now)
        assert s.end.tolist() == ran.end_s[np.arange(15), s.device].tolist()
        assert s.value[0] == ran.makespan_s == makespan(problem, now)
        assert s.held == pytest.approx(held_bytes(problem, now.device))
        assert sorted(v for i in range(3) for v in s.line[i, : s.size[i]]) == list(range(15))
        back = new_critical_search(a, s.sequence, s.device, s.held)
        assert s.tail == pytest.approx(back.tail, rel=1e-12, abs=0.0)
        assert (s.spot == back.spot).all()
    best = Placement(s.best_device[:, None].copy(), s.best_sequence * 3 + s.best_device[s.best_sequence])
    assert makespan(problem, best) == s.value[1] <= makespan(problem, start)


def test_it_finds_optima_of_small_problems() -> None:
    """From a random schedule it comes to the optimum of most problems of six ops."""
    found = 0
    for seed in range(10):
        problem = random_placement_problem(seed, 6, 2, forbidden_fraction=0.0)
        rng = np.random.default_rng(seed)
        best, work = search_critical_paths(problem, random_placement(problem, rng), rng, 300, None)
        optimum = brute_force_placement(problem)
        assert makespan(problem, best) >= optimum * (1 - 1e-12)
        assert work > 0
        found += makespan(problem, best) <= optimum * (1 + 1e-9)
    assert found >= 8
