"""Elementary bounds against brute force, and where they are known in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.anchored_cut import anchored_cut_bound
from rlinit.exact.stages.bounds.simple import load_balance, simple_bound
from rlinit.exact.stages.bounds.spectral import spectral_bound
from rlinit.stages.problem import StageProblem
from tests.draws import draws
from tests.stage_cases import brute_force_memory, brute_force_pipeline, random_problem


def _pipeline(seed: int) -> StageProblem:
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        int(rng.integers(1, 7)),
        int(rng.integers(1, 4)),
        num_classes=int(rng.integers(1, 4)),
        scale=10.0 ** rng.integers(-9, 13),
        cache_fraction=float(rng.choice([np.inf, 0.3, 0.9])),
        integer=bool(rng.random() < 0.5),
    )
    if rng.random() < 0.3:
        work = problem.work_s.copy()
        work[rng.random(work.shape) < 0.15] = np.inf
        problem = replace(problem, work_s=work)
    if rng.random() < 0.3:
        memory = problem.param_bytes.sum() * rng.uniform(0.4, 1.0, problem.num_classes)
        problem = replace(problem, memory_bytes=memory)
    return problem


@settings(deadline=None, max_examples=draws(150))
@given(st.integers(0, 10**6))
def test_pipeline_bound_is_at_most_the_optimum(seed: int) -> None:
    """No assignment beats the bound, whatever the classes, overflow, capacities and forbidden ops."""
    problem = _pipeline(seed)
    assert simple_bound(problem)[0] <= brute_force_pipeline(problem) * (1 + 1e-9)


@settings(deadline=None, max_examples=draws(150))
@given(st.integers(0, 10**6))
def test_memory_bound_is_lexicographically_at_most_the_optimum(seed: int) -> None:
    """The peak and the off-cache total are each at most the optimum's."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        int(rng.integers(1, 7)),
        int(rng.integers(1, 4)),
        objective="memory",
        num_classes=int(rng.integers(1, 3)),
        scale=1.0 if seed % 2 else 1e9,
        cache_fraction=float(rng.choice([np.inf, 0.4, 1.0])),
        integer=bool(rng.random() < 0.7),
    )
    if rng.random() < 0.4:
        memory = problem.param_bytes.sum() * rng.uniform(0.3, 1.0, problem.num_classes)
        problem = replace(problem, memory_bytes=memory)
    optimum, bound = brute_force_memory(problem), simple_bound(problem)
    assert bound[0] <= optimum[0] * (1 + 1e-9)
    assert bound[1] <= optimum[1] * (1 + 1e-9)
    assert bound[2] <= optimum[2]


def test_equal_stages_give_the_published_formula() -> None:
    """Without overflow the bound is max(largest work, total work / k), with fewer or more stages than nodes."""
    for k in (1, 2, 5, 40):
        problem = random_problem(3, 9, k)
        work = problem.work_s[0]
        assert simple_bound(problem)[0] == pytest.approx(max(work.max(), work.sum() / k), rel=1e-8)


def test_unequal_stages_share_the_work_by_speed() -> None:
    """A class twice as fast takes twice the work: 3 units of work on speeds 1 and 2 take 1 second."""
    problem = random_problem(0, 6, 2, num_classes=2)
    problem = replace(problem, work_s=np.array([np.full(6, 0.5), np.full(6, 0.25)]))
    assert load_balance(problem).bound == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_balancing_without_time_is_a_weaker_bound(seed: int) -> None:
    """Multiplicative weights never prove more than the program does, and mostly nearly as much."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 5))
    problem = random_problem(seed, 40, 6, num_classes=classes, cache_fraction=float(rng.choice([np.inf, 0.1])))
    work = problem.work_s * 10.0 ** rng.uniform(-1, 1, (classes, 1)) * (0.5 + rng.random((classes, 40)))
    problem = replace(problem, work_s=np.where(rng.random(work.shape) < 0.1, np.inf, work))
    quick, best = load_balance(problem, Budget(0.0)).bound, load_balance(problem).bound
    assert 0.95 * best <= quick <= best * (1 + 1e-6)


def test_overflow_counts_in_the_average() -> None:
    """Parameters beyond all caches together are paid for on average."""
    problem = random_problem(1, 5, 2, zero_fraction=0.0)
    full = replace(problem, cache_bytes=np.zeros(1))
    extra = 0.5 * problem.param_bytes.sum() / 2
    assert load_balance(full).bound == pytest.approx(problem.work_s.sum() / 2 + extra, rel=1e-8)


def test_average_peak_is_rounded_up_for_whole_bytes_only() -> None:
    """Ten bytes on three stages peak at 4; ten halves do not round."""
    problem = replace(random_problem(0, 10, 3, objective="memory"), param_bytes=np.ones(10))
    assert simple_bound(problem)[0] == 4.0
    halves = replace(problem, param_bytes=np.full(10, 0.5))
    assert simple_bound(halves)[0] == pytest.approx(5 / 3, rel=1e-8)


def test_small_capacities_push_the_peak_up() -> None:
    """Where one class can hold only 1 of 10 bytes a stage, the other takes the rest."""
    problem = replace(
        random_problem(0, 10, 2, objective="memory", num_classes=2),
        param_bytes=np.ones(10),
        memory_bytes=np.array([1.0, np.inf]),
    )
    assert simple_bound(problem)[0] == 9.0


def test_no_place_for_an_op_is_infinite() -> None:
    """An op that no class takes, or that exceeds every capacity, makes the bound infinite."""
    problem = random_problem(2, 4, 2, zero_fraction=0.0)
    work = problem.work_s.copy()
    work[0, 1] = np.inf
    assert simple_bound(replace(problem, work_s=work))[0] == np.inf
    assert simple_bound(replace(problem, memory_bytes=np.zeros(1)))[0] == np.inf


def test_no_cost_at_all_is_zero() -> None:
    """A problem without any cost has the bound 0."""
    assert simple_bound(random_problem(0, 5, 3, scale=0.0)) == (0.0,)


@pytest.mark.parametrize("share", [1.0, 1.0 - 2.0**-52, 1.0 - 5e-13])
def test_a_node_that_fills_a_memory_up_to_rounding_may_run_there(share: float) -> None:
    """Values take capacities with a slack for rounding; a bound that did not was above the optimum."""
    problem = random_problem(0, 2, 2, num_classes=2, density=0.0, zero_fraction=0.0)
    problem = replace(
        problem,
        work_s=np.array([[1.0, 9.0], [9.0, 1.0]]),
        memory_bytes=problem.param_bytes * share,
    )
    best = brute_force_pipeline(problem)
    assert best == 1.0
    assert simple_bound(problem)[0] <= best
    assert anchored_cut_bound(problem, budget=Budget(10)) <= best
    assert spectral_bound(problem, budget=Budget(10)) <= best
