"""Bounds from blocks of stages against enumeration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.blocks import guess_bound
from rlinit.exact.stages.milp.memory import solve_memory_milp
from rlinit.exact.stages.milp.pipeline import pipeline_lp_bound, solve_pipeline_milp
from rlinit.stages.problem import StageProblem, average_work, stage_cost
from tests.draws import draws
from tests.exact.stages.cases import all_in_stage, any_problem, with_magnitudes
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem

seeds = st.integers(0, 2**32 - 1)
three_superblock_bound = partial(guess_bound, only_heavy=True)


def _cheapest_heavy_convex_set(problem: StageProblem) -> float:
    """Return the cheapest convex set with at least the average work, over sets and classes, by enumeration."""
    least, work = average_work(problem), problem.work_s.min(axis=0)
    best = np.inf
    for stage in monotone_assignments(problem):
        member = stage == 1
        if work[member].sum() >= least * (1 - 1e-9):
            best = min([best, *(stage_cost(problem, member, c) for c in np.unique(problem.stage_class).tolist())])
    return best


@settings(max_examples=draws(40), deadline=None)
@given(seeds)
def test_hierarchy_of_bounds(seed: int) -> None:
    """Simple <= three superblocks <= guess <= optimum, on every kind of problem."""
    problem = any_problem(seed, "pipeline")
    best = brute_force_pipeline(problem)
    three = three_superblock_bound(problem, budget=Budget(30))
    guess = guess_bound(problem, budget=Budget(30))
    assert average_work(problem) <= three * (1 + 1e-12)
    assert three <= guess * (1 + 1e-6)
    assert guess <= best * (1 + 1e-12)


@settings(max_examples=draws(12), deadline=None)
@given(seeds)
def test_three_superblocks_find_the_cheapest_heavy_set(seed: int) -> None:
    """At k = 3 every convex set is a middle stage, so enumeration must give the same minimum."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, 6, 3, num_classes=int(rng.integers(1, 3)), cache_fraction=0.7, tensors_per_node=2, zero_fraction=0.1
    )
    expected = _cheapest_heavy_convex_set(problem)
    assert three_superblock_bound(problem, budget=Budget(30)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_guess_is_exact_at_two_equal_stages(seed: int) -> None:
    """At k = 2 the guessing MILP is the exact one where a stage's cost has no other terms."""
    problem = random_problem(seed, 7, 2, zero_fraction=0.0)
    bound = guess_bound(problem, budget=Budget(30))
    assert bound == pytest.approx(brute_force_pipeline(problem), rel=1e-6)


def test_without_time_the_bound_is_the_simple_one() -> None:
    """An expired budget still gives Lemma 3.3."""
    problem = random_problem(4, 7, 3)
    for bound in (three_superblock_bound, guess_bound):
        assert bound(problem, budget=Budget(0.0)) == average_work(problem)


def test_node_that_may_run_nowhere() -> None:
    """A node forbidden on every class makes the bound infinite."""
    problem = random_problem(4, 5, 3)
    problem.work_s[:, 2] = np.inf
    assert three_superblock_bound(problem, budget=Budget(5)) == np.inf
    assert guess_bound(problem, budget=Budget(5)) == np.inf


def test_zero_work() -> None:
    """Where nothing costs anything the bound is 0."""
    problem = random_problem(4, 5, 3, scale=0.0)
    assert guess_bound(problem, budget=Budget(5)) == 0.0


def _tiny_work_beside_transfers() -> StageProblem:
    """Return three ops of a nanosecond whose tensors take seconds, on three unlike devices."""
    return StageProblem(
        objective="pipeline",
        work_s=np.full((3, 3), 1e-9),
        param_bytes=np.array([3.0, 2.0, 1.0]),
        tensor_src=np.array([1, 2]),
        tensor_indptr=np.array([0, 1, 2]),
        tensor_dst=np.array([0, 0]),
        tensor_bytes=np.array([38.0, 15.0]),
        in_s=np.array([38.0, 15.0]) / np.array([[1e-3], [6.3], [1.0]]),
        out_s=np.array([38.0, 15.0]) / np.array([[1e-3], [6.3], [1.0]]),
        stage_class=np.array([0, 1, 2]),
        memory_bytes=np.array([np.inf, np.inf, 3.2]),
        cache_bytes=np.array([5.0, 0.0, np.inf]),
        overflow_s_per_byte=1.0 / np.array([1e-3, 6.3, 1.0]),
        order=np.array([1, 2, 0]),
    )


@pytest.mark.parametrize("bound", [three_superblock_bound, guess_bound])
def test_work_that_is_tiny_beside_transfers_gives_no_false_bound(bound: Callable[..., float]) -> None:
    """Scaled by work alone the transfers were 1e13 units and the bound 2.5397, where the optimum is 0.9524."""
    problem = _tiny_work_beside_transfers()
    best = brute_force_pipeline(problem)
    assert best == pytest.approx(0.952381, rel=1e-5)
    assert bound(problem, budget=Budget(30)) <= best
    assert bound(problem, budget=Budget(30), upper=best) <= best


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_no_bound_by_a_program_is_false_where_magnitudes_differ(seed: int) -> None:
    """Costs of nodes, tensors and overflow that differ by factors of up to 1e15 in any direction."""
    problem = with_magnitudes(any_problem(seed, "pipeline", 5), seed)
    best = brute_force_pipeline(problem)
    if not np.isfinite(best):
        return
    for upper in (np.inf, best, 3.0 * best):
        for proven in (
            three_superblock_bound(problem, budget=Budget(30), upper=upper),
            guess_bound(problem, budget=Budget(30), upper=upper),
        ):
            assert proven <= best * (1 + 1e-12)
    assert pipeline_lp_bound(problem, budget=Budget(30)) <= best * (1 + 1e-12)
    assert solve_pipeline_milp(problem, budget=Budget(30)).bound[0] <= best * (1 + 1e-12)


def test_programs_that_are_not_written_in_time_prove_the_average() -> None:
    """Where the budget has ended before the model is written, what is left is the bound that needs no search."""
    problem = random_problem(0, 40, 4, num_classes=2)
    start = all_in_stage(problem, 0)
    average = average_work(problem)
    ended = Budget()
    ended.cancel()
    for proven in (
        three_superblock_bound(problem, budget=ended),
        guess_bound(problem, budget=ended),
        pipeline_lp_bound(problem, budget=ended),
    ):
        assert proven == average
    result = solve_pipeline_milp(problem, budget=ended, start=start)
    assert result.assignment is not None
    assert np.array_equal(result.assignment.stage, start.stage)
    assert (result.status, result.bound) == ("feasible", (average,))
    memory = random_problem(0, 40, 4, objective="memory")
    assert solve_memory_milp(memory, budget=ended, start=all_in_stage(memory, 0)).status == "feasible"
