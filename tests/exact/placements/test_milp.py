"""The placement programs against enumeration."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.symmetry import Symmetry, alike_devices, alike_nodes
from rlinit.exact.placements.analysis.time_windows import latest_end, possible_batches, shard_windows
from rlinit.exact.placements.milp.base_model import PlacementMilpSettings
from rlinit.exact.placements.milp.solve import solve_placement_milp
from rlinit.placements.problem import Placement, PlacementProblem, PlacementResult
from rlinit.placements.timeline import makespan, timeline
from tests.draws import draws
from tests.placement_cases import brute_force_placement, random_placement, random_placement_problem

seeds = st.integers(0, 2**32 - 1)

_ORDERS: tuple[Symmetry, ...] = ("none", "batches", "tasks", "time")
BATCH_FORMS = [
    PlacementMilpSettings(intra_symmetry=inner, inter_symmetry=outer, node_of_device=np.arange(3) % 2)
    for inner, outer in itertools.product(_ORDERS, repeat=2)
]


def small_problem(seed: int) -> PlacementProblem:
    """Return a problem of any kind that enumeration can solve in well under a second."""
    rng = np.random.default_rng(seed)
    shards = int(rng.choice([1, 1, 1, 2, 3, 4]))
    ops, devices = {1: (5, 3), 2: (3, 2), 3: (2, 2), 4: (2, 2)}[shards]
    return random_placement_problem(
        seed,
        int(rng.integers(1, ops)),
        int(rng.integers(1, devices + 1)),
        shards=shards,
        transfers=str(rng.choice(["parallel", "exclusive", "blocking"])),  # type: ignore[arg-type]
        density=float(rng.choice([0.3, 0.7])),
        scale=10.0 ** float(rng.integers(-9, 12)),
        memory_fraction=float(rng.choice([np.inf, 0.8])),
        group_fraction=float(rng.choice([0.0, 0.3])),
        missing_links=float(rng.choice([0.0, 0.1])),
        integer=bool(rng.random() < 0.5),
        identical=bool(rng.random() < 0.3),
    )


def small_latency(seed: int, most: int = 6) -> PlacementProblem:
    """Return a latency problem with parallel transfers."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, most))
    return random_placement_problem(
        seed,
        n,
        int(rng.integers(1, 4)) if n < 5 else 2,
        scale=10.0 ** float(rng.integers(-9, 12)),
        memory_fraction=float(rng.choice([np.inf, 0.7])),
        group_fraction=float(rng.choice([0.0, 0.3])),
        missing_links=float(rng.choice([0.0, 0.15])),
        integer=bool(rng.random() < 0.5),
        identical=bool(rng.random() < 0.3),
    )


def feasible_start(problem: PlacementProblem, seed: int) -> Placement | None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        placement = random_placement(problem, rng)
        if makespan(problem, placement) < np.inf:
            return placement
    return None


def check(problem: PlacementProblem, result: PlacementResult, best: float) -> None:
    """Check value, bound and status against the best makespan."""
    assert result.bound <= best * (1 + 1e-12)
    if best == np.inf:
        assert (result.status, result.value, result.placement) == ("infeasible", None, None)
        return
    assert result.placement is not None
    assert result.value == makespan(problem, result.placement)
    assert result.value <= best * (1 + 1e-6)
    assert result.value >= best * (1 - 1e-12)
    assert result.status == "optimal"


@settings(max_examples=draws(40), deadline=None)
@given(seeds)
def test_latency_program_equals_enumeration(seed: int) -> None:
    """The program finds and proves the best makespan of whole ops."""
    problem = small_latency(seed)
    best = brute_force_placement(problem)
    check(problem, solve_placement_milp(problem, budget=Budget(60)), best)


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_batch_program_equals_enumeration(seed: int) -> None:
    """Every form of the program with one start a batch does, for shards and for every way of transferring."""
    problem = small_problem(seed)
    best = brute_force_placement(problem)
    form = BATCH_FORMS[seed % len(BATCH_FORMS)]
    form = dataclasses.replace(form, node_of_device=np.arange(problem.num_devices) % 2)
    result = solve_placement_milp(problem, budget=Budget(60), settings=form)
    check(problem, result, best)


@settings(max_examples=draws(10), deadline=None)
@given(seeds)
def test_transfers_in_any_order_bound_those_in_turn(seed: int) -> None:
    """Letting transfers go in any order can only help: its bound holds for list scheduling."""
    problem = small_problem(seed)
    best = brute_force_placement(problem)
    form = PlacementMilpSettings(served=False)
    result = solve_placement_milp(problem, budget=Budget(60), settings=form)
    assert result.bound <= best * (1 + 1e-12)
    if result.value is not None:
        assert result.value >= best * (1 - 1e-12)


def test_a_byte_too_much_is_too_much() -> None:
    """A device overloaded by less than the solver's tolerance is still overloaded."""
    problem = random_placement_problem(0, 2, 2, density=0.0, zero_fraction=0.0, forbidden_fraction=0.0)
    problem.time_s[:, 0, 1], problem.time_s[:, 1, 1] = 1.0, 10.0
    problem.weight_bytes[:] = [6e11, 4e11 + 20.0]
    problem.shard_bytes[:] = 0.0
    problem.capacity_bytes[:] = 1e12
    check(problem, solve_placement_milp(problem, budget=Budget(60)), brute_force_placement(problem))


@settings(max_examples=draws(20), deadline=None)
@given(seeds)
def test_windows_hold_the_best_placement(seed: int) -> None:
    """With any limit from the best makespan on, the batches of the placement found lie in their windows."""
    problem = small_latency(seed)
    result = solve_placement_milp(problem, budget=Budget(60))
    if result.placement is None or result.value is None:
        return
    if result.value == 0.0:
        return
    windows = shard_windows(problem, result.value * (1 + 1e-9), possible_batches(problem))
    assert windows is not None
    run = timeline(problem, result.placement)
    for v, i in enumerate(result.placement.device[:, 0].tolist()):
        assert windows.allowed[v, i, 1]
        assert windows.head_s[v, i] <= run.start_s[v, i] * (1 + 1e-9)
        assert windows.least_s[v, i] + windows.tail_s[v, i] <= result.value * (1 + 1e-9)
    assert result.value <= latest_end(problem, possible_batches(problem)) * (1 + 1e-9)


def test_budgets_are_statuses() -> None:
    """No time and few nodes leave a start as it is, with a bound that holds."""
    problem = random_placement_problem(3, 14, 3)
    start = feasible_start(problem, 0)
    assert start is not None
    none = solve_placement_milp(problem, budget=Budget(0.0), start=start)
    assert (none.status, none.value) == ("feasible", makespan(problem, start))
    few = solve_placement_milp(problem, budget=Budget(60), start=start, settings=PlacementMilpSettings(node_limit=1))
    again = solve_placement_milp(problem, budget=Budget(60), start=start, settings=PlacementMilpSettings(node_limit=1))
    assert few.value is not None
    assert few.bound <= few.value <= makespan(problem, start)
    assert (few.value, few.bound) == (again.value, again.bound)


@pytest.mark.parametrize("rows", [0, 11_000])
def test_a_limit_may_end_while_the_program_is_written(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """The start comes back with what was known before, whether rows are being collected or handed over."""
    problem = random_placement_problem(3, 30, 3, transfers="exclusive", forbidden_fraction=0.0)
    start = random_placement(problem, np.random.default_rng(3))
    looks = itertools.count()
    monkeypatch.setattr(Budget, "expired", property(lambda _: next(looks) > rows / 256))
    result = solve_placement_milp(problem, budget=Budget(60), start=start, lower=1e-6)
    assert (result.status, result.bound, result.placement) == ("feasible", 1e-6, start)
    assert result.value == makespan(problem, start)


def test_callbacks_see_what_the_result_holds() -> None:
    """Values reported fall to the value, and bounds reported stay below it."""
    problem = random_placement_problem(5, 8, 2)
    values: list[float] = []
    bounds: list[float] = []
    result = solve_placement_milp(
        problem, budget=Budget(60), on_solution=lambda _, value: values.append(value), on_bound=bounds.append
    )
    assert result.value == values[-1]
    assert values == sorted(values, reverse=True)
    assert all(bound <= result.value for bound in bounds)


def test_settings_are_checked() -> None:
    """An unknown form is an error that names its options."""
    with pytest.raises(ValueError, match="tasks"):
        PlacementMilpSettings(intra_symmetry="some")  # type: ignore[arg-type]


def test_alike_devices_and_nodes() -> None:
    """Devices and nodes that may be exchanged are found, and no others."""
    problem = random_placement_problem(2, 5, 4, identical=True, forbidden_fraction=0.0)
    assert alike_devices(problem) == [[[0], [1], [2], [3]]]
    nodes = np.array([0, 0, 1, 1])
    assert alike_devices(problem, nodes) == [[[0], [1]], [[2], [3]]]
    assert alike_nodes(problem, nodes) == [[[0, 1], [2, 3]]]
    problem.capacity_bytes[3] = 1.0
    assert alike_devices(problem) == [[[0], [1], [2]]]
    assert alike_nodes(problem, nodes) == []


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_order_of_alike_devices_keeps_the_best(seed: int) -> None:
    """Every order of alike devices and of alike nodes leaves a best placement in the program."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        seed,
        int(rng.integers(3, 7)),
        4,
        memory_fraction=float(rng.choice([np.inf, 0.5])),
        integer=bool(rng.random() < 0.5),
        identical=True,
        forbidden_fraction=0.0,
    )
    nodes = np.array([0, 1, 0, 1])
    problem.s_per_byte[nodes[:, None] != nodes] *= 3.0
    free = PlacementMilpSettings(intra_symmetry="none", inter_symmetry="none")
    best = solve_placement_milp(problem, budget=Budget(60), settings=free).value
    form = PlacementMilpSettings(
        intra_symmetry=str(rng.choice(_ORDERS)),  # type: ignore[arg-type]
        inter_symmetry=str(rng.choice(_ORDERS)),  # type: ignore[arg-type]
        node_of_device=nodes,
    )
    result = solve_placement_milp(problem, budget=Budget(60), settings=form)
    check(problem, result, np.inf if best is None else best)
