"""Local search over placements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.heuristics.placements.list_scheduling.common import device_memory
from rlinit.heuristics.placements.local_search.search import (
    earliest_finish_start,
    memory_binds,
    sweep_placements,
)
from rlinit.placements.arrays import upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, obstacle, respects_dependencies, timeline
from rlinit.plan import Transfers
from tests.draws import draws
from tests.placement_cases import brute_force_placement, random_placement, random_placement_problem

SEEDS = st.integers(0, 100_000)
MODES = st.sampled_from(["parallel", "exclusive", "blocking"])


def a_problem(seed: int, n: int, shards: int, transfers: Transfers, memory: float = np.inf) -> PlacementProblem:
    """Return a random problem with groups and exclusions."""
    return random_placement_problem(
        seed, n, 3, shards=shards, transfers=transfers, memory_fraction=memory, group_fraction=0.1
    )


@given(seed=SEEDS, shards=st.sampled_from([1, 3]), transfers=MODES, memory=st.sampled_from([np.inf, 0.6]))
@settings(max_examples=draws(60), deadline=None)
def test_never_worse_and_always_feasible(seed: int, shards: int, transfers: Transfers, memory: float) -> None:
    """What comes out keeps every limit, respects every dependency, and is at least as good as what went in."""
    problem = a_problem(seed, 14, shards, transfers, memory)
    start = earliest_finish_start(problem)
    found = sweep_placements(problem, seed=seed, evaluations=5_000)
    if start is None:
        return
    assert found is not None
    assert obstacle(problem, found) == ""
    assert not np.isnan(timeline(problem, found).makespan_s)
    assert makespan(problem, found) <= makespan(problem, start)


@pytest.mark.parametrize("shards", [1, 2])
def test_finds_the_best_of_small_problems(shards: int) -> None:
    """On small problems nearly every search ends at the optimum, and none is far from it."""
    ratios = []
    for seed in range(20 if shards == 1 else 8):
        problem = random_placement_problem(seed, 6 if shards == 1 else 3, 2, shards=shards)
        found = sweep_placements(problem, seed=0, evaluations=40_000)
        assert found is not None
        best = brute_force_placement(problem)
        ratios.append(makespan(problem, found) / best if best > 0 else 1.0)
    assert sum(ratio > 1 + 1e-9 for ratio in ratios) <= 3
    assert max(ratios) < 1.2


def test_tight_memory_is_searched() -> None:
    """Where no single move fits, ops still change places: most small problems are solved."""
    closed = 0
    for seed in range(12):
        problem = random_placement_problem(seed, 7, 2, memory_fraction=0.55, zero_fraction=0.0, forbidden_fraction=0.0)
        assert memory_binds(problem)
        best = brute_force_placement(problem)
        found = sweep_placements(problem, seed=0, evaluations=60_000)
        if found is not None:
            assert obstacle(problem, found) == ""
            closed += makespan(problem, found) <= best * (1 + 1e-9)
    assert closed >= 6


def test_same_seed_same_schedule() -> None:
    """The search depends on its seed alone where no time limit is set."""
    problem = a_problem(5, 40, 1, "parallel")
    first, second = (sweep_placements(problem, seed=1, evaluations=20_000) for _ in range(2))
    assert first is not None
    assert second is not None
    assert np.array_equal(first.sequence, second.sequence)


def test_budgets_end_it() -> None:
    """A spent budget returns the start; a short one is kept to."""
    problem = a_problem(5, 60, 1, "parallel")
    start = random_placement(problem, np.random.default_rng(0))
    if obstacle(problem, start):
        start = earliest_finish_start(problem) or start
    budget = Budget(None)
    budget.cancel()
    assert sweep_placements(problem, seed=0, budget=budget, start=start) is start


@given(seed=SEEDS)
@settings(max_examples=draws(30), deadline=None)
def test_upward_ranks_fall_along_edges(seed: int) -> None:
    """An op's rank is at least that of each consumer."""
    problem = a_problem(seed, 12, 1, "parallel")
    rank = upward_ranks(problem)
    assert all(rank[u] >= rank[v] for u, v in problem.edges.tolist())


@pytest.mark.parametrize(
    ("seed", "shards", "transfers", "memory"),
    [(26_415, 1, "exclusive", 0.6), (31_066, 1, "exclusive", np.inf), (98_920, 3, "exclusive", np.inf)],
)
def test_ops_of_no_length_stay_in_order(seed: int, shards: int, transfers: Transfers, memory: float) -> None:
    """Rounding of start times never puts an op of no length before one that it waits for."""
    problem = a_problem(seed, 14, shards, transfers, memory)
    for again in range(5):
        found = sweep_placements(problem, seed=seed + again, evaluations=5_000)
        assert found is not None
        assert respects_dependencies(problem, found.device, found.sequence)


@given(seed=SEEDS, shards=st.sampled_from([1, 2]), transfers=MODES)
@settings(max_examples=draws(60), deadline=None)
def test_sequences_against_a_dependency_have_no_makespan(seed: int, shards: int, transfers: Transfers) -> None:
    """A sequence in which anything waits for what comes later is infeasible, however many producers came before."""
    problem = random_placement_problem(seed, 7, 2, shards=shards, transfers=transfers, density=0.6)
    rng = np.random.default_rng(seed)
    placement = random_placement(problem, rng)
    shuffled = Placement(placement.device, rng.permutation(placement.sequence))
    if not respects_dependencies(problem, shuffled.device, shuffled.sequence):
        assert makespan(problem, shuffled) == np.inf


@pytest.mark.parametrize("shards", [1, 2])
def test_ops_of_a_group_change_device_together(shards: int) -> None:
    """Where most ops share a device with another, small problems are solved nearly as often as where none does."""
    closed = 0
    for seed in range(12):
        problem = random_placement_problem(
            seed, 6 if shards == 1 else 3, 2, shards=shards, group_fraction=0.6, forbidden_fraction=0.0
        )
        found = sweep_placements(problem, seed=0, evaluations=40_000)
        assert found is not None
        assert obstacle(problem, found) == ""
        closed += makespan(problem, found) <= brute_force_placement(problem) * (1 + 1e-9)
    assert closed >= 11


def test_tied_ops_at_both_ends_leave_a_slow_device() -> None:
    """The first and the last op of a long chain share their weights: together they go where they are fast."""
    n = 200
    time_s = np.zeros((n, 2, 2))
    time_s[:, :, 1] = 1.0
    time_s[0, 1, 1], time_s[-1, 0, 1] = 2.0, 100.0
    edges = np.column_stack([np.arange(n - 1), np.arange(1, n)])
    group = np.arange(n)
    group[-1] = 0
    nothing, links = np.zeros(n), np.zeros((2, 2))
    problem = PlacementProblem(
        "latency",
        "parallel",
        1,
        time_s,
        np.ones(n),
        nothing,
        nothing,
        np.full(2, np.inf),
        0.1 * (1 - np.eye(2)),
        links,
        edges,
        np.arange(n),
        group,
    )
    found = sweep_placements(problem, seed=0, evaluations=200_000)
    assert found is not None
    assert makespan(problem, found) < n + 2


def test_mates_are_the_ops_of_a_group_round_and_round() -> None:
    """From an op, one mate after another leads through its whole group and back."""
    problem = a_problem(3, 60, 1, "parallel")
    mate = device_memory(problem).mate
    for op in range(problem.num_ops):
        seen, at = {op}, int(mate[op])
        while at != op:
            seen.add(at)
            at = int(mate[at])
        assert seen == set(np.flatnonzero(problem.group == problem.group[op]).tolist())
