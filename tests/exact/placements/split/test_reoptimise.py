"""Properties of solving subsequences of a schedule again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.split.reoptimise import resolve_blocks
from rlinit.exact.placements.split.search import transfer_times
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority
from tests.exact.placements.split.cases import any_placement_problem, brute_force, chain_of_blocks
from tests.placement_cases import random_placement_problem


def _resolve(problem: PlacementProblem, start: Placement, size: int, width: int = 64) -> tuple[float, int]:
    found, work = resolve_blocks(
        problem, transfer_times(problem), start, size=size, width=width, budget=Budget(), max_work=1 << 62
    )
    return makespan(problem, found), work


def _random_start(problem: PlacementProblem, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    device = rng.integers(0, problem.num_devices, problem.num_ops)[problem.group]
    return placement_from_priority(problem, device[:, None], rng.random(problem.num_ops))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(2, 5))
def test_never_worse_and_never_below_the_optimum(seed: int, memory: bool, size: int) -> None:
    """From any schedule that fits, what comes out fits, is no worse, and is no better than the optimum."""
    problem = any_placement_problem(seed, max_ops=7, memory=memory)
    start = _random_start(problem, seed)
    before = makespan(problem, start)
    if not before < np.inf:
        return
    after, _ = _resolve(problem, start, size)
    assert after <= before
    assert after >= brute_force(problem) * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_subsequence_of_everything_is_the_whole_problem(seed: int, memory: bool) -> None:
    """Where one subsequence holds all ops, and none of its states is dropped, the optimum is found."""
    problem = any_placement_problem(seed, max_ops=6, memory=memory)
    start = _random_start(problem, seed)
    if not makespan(problem, start) < np.inf:
        return
    after, _ = _resolve(problem, start, 8, 4096)
    assert after == pytest.approx(brute_force(problem), rel=1e-8)


def test_blocks_overlap_where_they_meet() -> None:
    """A block's end and the next one's beginning are improved together, and the result repeats."""
    problem = chain_of_blocks(5, num_blocks=6, block_ops=8, num_devices=3, channels=2)
    start = _random_start(problem, 0)
    first, second = (_resolve(problem, start, 12, 16) for _ in range(2))
    assert first == second
    assert first[0] < 0.7 * makespan(problem, start)
    assert _resolve(problem, start, 24)[0] <= makespan(problem, start)


def test_transfers_that_exclude_others_are_left_alone() -> None:
    """With links that take one transfer at a time nothing is changed."""
    problem = random_placement_problem(3, 6, 2, transfers="exclusive")
    start = _random_start(problem, 1)
    assert _resolve(problem, start, 4) == (makespan(problem, start), 0)
