"""CP-SAT on pipelines over unlike devices: optimal by brute force, and never a bound above the optimum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.solvers.cp_sat import ConstraintSettings, is_available
from rlinit.exact.stages.constraint_program import num_clauses, solve_constraint_program
from rlinit.heuristics.stages.slicing.orders import natural, random_orders
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem

pytestmark = pytest.mark.skipif(not is_available(), reason="OR-Tools is not installed, or highspy is loaded")


def solved(problem: StageProblem, quantum: float = 0.0) -> tuple[float, float] | None:
    """Return the best value and the bound; None where there is nothing to start from."""
    start = natural(problem) or random_orders(problem, seed=0)
    if start is None:
        return None
    values = [start[1][0]]

    def take(assignment: StageAssignment) -> None:
        values.append(evaluate(problem, assignment)[0])

    bound = solve_constraint_program(
        problem,
        budget=Budget(),
        start=start[0],
        settings=ConstraintSettings(5.0),
        quantum=quantum,
        on_solution=take,
    )
    return min(values), bound


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems(), scale=st.sampled_from([1e-9, 1.0, 1e9]))
def test_no_bound_above_the_optimum(problem: StageProblem, scale: float) -> None:
    """With transfers, overflow and capacities, at any magnitude: the optimum is found, and proven but for rounding."""
    if problem.objective == "memory":
        return
    problem = dataclasses.replace(
        problem,
        work_s=problem.work_s * scale,
        in_s=problem.in_s * scale,
        out_s=problem.out_s * scale,
        overflow_s_per_byte=problem.overflow_s_per_byte * scale,
    )
    found = solved(problem)
    if found is None:
        return
    value, bound = found
    optimum = brute_force_pipeline(problem)
    assert bound <= optimum
    assert value == pytest.approx(optimum, rel=1e-5)
    assert bound == pytest.approx(optimum, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_whole_costs_are_proven_to_the_last_unit(seed: int) -> None:
    """Where all costs are multiples of a quantum, the bound lacks less than a quantum."""
    problem = random_problem(seed, 7, 3, num_classes=3, density=0.3, io=0.0)
    work = np.random.default_rng(seed).integers(0, 9, problem.work_s.shape).astype(np.float64)
    problem = dataclasses.replace(problem, work_s=work)
    found = solved(problem, quantum=1.0)
    assert found is not None
    optimum = brute_force_pipeline(problem)
    assert found[0] == optimum
    assert optimum - 1e-6 <= found[1] <= optimum


@pytest.mark.parametrize(("rate", "cache"), [(0.5, 0.5), (1e6, 0.9), (1e15, 0.5)])
def test_overflow_is_counted_however_much_a_cache_hides(rate: float, cache: float) -> None:
    """Parameters that would cost more than any schedule if no cache hid them are proven to cost what they do."""
    problem = random_problem(5, 6, 2, num_classes=2, density=0.4, cache_fraction=1.0)
    problem = dataclasses.replace(
        problem,
        work_s=problem.work_s * 1e-3,
        cache_bytes=np.array([cache, 0.3]) * problem.param_bytes.sum(),
        overflow_s_per_byte=np.array([rate, 1e-3 * rate]),
    )
    found = solved(problem)
    assert found is not None
    optimum = brute_force_pipeline(problem)
    assert found[0] == pytest.approx(optimum, rel=1e-3)
    assert found[1] <= optimum
    assert found[1] == pytest.approx(optimum, rel=1e-3)


def test_a_model_too_long_for_its_time_is_not_finished() -> None:
    """A graph of millions of continuity clauses takes little more than the limit."""
    problem = random_problem(1, 300, 4, num_classes=2, density=0.1)
    start = natural(problem)
    assert start is not None
    assert num_clauses(problem) > 1_000_000
    budget = Budget(0.5)
    bound = solve_constraint_program(problem, budget=budget, start=start[0], settings=ConstraintSettings())
    assert budget.elapsed_s < 3.0
    assert 0.0 <= bound <= start[1][0]


def test_clauses_are_counted_before_a_model_is_written() -> None:
    """An edge has a clause for each pair of devices, a path of three ops one for each device."""
    problem = random_problem(0, 3, 2, num_classes=2)
    count = num_clauses(problem)
    between = sum(
        1 for u in range(3) for v in range(3) for q in range(3) if _leads(problem, u, q) * _leads(problem, q, v)
    )
    assert count == 4 * len(problem.succ) + 2 * between


def _leads(problem: StageProblem, u: int, v: int) -> bool:
    after = problem.succ[problem.succ_indptr[u] : problem.succ_indptr[u + 1]].tolist()
    return v in after or any(_leads(problem, q, v) for q in after)
