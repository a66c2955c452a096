"""Magnitudes that solvers cannot compute with, and problems that lost a plan or a bound by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.arrays import BoolArray
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS, chain_bound
from rlinit.exact.placements.milp.solve import solve_placement_milp
from rlinit.placements.problem import PlacementProblem
from tests.draws import draws
from tests.exact.placements.split.cases import brute_force, make_problem

CLOSE = 1.0 + 1e-9


def slow_one_way(largest_bytes: float) -> PlacementProblem:
    """Return four ops of 29 to 49 s on two devices; transfers are free one way and take 1 s a byte the other way."""
    times = np.array([[29.0, 49.0], [35.0, 41.0], [33.0, 30.0], [45.0, 48.0]])
    sizes = np.array([largest_bytes, 0.0, 1.9e10, 0.0])
    rate = np.array([[0.0, 0.0], [1.0, 0.0]])
    return make_problem(times, [(0, 2), (1, 2), (2, 3)], tensor_bytes=sizes, s_per_byte=rate)


@pytest.mark.parametrize("largest_bytes", [1.9e10, 1e20, 1e30, 1e200])
def test_a_transfer_beyond_the_solver_is_none(largest_bytes: float) -> None:
    """SCIP takes 1e20 for infinite; a transfer longer than the value to beat is left out of the program."""
    problem = slow_one_way(largest_bytes)
    least = brute_force(problem)
    result = solve_placement_milp(problem, budget=Budget(60))
    assert result.status == "optimal"
    assert result.value == pytest.approx(least, rel=1e-6)
    assert result.bound <= least * CLOSE


@pytest.mark.parametrize("seconds", [1e20, 1e200])
def test_a_batch_beyond_the_solver_is_none(seconds: float) -> None:
    """A size of a batch that takes longer than the value to beat is left out of the program."""
    times = np.zeros((2, 2, 3))
    times[:, :, 1], times[:, :, 2] = 1.0, 1.5
    times[:, 1, 2] = seconds
    result = solve_placement_milp(make_problem(times, [(0, 1)]), budget=Budget(60))
    assert (result.status, result.value) == ("optimal", 2.0)


def test_times_that_cannot_be_summed_are_said() -> None:
    """Where a schedule may take longer than the largest number there is no program, and that is no infeasibility."""
    problem = make_problem(np.full((3, 2), 1e308), [(0, 1), (1, 2)])
    with np.errstate(over="ignore"), pytest.raises(SolverFailure, match="largest number"):
        solve_placement_milp(problem, budget=Budget(60))


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_program_far_from_its_optimum_proves_nothing_false(seed: int) -> None:
    """Without a start that fits the program is scaled by the horizon; its bound holds, and the optimum is proven."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    times = rng.uniform(0.5, 1.0, (n, 2)) * 10.0 ** rng.integers(-15, 1, (n, 1))
    edges = [(v, w) for v in range(n) for w in range(v + 1, n) if rng.random() < 0.5]
    rate = np.array([[0.0, 10.0 ** rng.integers(-6, 16)], [10.0 ** rng.integers(-6, 16), 0.0]])
    problem = make_problem(
        times, edges, s_per_byte=rate, weight_bytes=np.ones(n), capacity_bytes=np.full(2, float(n - 1))
    )
    least = brute_force(problem)
    result = solve_placement_milp(problem, budget=Budget(60))
    assert result.bound <= least * CLOSE
    assert result.value is not None
    assert result.value >= least / CLOSE
    assert result.status == "feasible" or result.value <= least * (1 + 1.1e-6)


def test_devices_forbidden_for_one_op_of_a_group_are_for_all() -> None:
    """`A_ub must not contain values inf`: a search that fixes the device of one op fixes those of its group."""
    problem = make_problem(np.array([[2.0, 1.0], [1.0, 1.0]]), [(0, 1)], group=np.array([0, 0]))
    allowed: BoolArray = np.isfinite(problem.time_s)
    allowed[:, :, 0] = False
    allowed[1, 1] = False
    assert DestructiveSearch(problem, allowed=allowed).run(5, Budget()) == pytest.approx(3.0)


def test_the_chain_whose_end_shares_a_group() -> None:
    """The instance that raised `A_ub must not contain values inf, nan, or None`, shortened."""
    rng = np.random.default_rng(66)
    times = rng.uniform(29.0, 49.0, (8, 2))
    edges = [(0, 1), (0, 3), (1, 5), (2, 3), (2, 4), (2, 6), (2, 7), (3, 4), (3, 5), (3, 6), (4, 7), (5, 7), (6, 7)]
    sizes = np.array([17.0, 41.0, 92.0, 1.9e10, 48.0, 97.0, 24.0, 24.0])
    problem = make_problem(
        times,
        edges,
        tensor_bytes=sizes,
        s_per_byte=np.array([[0.0, 0.0], [1.0, 0.0]]),
        weight_bytes=np.array([2.0, 2.0, 1.0, 4.0, 4.0, 2.0, 4.0, 0.0]),
        capacity_bytes=np.array([14.0, 15.0]),
        group=np.array([0, 1, 2, 3, 4, 5, 6, 0]),
    )
    found = solve_placement_milp(problem, budget=Budget(60))
    assert found.value is not None
    assert 0.0 < chain_bound(problem) <= found.value * CLOSE


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_bounds_hold_at_every_magnitude(seed: int) -> None:
    """Times from 1e-9 to 1e9 s, transfers to 1e22 s, groups and tight memory: no bound is above the least makespan."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    times = rng.uniform(0.1, 1.0, (n, 2)) * 10.0 ** rng.integers(-9, 10, (n, 1))
    edges = [(v, w) for v in range(n) for w in range(v + 1, n) if rng.random() < 0.5]
    group = np.arange(n)
    if rng.random() < 0.4:
        group[n - 1] = 0
    weight = rng.integers(0, 5, n).astype(np.float64)
    problem = make_problem(
        times,
        edges,
        tensor_bytes=np.power(10.0, rng.integers(0, 22, n)),
        s_per_byte=np.array([[0.0, 0.0], [1.0, 0.0]]) * 10.0 ** rng.integers(-12, 1),
        weight_bytes=weight,
        capacity_bytes=np.full(2, np.inf) if rng.random() < 0.5 else np.round(weight.sum() * rng.uniform(0.5, 1.0, 2)),
        group=group,
    )
    least = brute_force(problem)
    for name in ("path", "load", "around", "relaxation"):
        assert PLACEMENT_BOUNDS[name](problem, budget=Budget(0.2)) <= least * CLOSE, name
