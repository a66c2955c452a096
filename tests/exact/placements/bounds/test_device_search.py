"""The search over devices: its ceilings rise from any bound, and what it proves holds."""

from __future__ import annotations

import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.bounds.device_search import DeviceSearch
from tests.placement_cases import brute_force_placement, random_placement_problem


@pytest.mark.parametrize("seed", range(8))
def test_ceilings_rise_from_nothing(seed: int) -> None:
    """From a bound of 0 the search arrives within a few hundred nodes, and never above the optimum."""
    problem = random_placement_problem(seed, 4, 2)
    best = brute_force_placement(problem)
    search = DeviceSearch(problem, upper=best)
    search.ceiling = search._next_ceiling()
    assert 0.0 < search.ceiling <= best
    bound = search.run(2_000, Budget(60))
    assert bound <= best * (1 + 1e-12)
    assert search.nodes < 500
