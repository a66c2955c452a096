"""The rivals of the benchmark tables solve the same problems: brute force on small ones."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest

from benchmarks.peers import PeerResult, horizon_s
from benchmarks.peers.cp_sat import solve_cp_sat
from benchmarks.peers.highs import solve_highs
from rlinit.errors import RlinitError
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan
from tests.placement_cases import all_devices, brute_force_placement, random_placement, random_placement_problem

PEERS = [
    pytest.param(
        "cp_sat",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("ortools") is None, reason="OR-Tools is absent: pip install rlinit[bench]"
        ),
    ),
    "highs",
]


def solve(peer: str, problem: PlacementProblem) -> PeerResult:
    """Run one peer with time to finish, on one thread."""
    if peer == "cp_sat":
        return solve_cp_sat(problem, time_limit_s=20.0, workers=1)
    return solve_highs(problem, time_limit_s=20.0)


def agrees(problem: PlacementProblem, result: PeerResult, best: float) -> None:
    """Check a finished result against the true optimum."""
    if np.isinf(best):
        assert result.status == "infeasible"
        assert result.bound_s == np.inf
        assert result.device.shape == (0, 0)
        return
    tolerance = 1e-6 * horizon_s(problem)
    assert result.status == "optimal"
    assert result.value_s == pytest.approx(best, rel=1e-6, abs=tolerance)
    assert result.bound_s <= best + tolerance
    assert result.bound_s == pytest.approx(best, rel=1e-6, abs=2 * tolerance)
    assert result.device.shape == (problem.num_ops, problem.num_shards)
    assert result.start_s.shape == (problem.num_ops, problem.num_devices)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("seed", range(10))
def test_latency_optimum(peer: str, seed: int) -> None:
    """The best makespan of a small problem with memory, groups, exclusions and missing links is found and proved."""
    problem = random_placement_problem(
        seed,
        5,
        2 + seed % 2,
        scale=(1.0, 1e-9, 1e12)[seed % 3],
        memory_fraction=(np.inf, 0.7, 0.4)[seed % 3],
        group_fraction=0.2 * (seed % 2),
        missing_links=0.2 * (seed % 3),
        integer=seed % 4 == 0,
        identical=seed % 5 == 0,
    )
    agrees(problem, solve(peer, problem), brute_force_placement(problem))


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("seed", range(8))
def test_throughput_optimum(peer: str, seed: int) -> None:
    """The same for several shards an op, whose batches may be split."""
    problem = random_placement_problem(
        seed,
        3,
        2,
        shards=3 if seed % 2 else 2,
        scale=(1.0, 1e-9, 1e12)[seed % 3],
        memory_fraction=(np.inf, 0.8)[seed % 2],
        group_fraction=0.2 * (seed % 2),
        missing_links=0.2 * (seed % 3),
        integer=seed % 4 == 0,
        density=0.5,
    )
    agrees(problem, solve(peer, problem), brute_force_placement(problem))


@pytest.mark.parametrize("peer", PEERS)
def test_batch_sizes_that_are_not_offered(peer: str) -> None:
    """A device that takes batches of two shards only gets two or none."""
    problem = random_placement_problem(1, 3, 2, shards=3, forbidden_fraction=0.0, density=0.5)
    time_s = problem.time_s.copy()
    time_s[:, 0, [1, 3]] = np.inf
    problem = dataclasses.replace(problem, time_s=time_s)
    result = solve(peer, problem)
    agrees(problem, result, brute_force_placement(problem))
    assert set((result.device == 0).sum(axis=1).tolist()) <= {0, 2}


@pytest.mark.parametrize("peer", PEERS)
def test_degenerate_problems(peer: str) -> None:
    """One op, one device, zero times, no edges, and a device so slow that its times exceed any integer."""
    single = random_placement_problem(0, 1, 1, zero_fraction=0.0)
    agrees(single, solve(peer, single), float(single.time_s[0, 0, 1]))
    nothing = random_placement_problem(0, 4, 2, zero_fraction=1.0)
    agrees(nothing, solve(peer, nothing), 0.0)
    loose = random_placement_problem(3, 5, 2, density=0.0, integer=True)
    agrees(loose, solve(peer, loose), brute_force_placement(loose))
    fast = random_placement_problem(4, 5, 2, forbidden_fraction=0.0, scale=1e-9)
    time_s = fast.time_s.copy()
    time_s[:, 1, 1] = 1e12
    slow = dataclasses.replace(fast, time_s=time_s)
    result = solve(peer, slow)
    if peer == "cp_sat":  # A horizon of 1e12 s leaves HiGHS no tolerance to see 1e-9 s with.
        agrees(slow, result, brute_force_placement(slow))


@pytest.mark.parametrize("peer", PEERS)
def test_infeasible_memory_is_proved(peer: str) -> None:
    """Where no placement fits, the peers say so."""
    problem = random_placement_problem(2, 4, 2, memory_fraction=0.1, zero_fraction=0.0)
    agrees(problem, solve(peer, problem), float("inf"))


def test_memory_is_exact_although_its_integers_are_coarse() -> None:
    """Two ops that exceed a device by a billionth are kept apart, though the sizes in the model are rounded."""
    pytest.importorskip("ortools", reason="OR-Tools is absent: pip install rlinit[bench]")
    problem = random_placement_problem(
        0, 4, 2, density=0.0, identical=True, forbidden_fraction=0.0, zero_fraction=0.0, transfer=0.0
    )
    size = np.full(4, 1.0 + 1e-9)
    size[3] = 1e-9
    problem = dataclasses.replace(
        problem,
        time_s=np.where(np.arange(2)[None, :, None] == 0, 1.0, 3.0) * problem.time_s,  # All would run on device 0.
        weight_bytes=size,
        shard_bytes=np.zeros(4),
        capacity_bytes=np.array([2.0, 1e12]),
    )
    agrees(problem, solve("cp_sat", problem), brute_force_placement(problem))


@pytest.mark.parametrize("peer", PEERS)
def test_other_transfers_are_refused(peer: str) -> None:
    """A peer does not solve another problem than the one it is given."""
    with pytest.raises(RlinitError, match="exclusive"):
        solve(peer, random_placement_problem(0, 3, 2, transfers="exclusive"))


@pytest.mark.parametrize("peer", PEERS)
def test_a_spent_limit_still_gives_a_bound(peer: str) -> None:
    """With next to no time the value is a true makespan or absent, and the bound is below it."""
    problem = random_placement_problem(5, 25, 3, density=0.1)
    result = (
        solve_cp_sat(problem, time_limit_s=0.05, workers=1)
        if peer == "cp_sat"
        else solve_highs(problem, time_limit_s=0.05)
    )
    assert 0.0 <= result.bound_s <= horizon_s(problem)
    assert result.bound_s <= result.value_s * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_hint_is_never_lost(seed: int) -> None:
    """CP-SAT returns a schedule no worse than the one it was given, even in no time."""
    pytest.importorskip("ortools", reason="OR-Tools is absent: pip install rlinit[bench]")
    problem = random_placement_problem(seed, 20, 3, shards=1 + seed % 2, density=0.1, forbidden_fraction=0.0)
    rng = np.random.default_rng(seed)
    hint = min((random_placement(problem, rng) for _ in range(20)), key=lambda one: makespan(problem, one))
    result = solve_cp_sat(problem, time_limit_s=1.0, workers=1, hint=hint)
    assert result.value_s <= makespan(problem, hint) * (1 + 1e-6)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("seed", range(4))
def test_values_are_as_good_as_the_claims(peer: str, seed: int) -> None:
    """Ops that take no time start with others on their device; the value computed anew is still the claimed one."""
    problem = random_placement_problem(seed, 9, 2, density=0.15, zero_fraction=0.4, integer=True)
    result = solve(peer, problem)
    assert result.status == "optimal"
    assert result.value_s == pytest.approx(result.bound_s, rel=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_exceeds_the_horizon(seed: int) -> None:
    """No placement's makespan is larger than the horizon both models use as their largest time."""
    problem = random_placement_problem(seed, 6, 3, shards=1 + seed % 3, forbidden_fraction=0.0, density=0.6)
    rng = np.random.default_rng(seed)
    longest = horizon_s(problem) * (1 + 1e-12)
    assert all(makespan(problem, random_placement(problem, rng)) <= longest for _ in range(50))
    assert next(all_devices(problem)).shape == (6, problem.num_shards)
