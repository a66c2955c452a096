"""Refuted trial makespans: never one that a placement has, and those that simple arguments refute."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import Transfers
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9
WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")


def _case(seed: int) -> PlacementProblem:
    """Return a tiny problem of one shard of some kind, by its seed."""
    way = WAYS[seed % 3]
    return random_placement_problem(
        seed,
        num_ops=3 + seed % 3,
        num_devices=2 if seed % 5 else 3,
        transfers=way,
        density=(0.0, 0.35, 0.7)[seed // 3 % 3],
        scale=(1.0, 1e-9, 1e12)[seed // 7 % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 4 % 4],
        memory_fraction=(np.inf, 0.7, 0.5, 0.35)[seed // 2 % 4],
        group_fraction=(0.0, 0.4)[seed // 6 % 2],
        missing_links=(0.0, 0.3)[seed // 5 % 2] if way != "blocking" else 0.0,
        integer=seed % 4 == 0,
        identical=seed % 11 == 0,
    )


@pytest.mark.parametrize("first", range(0, 2_000, 250))
def test_no_makespan_that_a_placement_has_is_refuted(first: int) -> None:
    """By propagation, and with branching to the end, the bound is at most what brute force finds."""
    for seed in range(first, first + 250):
        problem = _case(seed)
        best = brute_force_placement(problem)
        for upper in (np.inf, best * (1.0 + 0.3 * (seed % 2)) if np.isfinite(best) else 1.0):
            search = DestructiveSearch(problem, upper=upper)
            assert search.run(0, Budget()) <= best * CLOSE, seed
            assert search.run(400, Budget()) <= best * CLOSE, seed


def test_branching_to_the_end_proves_small_problems() -> None:
    """With parallel transfers and no memory limit the bound reaches the optimum, as orders are branched on too."""
    for seed in range(60):
        problem = random_placement_problem(seed, 5, 2, integer=seed % 2 == 0)
        best = brute_force_placement(problem)
        search = DestructiveSearch(problem, upper=best * 1.1)
        assert search.run(100_000, Budget()) >= best * (1.0 - 3e-4), seed
        assert search.exhausted


def test_bounds_step_over_quanta() -> None:
    """Where all data are multiples of a quantum, bounds of trials are, and reach the value exactly."""
    found = 0
    for seed in range(0, 80, 4):
        problem = random_placement_problem(seed, 5, 2, integer=True, transfer=0.0, scale=0.5)
        quantum, best = makespan_quantum(problem), brute_force_placement(problem)
        if quantum > 0 and best > 0:
            found += 1
            assert DestructiveSearch(problem, upper=best).run(100_000, Budget()) == best, seed
    assert found > 5


@pytest.mark.parametrize("scale", [0.1, 0.2, 1 / 3, 0.7e-9])
def test_trials_end_where_multiples_of_the_quantum_round(scale: float) -> None:
    """A trial that was not refuted is not tried again, though its quotient by the quantum rounds upwards."""
    for seed in range(30):
        problem = random_placement_problem(seed, 5, 2, transfer=0.0, scale=scale, integer=True, identical=True)
        search = DestructiveSearch(problem)
        for _ in range(60):
            search.run(200, Budget(5.0))
        assert search.nodes < 60 * 400, seed
        assert search.bound_s <= brute_force_placement(problem) * CLOSE, seed


def test_more_choices_never_lower_the_bound() -> None:
    """The bound of a continued search grows, also past bounds that it is told of."""
    problem = random_placement_problem(5, 12, 3)
    search, last = DestructiveSearch(problem), 0.0
    search.raise_bound(0.1)
    for _ in range(8):
        bound = search.run(50, Budget())
        assert bound >= max(last, 0.1)
        last = bound


@pytest.mark.parametrize("num_devices", [2, 3])
def test_whole_ops_do_not_split(num_devices: int) -> None:
    """Equal ops on equal devices take as many rounds as the fullest device runs, which no fraction knows."""
    problem = random_placement_problem(
        0, 2 * num_devices + 1, num_devices, density=0.0, zero_fraction=0.0, forbidden_fraction=0.0, identical=True
    )
    times = np.ones_like(problem.time_s)
    times[:, :, 0] = 0.0
    problem.time_s[:] = times
    search = DestructiveSearch(problem, upper=4.0)
    assert search.run(10_000, Budget()) == pytest.approx(3.0)


def test_an_expired_budget_ends_it_at_once() -> None:
    """Without time nothing is tried."""
    search = DestructiveSearch(random_placement_problem(3, num_ops=40))
    assert search.run(1_000, Budget(0.0)) == 0.0
    assert search.nodes == 0
