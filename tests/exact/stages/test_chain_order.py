"""The bound over orders of unlike devices along a longest path: never above the optimum of any order of devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.ideals import chain_order
from rlinit.exact.stages.ideals.chain_order import ChainOrder
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.stages.problem import StageProblem
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


def chain_order_bound(problem: StageProblem, upper: float, budget: Budget | None = None) -> float:
    """Return the bound of a problem."""
    order = ChainOrder.of(problem, upper)
    return 0.0 if order is None else order.raised(0.0, upper, budget or Budget())


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_never_above_the_optimum(problem: StageProblem) -> None:
    """Over every feature and magnitude: transfers, caches, memories, forbidden devices, one device or several."""
    if problem.objective == "memory":
        return
    optimum = brute_force_pipeline(problem)
    for upper in (np.inf, optimum):
        assert chain_order_bound(problem, upper=upper) <= optimum * (1 + 1e-9)


def unlike_problem(seed: int) -> StageProblem:
    """Return a problem of unlike devices: times and transfers drawn apart, ties, zeros, some devices forbidden."""
    rng = np.random.default_rng(seed)
    scale = (1e-9, 1.0, 1e12)[seed % 3]
    n, classes = int(rng.integers(1, 8)), int(rng.integers(2, 5))
    k = int(rng.integers(classes, 5)) if n < 6 else min(classes, 3)
    io, density = float(rng.choice([0.0, 0.3, 2.0])), float(rng.choice([0.0, 0.3, 0.7]))
    problem = random_problem(seed, n, k, num_classes=classes, density=density, io=io, tensors_per_node=1 + seed % 2)
    work = rng.integers(0, 9, (classes, n)).astype(np.float64) * scale
    work[rng.random((classes, n)) < 0.1] = np.inf
    links = io * scale * rng.integers(0, 3, (2, classes, problem.num_tensors))
    return dataclasses.replace(problem, work_s=work, in_s=links[0], out_s=links[1])


@pytest.mark.parametrize("seed", range(draws(100)))
def test_never_above_the_optimum_of_unlike_devices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order of devices, with all positions of the path or few; ideals that it leaves out cost no optimum."""
    problem = unlike_problem(seed)
    optimum = brute_force_pipeline(problem)
    monkeypatch.setattr(chain_order, "LABEL_CAP", (1_000, 2_000, 60_000_000)[seed // 3 % 3])
    for upper in (np.inf, optimum):
        bound = chain_order_bound(problem, upper=upper)
        assert bound <= optimum * (1 + 1e-9)
    for above in (1.01, 3.0):
        found = solve_ideals(problem, 10**6, upper=(optimum * above,))
        assert found is not None
        assert found.bound[0] <= optimum * (1 + 1e-9)
        if 0.0 < optimum < np.inf:
            assert found.value is not None
            assert found.value[0] == pytest.approx(optimum)


def test_it_leaves_out_ideals_that_cannot_be_completed() -> None:
    """After the quick half of a chain is done by the device that is slow on it, the other one has too much left."""
    problem = random_problem(0, 6, 2, num_classes=2, density=1.0, io=0.0)
    half = np.arange(6) < 3
    problem = dataclasses.replace(problem, work_s=np.where(half, [[2.0], [3.0]], [[3.0], [2.0]]))
    order = ChainOrder.of(problem, np.inf)
    assert order is not None
    assert order.raised(0.0, np.inf, Budget()) == pytest.approx(6.0)
    ideals = np.tril(np.ones((7, 6)), -1)
    label = np.zeros((order.states.num_states, 7))
    order.mark(6.0, lambda weight: ideals @ weight, label)
    first = int(order.states.step[0, 0])
    assert label[0, 0] == 0.0
    assert (label[first] == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]).all()


def test_a_device_cannot_pick_its_ops_out_of_a_chain() -> None:
    """Ops by turns quick on one device and on the other: any half of the chain takes each of them equally long."""
    problem = random_problem(0, 40, 2, num_classes=2, density=1.0, io=0.0)
    turns = np.arange(40) % 2
    problem = dataclasses.replace(problem, work_s=np.array([1.0 + 8.0 * turns, 9.0 - 8.0 * turns]))
    assert simple_bound(problem)[0] == pytest.approx(20.0)
    assert 95.0 <= chain_order_bound(problem, upper=np.inf) <= 100.0


def test_it_counts_the_tensors_that_cross_the_path() -> None:
    """Two devices that each are quick on one half of a chain still send its middle tensor."""
    problem = random_problem(0, 6, 2, num_classes=2, density=1.0, io=0.0)
    half = np.arange(6) < 3
    costs = np.full((2, problem.num_tensors), 1.0)
    work = np.where(half, [[2.0], [50.0]], [[50.0], [2.0]])
    bound = chain_order_bound(dataclasses.replace(problem, work_s=work, in_s=costs, out_s=costs), upper=np.inf)
    assert bound == pytest.approx(7.0)
