"""Windows of one schedule in another."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlinit.heuristics.placements.window_passes import recombined
from rlinit.placements.problem import Placement
from rlinit.placements.timeline import makespan
from tests.placement_cases import random_placement, random_placement_problem


@pytest.mark.parametrize("seed", range(40))
def test_it_is_never_worse_than_its_base(seed: int) -> None:
    """What results is feasible and no worse than the base; with itself nothing changes."""
    rng = np.random.default_rng(seed)
    kinds = [{"integer": True}, {"memory_fraction": 0.7}, {"group_fraction": 0.3}, {"missing_links": 0.2}]
    problem = random_placement_problem(seed, 14, 3, **kinds[seed % 4])  # type: ignore[arg-type]
    base, other = random_placement(problem, rng), random_placement(problem, rng)
    if not max(makespan(problem, base), makespan(problem, other)) < np.inf:
        pytest.skip("a random placement is not feasible")
    found, work = recombined(problem, base, other)
    assert work > 0
    assert makespan(problem, found) <= makespan(problem, base)
    assert makespan(problem, recombined(problem, base, base)[0]) == makespan(problem, base)


def test_it_takes_the_better_half() -> None:
    """Of two schedules of a chain, each good in one half, the good halves are put together."""
    free = random_placement_problem(3, 12, 2, density=0.0, transfer=0.0, forbidden_fraction=0.0, zero_fraction=0.0)
    chain = np.column_stack([np.arange(11), np.arange(1, 12)])
    problem = dataclasses.replace(free, edges=chain, order=np.arange(12))
    best = problem.op_time_s.argmin(axis=1)
    order = problem.order
    mixed = []
    for good in (order[:6], order[6:]):
        device = 1 - best
        device[good] = best[good]
        mixed.append(Placement(device[:, None], order * 2 + device[order]))
    found, _ = recombined(problem, mixed[0], mixed[1])
    assert makespan(problem, found) < min(makespan(problem, one) for one in mixed)
