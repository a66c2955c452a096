"""Bounds under a trial bottleneck: never above the optimum, and better than without the trial where they should be."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.exact.stages.bounds.bin_packing import bin_packing_bound, stages_needed
from rlinit.exact.stages.bounds.simple import load_balance
from rlinit.exact.stages.bounds.trial_load import trial_load_bound
from rlinit.stages.problem import StageProblem
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


def bins(sizes: list[float]) -> int:
    """Return the fewest bins of size 1, by trying all assignments."""
    for count in range(1, len(sizes) + 1):
        for where in itertools.product(range(count), repeat=len(sizes)):
            if np.bincount(where, weights=sizes, minlength=count).max() <= 1 + 1e-12:
                return count
    return len(sizes)


@settings(max_examples=draws(150), deadline=None)
@given(parts=st.lists(st.integers(0, 24), min_size=1, max_size=6), unit=st.sampled_from([24, 20, 30]))
def test_packing_never_asks_for_too_many_bins(parts: list[int], unit: int) -> None:
    """Dual feasible functions stay below the optimum, at fractions where rounding decides as well."""
    sizes = [min(part / unit, 1.0) for part in parts]
    assert stages_needed(np.array(sizes), len(sizes)) <= bins(sizes)


@pytest.mark.parametrize(
    ("sizes", "needed"),
    [([0.51] * 3, 3), ([0.6, 0.6, 0.45, 0.45, 0.45], 4), ([0.34] * 5, 3), ([0.26] * 7, 3), ([0.5] * 4, 2)],
)
def test_packing_sees_what_sums_do_not(sizes: list[float], needed: int) -> None:
    """Things over a half, over a third and over a quarter count as what they take away."""
    assert stages_needed(np.array(sizes), len(sizes)) == needed == bins(sizes)


@settings(max_examples=draws(80), deadline=None)
@given(problem=small_problems())
def test_never_above_the_optimum(problem: StageProblem) -> None:
    """Over every feature and magnitude, with and without a schedule's value to stop at."""
    if problem.objective == "memory":
        return
    optimum = brute_force_pipeline(problem)
    for upper in (np.inf, optimum):
        assert bin_packing_bound(problem, upper) <= optimum * (1 + 1e-9)
        assert trial_load_bound(problem, upper=upper) <= optimum * (1 + 1e-9)


@settings(max_examples=draws(60), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_never_above_the_optimum_of_unlike_devices(seed: int) -> None:
    """Times drawn apart for every device, many forbidden, ties in integers."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 6, 3, num_classes=3, density=0.2, io=0.0)
    work = rng.integers(1, 9, (3, 6)).astype(np.float64)
    work[rng.random((3, 6)) < 0.2] = np.inf
    problem = dataclasses.replace(problem, work_s=work)
    optimum = brute_force_pipeline(problem)
    assert bin_packing_bound(problem, np.inf) <= optimum * (1 + 1e-9)
    bound = trial_load_bound(problem, upper=np.inf)
    assert bound <= optimum * (1 + 1e-9)
    assert bound >= load_balance(problem).bound


def test_the_trial_forbids_what_balancing_would_use() -> None:
    """Two ops that are quick on one device alone: half an op on the slow one is not an assignment."""
    problem = random_problem(0, 2, 2, num_classes=2, density=0.0, io=0.0)
    problem = dataclasses.replace(problem, work_s=np.array([[4.0, 4.0], [9.0, 9.0]]))
    assert load_balance(problem).bound < 6
    assert trial_load_bound(problem, upper=np.inf) == pytest.approx(8.0, rel=1e-6)
    assert brute_force_pipeline(problem) == 8.0
