"""Bounds of placements: never above a feasible placement, and where they must be sharp."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from rlinit.exact.placement_bounds import PLACEMENT_BOUNDS
from rlinit.placement import PlacementProblem, Transfers
from tests.placements import brute_force_placement, random_placement_problem

BOUNDS = list(PLACEMENT_BOUNDS)
CLOSE = 1.0 + 1e-9
WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")


@functools.cache
def _tiny(seed: int) -> tuple[PlacementProblem, float]:
    """Return a tiny problem of some kind, by its seed, and its least makespan."""
    shards = 2 if seed % 4 == 3 else 1
    problem = random_placement_problem(
        seed,
        num_ops=3 if shards == 2 else 4 + seed % 2,
        num_devices=2 if shards == 2 or seed % 2 else 3,
        shards=shards,
        transfers=WAYS[seed // 4 % 3],
        density=(0.0, 0.35, 0.7)[seed // 12 % 3],
        scale=(1.0, 1e-9, 1e12)[seed % 5 % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 3 % 4],
        memory_fraction=(np.inf, 0.7, 0.5, 0.35)[seed % 7 % 4],
        group_fraction=(0.0, 0.4)[seed // 2 % 2],
        missing_links=(0.0, 0.3)[seed // 5 % 2] if WAYS[seed // 4 % 3] != "blocking" else 0.0,
        integer=seed % 3 == 0,
        identical=seed % 11 == 0,
    )
    return problem, brute_force_placement(problem)


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_is_above_the_least_makespan(name: str) -> None:
    """On tiny problems of every kind, no bound exceeds the makespan that brute force finds."""
    for seed in range(240):
        problem, least = _tiny(seed)
        bound = PLACEMENT_BOUNDS[name](problem)
        assert 0.0 <= bound <= least * CLOSE, (seed, bound, least)


@pytest.mark.parametrize("name", BOUNDS)
def test_upper_is_not_exceeded_and_prunes_nothing_better(name: str) -> None:
    """With any upper value the bound is at most that, and at most the least makespan if that is smaller."""
    for seed in range(0, 240, 3):
        problem, least = _tiny(seed)
        if least == np.inf:
            continue
        for factor in (0.5, 1.0, 1.01, 1.5):
            upper = least * factor
            bound = PLACEMENT_BOUNDS[name](problem, upper=upper)
            assert bound <= min(upper, least * CLOSE), (seed, factor, bound, least)
