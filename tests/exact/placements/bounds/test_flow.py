"""The dual ascent of placements: any multipliers give a bound, and the ascent ends where the relaxation does."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.exact.placements.bounds.flow import FlowBound, FlowStart
from rlinit.exact.placements.bounds.flow_kernel import FlowState, ascend
from rlinit.exact.placements.bounds.registry import FlowProblem, flow_problem
from rlinit.placements.problem import PlacementProblem
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9


def _case(seed: int) -> PlacementProblem:
    """Return a tiny problem of one shard: ties, zeros, scales, groups, missing links, tight memory, by its seed."""
    return random_placement_problem(
        seed,
        num_ops=4 + seed % 2,
        num_devices=3 - seed % 2,
        density=(0.0, 0.35, 0.7)[seed % 3],
        scale=(1.0, 1e-9, 1e12)[seed % 5 % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 3 % 4],
        memory_fraction=(np.inf, 0.7, 0.5, 0.35)[seed % 7 % 4],
        group_fraction=(0.0, 0.4)[seed // 2 % 2],
        missing_links=(0.0, 0.3)[seed // 5 % 2],
        integer=seed % 3 == 0,
        identical=seed % 11 == 0,
    )


def _first(problem: PlacementProblem) -> FlowProblem | None:
    return flow_problem(problem, np.inf, Budget())


@pytest.mark.parametrize("block", range(4))
def test_any_multipliers_give_a_bound(block: int) -> None:
    """Whatever shares, potentials and penalties are proposed, what they prove is not above the least makespan."""
    for seed in range(80 * block, 80 * block + 80):
        problem = _case(seed)
        first, least = _first(problem), brute_force_placement(problem)
        if first is None:
            continue
        rng = np.random.default_rng(seed)
        one = FlowBound(problem, first.window, first.weight)
        m, d = len(problem.edges), problem.num_devices
        for _ in range(3):
            state = one.state
            state.logit[:] = rng.normal(0.0, 10.0 ** rng.uniform(-1, 1.5), len(state.logit))
            # The kernel takes potentials that `_allow` has seen: one step makes any others such.
            state.potential[:] = 0.0
            state.place[:] = rng.dirichlet(np.ones(d), len(state.place)) * one.arrays.allowed
            steps = np.array([rng.exponential(10.0), rng.random(), rng.exponential(5.0), 1e9, 1e9, 1e9])
            best = FlowState(*(part.copy() for part in state))
            mean_cost = np.full(m, float(one.arrays.cost.mean()) if m else 0.0)
            found = ascend(one.arrays, state, best, 1, 6, steps, mean_cost)
            assert found <= least * CLOSE, (seed, found, least)


def test_the_default_start_gives_a_bound_after_any_number_of_rounds() -> None:
    """From the first round to the last, the best bound never falls and never passes the least makespan."""
    for seed in range(120):
        problem = _case(seed)
        first, least = _first(problem), brute_force_placement(problem)
        if first is None:
            continue
        one = FlowBound(problem, first.window, first.weight)
        before = 0.0
        for rounds in (1, 2, 10, 100):
            bound = one.run(rounds, Budget())
            assert before <= bound <= least * CLOSE, (seed, bound, least)
            before = bound


def test_independent_ops_are_bounded_by_their_loads() -> None:
    """Without edges the relaxation is the fractional assignment, and the ascent comes within a percent of it."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        problem = random_placement_problem(seed, num_ops=40, num_devices=3, density=0.0, transfer=0.0)
        first = _first(problem)
        assert first is not None
        one = FlowBound(problem, first.window, first.weight, FlowStart(critical=float(rng.uniform(5.0, 50.0))))
        one.bound_s = 0.0
        assert one.run(2_000, Budget()) >= 0.99 * first.bound_s


def test_an_expired_budget_leaves_the_windows() -> None:
    """Nothing is run, and the bound is that of heads and tails."""
    problem = _case(1)
    first = _first(problem)
    assert first is not None
    one = FlowBound(problem, first.window, first.weight)
    assert one.run(10, Budget(0.0)) == first.window.floor_s
    assert one.rounds == 0
