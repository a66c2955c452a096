"""The relaxation goes on from the rows of another one, and what it proves holds."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import latest_end, possible_batches, shard_windows
from rlinit.exact.placements.bounds.lp_relaxation import CutPool, PlacementLP
from rlinit.exact.placements.bounds.registry import JoinedBound
from tests.placement_cases import brute_force_placement, random_placement_problem


def test_rows_that_are_taken_over_prove_at_once_what_took_rounds() -> None:
    """One solution with the rows of another relaxation proves as much as that did; without them most prove less."""
    behind = 0
    for seed in range(6):
        problem = random_placement_problem(seed, 20, 3, transfer=1.0, density=0.15)
        window = shard_windows(problem, np.inf, possible_batches(problem))
        assert window is not None
        reach, pool = reachability(problem.order, problem.succ_indptr, problem.succ), CutPool()
        horizon = latest_end(problem, window.allowed)
        first = PlacementLP(problem, window, horizon, reach, pool)
        bound = 0.0
        for _ in range(8):
            bound = first.solve(np.inf)
            first.forget_slack()
            if first.separate(Budget()) == 0:
                break
        again = PlacementLP(problem, window, horizon, reach, pool, like=first).solve(np.inf)
        assert again >= bound * (1.0 - 1e-6)
        behind += PlacementLP(problem, window, horizon, reach, pool).solve(np.inf) < bound * (1.0 - 1e-4)
    assert behind >= 3


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_turns_never_prove_more_than_the_least_makespan(scale: float) -> None:
    """Turn after turn the bound does not fall, and is no more than brute force finds."""
    for seed in range(6):
        problem = random_placement_problem(seed, 5, 2 + seed % 2, scale=scale, group_fraction=0.3 * (seed % 2))
        least = brute_force_placement(problem)
        joined, before = JoinedBound(problem, np.inf, Budget()), 0.0
        for _ in range(3):
            bound = joined.run(Budget())
            assert before <= bound <= least * (1.0 + 1e-9), seed
            before = bound
