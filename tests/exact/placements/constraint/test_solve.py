"""The constraint program on CP-SAT against enumeration, and its bounds at odd magnitudes."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.constraint.integer_times import IntegerTimes
from rlinit.exact.placements.constraint.solve import solve_constraints
from rlinit.exact.solvers.cp_sat import ConstraintSettings, is_available
from rlinit.heuristics.placements.local_search.search import earliest_finish_start
from rlinit.placements.problem import PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, obstacle
from tests.draws import draws
from tests.exact.placements.test_milp import small_latency
from tests.placement_cases import brute_force_placement, random_placement_problem

seeds = st.integers(0, 2**32 - 1)

needs_cp_sat = pytest.mark.skipif(not is_available(), reason="OR-Tools is not installed, or highspy is loaded")


def solved(problem: PlacementProblem) -> PlacementResult | None:
    """Solve to the end from a first schedule; None where earliest finish finds none."""
    start = earliest_finish_start(problem)
    if start is None or not np.isfinite(makespan(problem, start)):
        return None
    return solve_constraints(problem, budget=Budget(20), start=start, settings=ConstraintSettings())


@needs_cp_sat
@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_equals_enumeration(seed: int) -> None:
    """Value and bound are the best makespan over all placements and orders, with memory, groups and missing links."""
    problem = small_latency(seed)
    result = solved(problem)
    if result is None:
        return
    best = brute_force_placement(problem)
    assert result.placement is not None
    assert obstacle(problem, result.placement) == ""
    assert result.value == pytest.approx(best, rel=1e-6)
    assert result.bound <= best * (1 + 1e-12)
    assert result.bound >= best * (1 - 1e-5)


@needs_cp_sat
@settings(max_examples=draws(40), deadline=None)
@given(seeds, st.sampled_from([1e-9, 1e-3, 1e6, 1e12]))
def test_bounds_hold_at_any_magnitude(seed: int, scale: float) -> None:
    """Times in nanoseconds or in aeons, some of them zero: the bound never exceeds the best makespan."""
    rng = np.random.default_rng(seed)
    problem = small_latency(seed)
    lengths = np.where(rng.random(problem.num_ops) < 0.2, 0.0, scale * 10.0 ** rng.uniform(-3, 3, problem.num_ops))
    able = np.isfinite(problem.time_s)
    longer = np.where(able, np.where(able, problem.time_s, 0.0) * lengths[:, None, None], np.inf)
    problem = dataclasses.replace(problem, time_s=longer)
    result = solved(problem)
    if result is None:
        return
    assert result.value is not None
    best = brute_force_placement(problem)
    assert result.bound <= best * (1 + 1e-12)
    assert result.value >= best * (1 - 1e-12)


@needs_cp_sat
def test_work_limits_repeat_themselves() -> None:
    """The same work limit and seed give the same placement and the same bound."""
    problem = small_latency(7)
    start = earliest_finish_start(problem)
    assert start is not None
    runs = [
        solve_constraints(problem, budget=Budget(), start=start, settings=ConstraintSettings(work=0.01))
        for _ in range(2)
    ]
    assert runs[0].value == runs[1].value
    assert runs[0].bound == runs[1].bound


def test_times_without_a_quantum_are_rounded_down() -> None:
    """Steps never exceed the time they stand for."""
    times = IntegerTimes(unit_s=0.25, exact=False)
    assert times.floor(1.0) == 3  # a discount for rounding errors takes exact multiples down by one
    assert times.floor(1.1) == 4
    assert IntegerTimes(unit_s=0.25, exact=True).floor(1.0) == 4


@needs_cp_sat
def test_time_that_a_budget_leaves_out_does_not_end_it() -> None:
    """While the clock of its budget stands still, CP-SAT goes on, however little time is left."""
    problem = random_placement_problem(7, 12, 3, density=0.2, forbidden_fraction=0.0)
    start = earliest_finish_start(problem)
    assert start is not None
    with ExitStack() as stack:
        budget = Budget(0.0)
        while budget.expired:
            budget = Budget(1e-3)
            stack.enter_context(budget.paused())
        result = solve_constraints(problem, budget=budget, start=start, settings=ConstraintSettings())
    assert result.value is not None
    assert result.bound >= result.value * (1 - 1e-5)
