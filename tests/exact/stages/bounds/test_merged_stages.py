"""The merged-stages bound against enumeration."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.merged_stages import even_groups, merged_bound
from rlinit.exact.stages.pipeline_milp import average_work
from tests.draws import draws
from tests.exact.stages.cases import all_in_stage, any_problem
from tests.stage_cases import brute_force_pipeline, random_problem

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_bound_is_at_most_the_optimum(seed: int) -> None:
    """Any grouping, with or without a known value, bounds the optimum from below."""
    problem = any_problem(seed, "pipeline")
    best = brute_force_pipeline(problem)
    rng = np.random.default_rng(seed)
    k = problem.num_stages
    cuts = np.flatnonzero(rng.random(k - 1) < 0.5) + 1
    sizes = np.diff(np.concatenate([[0], cuts, [k]])).tolist()
    for upper in (None, best):
        bound = merged_bound(problem, sizes, budget=Budget(30), start=all_in_stage(problem, 0), upper=upper)
        assert average_work(problem) <= bound * (1 + 1e-12)
        assert bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_one_stage_a_group_is_the_exact_program(seed: int) -> None:
    """Without merging, and with one class, the bound is the optimum."""
    problem = random_problem(seed, 7, 3, cache_fraction=0.8, tensors_per_node=2)
    bound = merged_bound(problem, [1, 1, 1], budget=Budget(30))
    assert bound == pytest.approx(brute_force_pipeline(problem), rel=1e-6)


def test_merging_weakens_the_bound() -> None:
    """Refining a grouping never lowers the bound."""
    problem = random_problem(8, 7, 4, zero_fraction=0.0)
    bounds = [merged_bound(problem, sizes, budget=Budget(30)) for sizes in ([4], [2, 2], [1, 1, 2], [1, 1, 1, 1])]
    assert all(a <= b * (1 + 1e-6) for a, b in itertools.pairwise(bounds))
    assert bounds[1] > bounds[0]


def test_groups_share_their_memory_and_cache() -> None:
    """A group holds what its stages hold together: capacities that one stage could not meet do not raise the bound."""
    problem = random_problem(5, 7, 3, zero_fraction=0.0, cache_fraction=1.0)
    problem = dataclasses.replace(problem, memory_bytes=np.array([problem.param_bytes.sum() * 0.45]))
    best = brute_force_pipeline(problem)
    for sizes in ([3], [2, 1], [1, 2]):
        assert merged_bound(problem, sizes, budget=Budget(30)) <= best * (1 + 1e-12) < np.inf


def test_even_groups() -> None:
    """Sizes add up and differ by at most one."""
    assert even_groups(8, 3) == [3, 3, 2]
    assert even_groups(4, 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("sizes", [[], [2], [3, 0], [4, -1], [2, 2]])
def test_sizes_must_add_up(sizes: list[int]) -> None:
    """Sizes that are not a partition of the stages are an error."""
    with pytest.raises(ValueError, match="sizes"):
        merged_bound(random_problem(0, 5, 3), sizes, budget=Budget(5))
