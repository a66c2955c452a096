"""The exact MILP of the pipeline objective against enumeration."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.stages.domains import StageDomains, window_domains
from rlinit.exact.stages.milp.pipeline import PipelineModel, pipeline_lp_bound, solve_pipeline_milp
from rlinit.exact.stages.milp.scaled_costs import ScaledCosts
from rlinit.stages.problem import StageAssignment, Value, evaluate, stage_value
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages
from tests.draws import draws
from tests.exact.stages.cases import all_in_stage, any_problem, at_most, best_pipeline_in_window
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem

seeds = st.integers(0, 2**32 - 1)


def test_optima_are_proven_whatever_the_unit_of_time() -> None:
    """From an optimum nothing better is found, and it is proven, in nanoseconds as in seconds."""
    for seed in (745020, 3, 11):
        problem = any_problem(seed, "pipeline")
        best = brute_force_pipeline(problem)
        if not 0 < best < np.inf:
            continue
        for scale in (1.0, 1e-9, 1e9):
            scaled = dataclasses.replace(
                problem,
                work_s=problem.work_s * scale,
                in_s=problem.in_s * scale,
                out_s=problem.out_s * scale,
                overflow_s_per_byte=problem.overflow_s_per_byte * scale,
            )
            found = solve_pipeline_milp(scaled, budget=Budget(60))
            again = solve_pipeline_milp(scaled, start=found.assignment, budget=Budget(60))
            for result in (found, again):
                assert result.status == "optimal"
                assert scale * best * (1 - 1e-6) < result.bound[0] <= scale * best * (1 + 1e-12)


@settings(max_examples=draws(25), deadline=None)
@given(seeds)
def test_full_milp_equals_enumeration(seed: int) -> None:
    """The value is the optimum, the bound is not above it, and the status says so."""
    problem = any_problem(seed, "pipeline")
    best = brute_force_pipeline(problem)
    result = solve_pipeline_milp(problem, budget=Budget(60))
    if best == np.inf:
        assert (result.status, result.value, result.bound) == ("infeasible", None, (np.inf,))
        return
    assert result.status == "optimal"
    assert result.value is not None
    assert result.assignment is not None
    assert result.value == evaluate(problem, result.assignment)
    assert result.value[0] == pytest.approx(best, rel=1e-6)
    assert at_most(result.bound, (best,))


@example(86)  # an op that only a class without stages can run
@settings(max_examples=draws(25), deadline=None)
@given(seeds)
def test_window_equals_enumeration_of_the_window(seed: int) -> None:
    """With fixed nodes the value and the bound are those of the window, and never worse than the start."""
    problem = any_problem(seed, "pipeline")
    rng = np.random.default_rng(seed)
    start = all_in_stage(problem, int(rng.integers(problem.num_stages)))
    free = rng.random(problem.num_nodes) < 0.6
    best = best_pipeline_in_window(problem, start, free)
    result = solve_pipeline_milp(problem, start=start, free=free, budget=Budget(60))
    if best == np.inf:
        assert (result.status, result.value) == ("infeasible", None)
        return
    assert result.assignment is not None
    assert result.value is not None
    assert result.status == "optimal"
    assert (result.assignment.stage == start.stage)[~free].all()
    assert result.value[0] == pytest.approx(best, rel=1e-6)
    assert result.value <= evaluate(problem, start)
    assert at_most(result.bound, (best,))


@settings(max_examples=draws(20), deadline=None)
@given(seeds)
def test_everything_free_equals_the_full_problem(seed: int) -> None:
    """A window that frees all nodes is the full problem."""
    problem = any_problem(seed, "pipeline")
    start = all_in_stage(problem, 0)
    free = np.ones(problem.num_nodes, np.bool_)
    window = solve_pipeline_milp(problem, start=start, free=free, budget=Budget(60))
    full = solve_pipeline_milp(problem, budget=Budget(60))
    assert window.status == full.status
    if full.value is not None:
        assert window.value == pytest.approx(full.value, rel=1e-6)


@settings(max_examples=draws(25), deadline=None)
@given(seeds)
def test_every_assignment_is_a_point_of_the_model(seed: int) -> None:
    """Encoding any assignment satisfies all rows, costs its bottleneck, and decodes to itself."""
    problem = any_problem(seed, "pipeline", max_nodes=5)
    n, k = problem.num_nodes, problem.num_stages
    domains = StageDomains(problem, np.zeros(n, np.int64), np.full(n, k - 1, np.int64))
    model = PipelineModel(ChunkedStages(problem, 1), domains, ScaledCosts.of(problem, np.inf), lower=0.0, upper=np.inf)
    matrix, lhs, rhs = model.linear.matrix()
    for stage in monotone_assignments(problem):
        value = stage_value(problem, stage, problem.stage_class)
        if value == np.inf:
            continue
        assignment = ChunkAssignment(stage, np.arange(k), problem.stage_class)
        point = model.encode(assignment)
        activity = matrix @ point
        slack = 1e-9 + 1e-12 * (abs(matrix) @ np.abs(point))
        assert (lhs - slack <= activity).all()
        assert (activity <= rhs + slack).all()
        assert point[model.linear.objective] * model.unit == pytest.approx(value, rel=1e-9)
        decoded = model.decode(point)
        assert np.array_equal(decoded.stage, stage)
        assert np.array_equal(decoded.classes, problem.stage_class)


@settings(max_examples=draws(25), deadline=None)
@given(seeds)
def test_lp_bound_is_a_bound(seed: int) -> None:
    """The LP bound is at most the optimum."""
    problem = any_problem(seed, "pipeline")
    best = brute_force_pipeline(problem)
    assert pipeline_lp_bound(problem, budget=Budget(10)) <= best * (1 + 1e-12)


@settings(max_examples=draws(25), deadline=None)
@given(seeds)
def test_tightened_domains_keep_everything_within_the_limit(seed: int) -> None:
    """No assignment of at most the reference value leaves the tightened intervals."""
    problem = any_problem(seed, "pipeline")
    work = problem.work_s.min(axis=0)
    best = brute_force_pipeline(problem)
    if best == np.inf:
        return
    for reference in (best, best * 1.2):
        domains = window_domains(problem, None, None)
        domains.tighten(work, reference)
        for stage in monotone_assignments(problem):
            if min(np.bincount(stage, weights=work, minlength=problem.num_stages).max(), best) <= reference and (
                stage_value(problem, stage, problem.stage_class) <= reference
            ):
                assert (domains.first <= stage).all()
                assert (stage <= domains.last).all()


def test_class_shares_do_not_make_binaries_fractional() -> None:
    """With forbidden nodes, capacities and two classes, SCIP's presolving must not lose integrality."""
    problem = any_problem(3734588302, "pipeline")
    result = solve_pipeline_milp(problem, budget=Budget(60))
    assert result.status == "optimal"
    assert result.value == pytest.approx((brute_force_pipeline(problem),), rel=1e-6)


def test_optimal_start_is_returned() -> None:
    """Started from an optimum, the result is that optimum, proven."""
    problem = random_problem(3, 6, 3)
    first = solve_pipeline_milp(problem, budget=Budget(60))
    again = solve_pipeline_milp(problem, start=first.assignment, budget=Budget(60))
    assert (again.status, again.value) == ("optimal", first.value)


def test_expired_budget_returns_the_start() -> None:
    """Without time the start comes back as feasible, with a bound that needed no search."""
    problem = random_problem(1, 7, 3)
    start = all_in_stage(problem, 1)
    result = solve_pipeline_milp(problem, start=start, budget=Budget(0.0))
    assert (result.status, result.value) == ("feasible", evaluate(problem, start))
    assert result.bound[0] <= brute_force_pipeline(problem)
    assert solve_pipeline_milp(problem, budget=Budget(0.0)).status == "no_solution"


def test_cancellation_returns_the_incumbent() -> None:
    """Cancelling a long search returns at least the start and a bound below it."""
    problem = random_problem(5, 60, 8, density=0.1, zero_fraction=0.0)
    start = all_in_stage(problem, 0)
    budget = Budget(60)
    threading.Timer(0.8, budget.cancel).start()
    result = solve_pipeline_milp(problem, start=start, budget=budget)
    assert result.status == "feasible"
    assert result.value is not None
    assert result.bound[0] <= result.value[0] <= evaluate(problem, start)[0]
    assert budget.elapsed_s < 10


def test_callbacks_report_better_values_and_valid_bounds() -> None:
    """Values strictly improve, bounds never exceed the optimum."""
    problem = random_problem(11, 7, 3, zero_fraction=0.0)
    best = brute_force_pipeline(problem)
    values: list[Value] = []
    bounds: list[Value] = []
    solve_pipeline_milp(
        problem,
        budget=Budget(60),
        on_solution=lambda assignment: values.append(evaluate(problem, assignment)),
        on_bound=bounds.append,
    )
    assert values
    assert values == sorted(values, reverse=True)
    assert all(bound[0] <= best for bound in bounds)


def test_node_limit_is_deterministic() -> None:
    """With a node limit, two runs agree on value, bound and work."""
    problem = random_problem(6, 20, 3, density=0.15, zero_fraction=0.0)
    first, second = (solve_pipeline_milp(problem, budget=Budget(60), node_limit=5) for _ in range(2))
    assert (first.value, first.bound, first.work) == (second.value, second.bound, second.work)


def test_small_window_is_a_small_model() -> None:
    """Fixed nodes leave neither variables nor rows of their own."""
    problem = random_problem(7, 200, 4, density=0.02)
    start = StageAssignment(np.arange(200) * 4 // 200, problem.stage_class)
    free = np.zeros(200, np.bool_)
    free[98:102] = True
    domains, costs = window_domains(problem, start, free), ScaledCosts.of(problem, 1e6)
    model = PipelineModel(ChunkedStages(problem, 1), domains, costs, lower=0.0, upper=1e6)
    assert sum(model.linear.is_binary) <= 4 * 3
    assert model.linear.num_variables < 100


def test_nothing_free_returns_the_start() -> None:
    """A window that frees nothing proves the start to be the best of itself."""
    problem = random_problem(2, 7, 3)
    start = all_in_stage(problem, 2)
    result = solve_pipeline_milp(problem, start=start, free=np.zeros(7, np.bool_), budget=Budget(10))
    assert (result.status, result.value) == ("optimal", evaluate(problem, start))


def test_rejects_what_it_cannot_solve() -> None:
    """A memory problem, a window without a start, and a mask of the wrong shape are errors."""
    problem = random_problem(0, 5, 2)
    with pytest.raises(ValueError, match="pipeline"):
        solve_pipeline_milp(random_problem(0, 5, 2, objective="memory"), budget=Budget(1))
    with pytest.raises(ValueError, match="start"):
        solve_pipeline_milp(problem, free=np.ones(5, np.bool_), budget=Budget(1))
    with pytest.raises(ValueError, match="shape"):
        solve_pipeline_milp(problem, start=all_in_stage(problem, 0), free=np.ones(4, np.bool_), budget=Budget(1))
