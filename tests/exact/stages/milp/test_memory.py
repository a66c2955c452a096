"""The memory objective's MILPs against enumeration."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.milp.memory import solve_memory_milp
from rlinit.stages.problem import MemoryValue, StageAssignment, StageProblem, Value, evaluate, memory_value
from tests.draws import draws
from tests.exact.stages.cases import all_in_stage, any_problem, at_most
from tests.stage_cases import brute_force_memory, monotone_assignments, random_problem

seeds = st.integers(0, 2**32 - 1)
NOTHING = (np.inf, np.inf, np.inf)


def _best_in_window(problem: StageProblem, start: StageAssignment, free: np.ndarray) -> MemoryValue:
    return min(
        memory_value(problem, stage) for stage in monotone_assignments(problem) if (stage == start.stage)[~free].all()
    )


@settings(max_examples=draws(50), deadline=None)
@given(seeds)
def test_full_milp_equals_enumeration(seed: int) -> None:
    """All three levels are optimal, the bound is lexicographically not above them, the status says so."""
    problem = any_problem(seed, "memory", max_nodes=7)
    best = brute_force_memory(problem)
    result = solve_memory_milp(problem, budget=Budget(60))
    if best == NOTHING:
        assert (result.status, result.value, result.bound) == ("infeasible", None, NOTHING)
        return
    assert result.status == "optimal"
    assert result.assignment is not None
    assert result.value == evaluate(problem, result.assignment)
    assert result.value == pytest.approx(best, rel=1e-7)
    assert at_most(result.bound, best)


@settings(max_examples=draws(40), deadline=None)
@given(seeds)
def test_integral_bytes_give_exact_bounds(seed: int) -> None:
    """With whole bytes, value and bound equal the optimum to the last byte."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, 6, 3, objective="memory", integer=True, scale=float(rng.choice([1, 7, 1e6])), cache_fraction=np.inf
    )
    best = brute_force_memory(problem)
    result = solve_memory_milp(problem, budget=Budget(60))
    assert result.value == best
    assert result.bound == best


@settings(max_examples=draws(50), deadline=None)
@given(seeds)
def test_window_equals_enumeration_of_the_window(seed: int) -> None:
    """With fixed nodes the value and the bound are those of the window, and never worse than the start."""
    problem = any_problem(seed, "memory", max_nodes=7)
    rng = np.random.default_rng(seed)
    start = all_in_stage(problem, int(rng.integers(problem.num_stages)))
    free = rng.random(problem.num_nodes) < 0.6
    best = _best_in_window(problem, start, free)
    result = solve_memory_milp(problem, start=start, free=free, budget=Budget(60))
    if best == NOTHING:
        assert (result.status, result.value) == ("infeasible", None)
        return
    assert result.assignment is not None
    assert result.value is not None
    assert result.status == "optimal"
    assert (result.assignment.stage == start.stage)[~free].all()
    assert result.value == pytest.approx(best, rel=1e-7)
    assert result.value <= evaluate(problem, start)
    assert at_most(result.bound, best)


@settings(max_examples=draws(30), deadline=None)
@given(seeds)
def test_everything_free_equals_the_full_problem(seed: int) -> None:
    """A window that frees all nodes is the full problem."""
    problem = any_problem(seed, "memory")
    free = np.ones(problem.num_nodes, np.bool_)
    window = solve_memory_milp(problem, start=all_in_stage(problem, 0), free=free, budget=Budget(60))
    full = solve_memory_milp(problem, budget=Budget(60))
    assert window.status == full.status
    if full.value is not None:
        assert window.value == pytest.approx(full.value, rel=1e-7)


def test_expired_budget_returns_the_start() -> None:
    """Without time the start comes back as feasible, with a bound that needed no search."""
    problem = random_problem(1, 7, 3, objective="memory")
    start = all_in_stage(problem, 1)
    result = solve_memory_milp(problem, start=start, budget=Budget(0.0))
    assert (result.status, result.value) == ("feasible", evaluate(problem, start))
    assert at_most(result.bound, brute_force_memory(problem))
    assert solve_memory_milp(problem, budget=Budget(0.0)).status == "no_solution"


def test_cancellation_returns_the_incumbent() -> None:
    """Cancelling a long search returns at least the start."""
    problem = random_problem(5, 120, 8, objective="memory", density=0.05, zero_fraction=0.0)
    start = all_in_stage(problem, 0)
    budget = Budget(60)
    threading.Timer(0.8, budget.cancel).start()
    result = solve_memory_milp(problem, start=start, budget=budget)
    assert result.value is not None
    assert result.bound <= result.value <= evaluate(problem, start)
    assert budget.elapsed_s < 10


def test_callbacks_report_better_values_and_valid_bounds() -> None:
    """Values strictly improve, bounds are lexicographically never above the optimum."""
    problem = random_problem(11, 7, 3, objective="memory", zero_fraction=0.0)
    best = brute_force_memory(problem)
    values: list[Value] = []
    bounds: list[Value] = []
    solve_memory_milp(
        problem,
        budget=Budget(60),
        on_solution=lambda assignment: values.append(evaluate(problem, assignment)),
        on_bound=bounds.append,
    )
    assert values
    assert values == sorted(values, reverse=True)
    assert all(at_most(bound, best) for bound in bounds)


def test_node_limit_is_deterministic() -> None:
    """With a node limit, two runs agree on value, bound and work."""
    problem = random_problem(6, 25, 3, objective="memory", density=0.1, zero_fraction=0.0)
    first, second = (solve_memory_milp(problem, budget=Budget(60), node_limit=5) for _ in range(2))
    assert (first.value, first.bound, first.work) == (second.value, second.bound, second.work)


def test_rejects_what_it_cannot_solve() -> None:
    """A pipeline problem and a window without a start are errors."""
    with pytest.raises(ValueError, match="memory"):
        solve_memory_milp(random_problem(0, 5, 2), budget=Budget(1))
    with pytest.raises(ValueError, match="start"):
        solve_memory_milp(random_problem(0, 5, 2, objective="memory"), free=np.ones(5, np.bool_), budget=Budget(1))


@pytest.mark.parametrize(("seed", "max_nodes"), [(2759, 6), (57351, 7)])
def test_small_later_levels_are_proven(seed: int, max_nodes: int) -> None:
    """Off-cache bytes far below a stage's bytes still close: the discount is that of the rows' tolerance."""
    problem = any_problem(seed, "memory", max_nodes=max_nodes)
    best = brute_force_memory(problem)
    start = StageAssignment(np.zeros(problem.num_nodes, np.int64), problem.stage_class)
    for one in (None, start):
        result = solve_memory_milp(problem, start=one, budget=Budget(60))
        assert result.status == "optimal"
        assert at_most(result.bound, best)
