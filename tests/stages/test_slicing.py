"""Slicing an order, and solving over all ideals, against brute force."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings

from rlinit.budget import Budget
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.stages.problem import StageAssignment, StageProblem, Value, evaluate, stage_cost
from rlinit.stages.slicing import slice_order
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_memory, brute_force_pipeline, random_problem


def brute_force_slicing(problem: StageProblem, order: np.ndarray) -> Value:
    """Return the best value over all slicings of an order and all orders of the stage classes."""
    position = np.empty(problem.num_nodes, np.int64)
    position[order] = np.arange(problem.num_nodes)
    classes = [problem.stage_class.tolist()]
    if problem.objective == "pipeline":
        classes = [list(row) for row in set(itertools.permutations(classes[0]))]
    return min(
        evaluate(problem, StageAssignment(np.searchsorted(cuts, position, side="right"), np.array(row)))
        for cuts in itertools.combinations_with_replacement(range(problem.num_nodes + 1), problem.num_stages - 1)
        for row in classes
    )


def optimum(problem: StageProblem) -> Value:
    """Return the optimal value by brute force."""
    return brute_force_memory(problem) if problem.objective == "memory" else (brute_force_pipeline(problem),)


def check_same(found: Value, truth: Value) -> None:
    """Compare lexicographic values: each level to rounding; levels after one that ties only to rounding may differ."""
    for one, two in zip(found, truth, strict=True):
        assert one == pytest.approx(two, rel=1e-9, abs=0.0)
        if one != two:
            return


@settings(max_examples=draws(150), deadline=None)
@given(small_problems())
def test_slicing_is_optimal_for_its_order(problem: StageProblem) -> None:
    """slice_order equals brute force over all slicings, for every objective, class mix and capacity."""
    truth = brute_force_slicing(problem, problem.order)
    found = slice_order(problem, problem.order)
    if found is None:
        assert truth[0] == np.inf
    else:
        assert evaluate(problem, found[0]) == found[1]
        check_same(found[1], truth)


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_capacities_and_exclusions_bind_by_class(objective: Literal["pipeline", "memory"]) -> None:
    """Where one class of stage is small or refuses nodes and the other does not, slicing minds which is which."""
    for seed in range(60):
        problem = random_problem(seed, 6, 3, objective=objective, num_classes=2, io=0.01, integer=True)
        work = problem.work_s.copy()
        work[0, seed % 6] = np.inf
        memory = np.array([0.4 * problem.param_bytes.sum(), np.inf])
        problem = dataclasses.replace(problem, work_s=work, memory_bytes=memory)
        found = slice_order(problem, problem.order)
        truth = brute_force_slicing(problem, problem.order)
        if found is None:
            assert truth[0] == np.inf
        else:
            check_same(found[1], truth)


@settings(max_examples=draws(150), deadline=None)
@given(small_problems())
def test_ideals_are_exact(problem: StageProblem) -> None:
    """The program over all ideals equals brute force over all monotone assignments."""
    truth = optimum(problem)
    result = solve_ideals(problem, 10_000)
    assert result is not None
    if truth[0] == np.inf:
        assert (result.status, result.assignment) == ("infeasible", None)
    else:
        assert result.assignment is not None
        assert result.value == evaluate(problem, result.assignment)
        check_same(result.value, truth)
        check_same(result.bound, result.value)


@settings(max_examples=draws(80), deadline=None)
@given(small_problems())
def test_a_cutoff_below_the_optimum_proves_it(problem: StageProblem) -> None:
    """With a cutoff just below the optimum nothing is found, and one just above it finds the optimum."""
    truth = optimum(problem)
    if not 0 < truth[0] < np.inf:
        return
    below = solve_ideals(problem, 10_000, upper=tuple(0.999 * level for level in truth))
    assert below is not None
    assert below.status == "infeasible"
    above = solve_ideals(problem, 10_000, upper=(1.001 * truth[0], *truth[1:]))
    assert above is not None
    assert above.value is not None
    check_same(above.value, truth)


def test_bounds_rise_towards_the_optimum_and_never_pass_it() -> None:
    """Every bound told on the way is at most the optimum, and they increase."""
    for seed in range(20):
        problem = random_problem(seed, 8, 3, io=2.0)
        told: list[Value] = []
        result = solve_ideals(problem, 10_000, on_bound=told.append)
        assert result is not None
        assert result.value is not None
        assert told == sorted(told)
        assert all(bounds <= result.value for bounds in told)


def test_the_caps_are_respected() -> None:
    """More ideals than the cap, or more labels than fit: None, not a wrong answer."""
    apart = random_problem(0, 12, 3, density=0.0, objective="memory")
    assert solve_ideals(apart, 4095) is None
    assert solve_ideals(apart, 4096) is not None


def test_an_ended_budget_still_gives_a_true_bound() -> None:
    """With no time at all the result is a bound or a schedule, never a false proof."""
    problem = random_problem(3, 12, 4, density=0.1)
    truth = solve_ideals(problem, 100_000)
    budget = Budget()
    budget.cancel()
    hurried = solve_ideals(problem, 100_000, budget=budget)
    assert truth is not None
    assert truth.value is not None
    assert hurried is not None
    assert hurried.bound <= truth.value


@pytest.mark.compiled
def test_long_orders_need_no_table() -> None:
    """A chain of 20,000 nodes with skips slices into 32 stages, within 2% of the average work."""
    rng = np.random.default_rng(0)
    n = 20_000
    src = np.arange(n - 1, dtype=np.int64)
    problem = StageProblem(
        objective="pipeline",
        work_s=rng.random((1, n)),
        param_bytes=np.zeros(n),
        tensor_src=src,
        tensor_indptr=np.arange(n, dtype=np.int64),
        tensor_dst=src + 1,
        tensor_bytes=rng.random(n - 1),
        in_s=rng.random((1, n - 1)),
        out_s=rng.random((1, n - 1)),
        stage_class=np.zeros(32, np.int64),
        memory_bytes=np.array([np.inf]),
        cache_bytes=np.array([np.inf]),
        overflow_s_per_byte=np.zeros(1),
        order=np.arange(n, dtype=np.int64),
    )
    found = slice_order(problem, problem.order)
    assert found is not None
    assert found[1][0] == evaluate(problem, found[0])[0] < 1.02 * problem.work_s.sum() / 32


def unlike_devices(num_nodes: int, num_devices: int, seed: int = 0) -> StageProblem:
    """Return a problem in which every device has times of its own."""
    problem = random_problem(seed, num_nodes, num_devices, num_classes=num_devices, density=2.0 / num_nodes, io=0.05)
    work = problem.work_s * np.random.default_rng(seed).uniform(0.5, 2.0, problem.work_s.shape)
    return dataclasses.replace(problem, work_s=work)


@pytest.mark.parametrize("num_devices", [23, 62, 63, 64, 200])
def test_few_nodes_on_many_unlike_devices_are_sliced_exactly(num_devices: int) -> None:
    """The states are the ways to fill at most as many stages as there are nodes: no overflow, no exponential."""
    problem = unlike_devices(3, num_devices)
    began = time.perf_counter()
    found = slice_order(problem, problem.order)
    assert time.perf_counter() - began < 60.0
    assert found is not None
    best = np.inf
    for ends in itertools.product(range(4), repeat=2):
        slices = [pair for pair in itertools.pairwise((0, *ends, 3)) if pair[0] < pair[1]]
        if list(ends) == sorted(ends):
            best = min(best, cheapest_on_distinct_devices(problem, slices))
    assert found[1][0] == pytest.approx(best, rel=1e-12)


def cheapest_on_distinct_devices(problem: StageProblem, slices: list[tuple[int, int]]) -> float:
    """Return the smallest bottleneck of at most three slices of the order, each on a device of its own."""
    rows = []
    for first, last in slices:
        member = np.zeros(problem.num_nodes, np.bool_)
        member[problem.order[first:last]] = True
        rows.append(sorted((stage_cost(problem, member, c), c) for c in range(problem.num_classes))[:3])
    choices = (row for row in itertools.product(*rows) if len({c for _, c in row}) == len(row))
    return min(max(cost for cost, _ in row) for row in choices)


@pytest.mark.compiled
@pytest.mark.parametrize(("num_nodes", "num_devices"), [(75, 19), (40, 40), (300, 64)])
def test_devices_of_many_kinds_keep_their_order(num_nodes: int, num_devices: int) -> None:
    """Where the states are out of reach a schedule comes in seconds all the same, far better than one device."""
    problem = unlike_devices(num_nodes, num_devices)
    slice_order(unlike_devices(30, 30), np.arange(30))  # compiled
    began = time.perf_counter()
    found = slice_order(problem, problem.order)
    assert time.perf_counter() - began < 60.0
    assert found is not None
    assert found[1] == evaluate(problem, found[0])
    assert found[1][0] < 5.0 * max(problem.work_s.min(axis=0).sum() / num_devices, problem.work_s.min(axis=0).max())


def test_without_time_nodes_are_cut_in_the_order_of_the_devices() -> None:
    """The bottleneck is near that of stages in proportion to their speeds."""
    problem, budget = unlike_devices(800, 40), Budget()
    budget.cancel()
    found = slice_order(problem, problem.order, budget=budget)
    assert found is not None
    assert found[1][0] < 1.3 / (1.0 / problem.work_s.sum(axis=1)).sum()


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
@pytest.mark.parametrize("num_classes", [1, 3])
def test_an_ended_budget_leaves_a_feasible_slicing(objective: Literal["pipeline", "memory"], num_classes: int) -> None:
    """With no time at all longest-first slicing, or one device, is the result."""
    problem = random_problem(1, 400, 6, objective=objective, num_classes=num_classes, density=0.01)
    budget = Budget()
    budget.cancel()
    found, best = slice_order(problem, problem.order, budget=budget), slice_order(problem, problem.order)
    assert found is not None
    assert best is not None
    assert np.isfinite(found[1][0])
    assert best[1] <= found[1]


@pytest.mark.compiled
def test_wide_orders_keep_a_budget() -> None:
    """20,000 wide nodes on 8 equal stages, 2,000 on 4 unlike ones: slicing ends soon after its budget."""
    for problem in (wide(20_000, 8, 1), wide(2_000, 4, 4)):
        slice_order(random_problem(0, 30, 3, num_classes=problem.num_classes), np.arange(30))
        began = time.perf_counter()
        found = slice_order(problem, problem.order, budget=Budget(0.2))
        assert time.perf_counter() - began < 5.0
        assert found is not None


def wide(num_nodes: int, num_stages: int, num_classes: int) -> StageProblem:
    """Return nodes that each read two of the hundred before."""
    rng = np.random.default_rng(0)
    first = np.arange(100, num_nodes)
    src = np.concatenate([first - rng.integers(1, 100, len(first)) for _ in range(2)])
    dst = np.concatenate([first, first])
    keep = np.unique(src * num_nodes + dst)
    src, dst = keep // num_nodes, keep % num_nodes
    tensor_src, counts = np.unique(src, return_counts=True)
    size = rng.random(len(tensor_src))
    return StageProblem(
        objective="pipeline",
        work_s=rng.random((num_classes, num_nodes)) + 0.05,
        param_bytes=rng.random(num_nodes),
        tensor_src=tensor_src,
        tensor_indptr=np.append(0, np.cumsum(counts)),
        tensor_dst=dst,
        tensor_bytes=size,
        in_s=np.tile(0.1 * size, (num_classes, 1)),
        out_s=np.tile(0.1 * size, (num_classes, 1)),
        stage_class=np.sort(np.arange(num_stages) % num_classes),
        memory_bytes=np.full(num_classes, np.inf),
        cache_bytes=np.full(num_classes, np.inf),
        overflow_s_per_byte=np.zeros(num_classes),
        order=np.arange(num_nodes),
    )
