"""The chain of segments and what joins it to the relaxation: bounds at all times, copies of a segment searched once."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.time_windows import possible_batches, shard_windows
from rlinit.exact.placements.bounds.chain import ChainBound
from rlinit.exact.placements.bounds.registry import JoinedBound
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import Transfers
from tests.exact.placements.split.cases import make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9


def _copies(seed: int, copies: int, transfers: Transfers) -> PlacementProblem:
    """Return copies of one block of two branches, joined by single ops; equal times in all copies."""
    rng = np.random.default_rng(seed)
    scale = (1.0, 1e-9, 1e12)[seed % 3]
    block = rng.integers(1, 5, (3, 2)) * scale
    times = np.concatenate([block[2:], *[block] * copies])
    edges = []
    for k in range(copies):
        join = 3 * k
        edges += [(join, join + 1), (join, join + 2), (join + 1, join + 3), (join + 2, join + 3)]
    pace = rng.uniform(0.0, 2.0, (2, 2)) * scale
    np.fill_diagonal(pace, 0.0)
    return make_problem(times.astype(float), edges, s_per_byte=pace, transfers=transfers)


@pytest.mark.parametrize("transfers", ["parallel", "exclusive"])
def test_copies_of_a_segment_are_searched_once(transfers: Transfers) -> None:
    """Two copies share their searches, and the bound stays below the optimum and reaches it where all is separated."""
    reached = 0
    for seed in range(8):
        problem = _copies(seed, 2, transfers)
        best = brute_force_placement(problem)
        for upper in (np.inf, best * 1.2):
            window = shard_windows(problem, upper, possible_batches(problem))
            assert window is not None
            chain = ChainBound(problem, window, [0, 3, 6], upper)
            assert chain.segments[1] is chain.segments[2] or upper < np.inf
            last = 0.0
            for _ in range(4):
                bound = chain.run(2_000, Budget())
                assert last <= bound <= best * CLOSE, seed
                last = bound
        reached += last >= best * (1.0 - 3e-4)
    assert reached > 4 or transfers != "parallel"


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_continued_bounds_stay_below_the_optimum(transfers: Transfers) -> None:
    """Turns of the relaxation and the chain never prove more than brute force finds, and never less than before."""
    for seed in range(25):
        problem = random_placement_problem(
            seed,
            4 + seed % 2,
            2,
            transfers=transfers,
            density=(0.3, 0.7)[seed % 2],
            scale=(1.0, 1e-9, 1e12)[seed % 3],
            memory_fraction=(np.inf, 0.6)[seed // 2 % 2],
            group_fraction=(0.0, 0.4)[seed // 3 % 2],
            integer=seed % 4 == 0,
        )
        best = brute_force_placement(problem)
        if not np.isfinite(best):
            continue
        for upper in (best, best * 1.3):
            joined, last = JoinedBound(problem, upper, Budget()), 0.0
            for seconds in (np.inf, 0.05, 0.05):
                bound = joined.run(Budget(seconds if seconds < np.inf else None))
                assert last <= bound <= best * CLOSE, seed
                last = bound
