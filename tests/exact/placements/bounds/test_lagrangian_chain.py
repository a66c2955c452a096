"""Memory multipliers along a chain: never above the optimum, sharp where order does not matter, placements that fit."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import possible_batches, shard_windows
from rlinit.exact.placements.bounds.lagrangian_chain import LagrangianChain, lagrangian_chain
from rlinit.exact.placements.bounds.lagrangian_primal import assemble
from rlinit.exact.placements.bounds.lagrangian_segments import LagrangianSegment
from rlinit.exact.placements.bounds.registry import load_bound, memory_bound
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan
from rlinit.plan import Transfers
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9
WORK = 200_000


def _chain(problem: PlacementProblem, ops: list[int], upper: float = np.inf) -> LagrangianChain | None:
    window = shard_windows(problem, upper, possible_batches(problem))
    return None if window is None else LagrangianChain(problem, window, ops, upper)


def _path(seed: int, memory_fraction: float) -> PlacementProblem:
    """Return a problem whose ops follow one another."""
    problem = random_placement_problem(seed, num_ops=6, num_devices=2, memory_fraction=memory_fraction)
    return dataclasses.replace(problem, edges=np.array([(v, v + 1) for v in range(5)], np.int64))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    transfers=st.sampled_from(["parallel", "exclusive", "blocking"]),
    memory=st.sampled_from([0.3, 0.45, 0.6, np.inf]),
    groups=st.sampled_from([0.0, 0.4]),
    missing=st.sampled_from([0.0, 0.3]),
    scale=st.sampled_from([1.0, 1e-9, 1e12]),
    length=st.integers(0, 3),
    slack=st.sampled_from([0.8, 1.0, 1.2, np.inf]),
)
def test_the_bound_of_any_chain_is_at_most_the_least_makespan(
    seed: int,
    transfers: Transfers,
    memory: float,
    groups: float,
    missing: float,
    scale: float,
    length: int,
    slack: float,
) -> None:
    """Whatever chain, transfers, memory, groups, links and scale, the bound is at most that of brute force or upper."""
    problem = random_placement_problem(
        seed,
        num_ops=4 + seed % 2,
        num_devices=2 + (seed % 2 == 0),
        transfers=transfers,
        density=0.5,
        scale=scale,
        memory_fraction=memory,
        group_fraction=groups,
        missing_links=missing if transfers != "blocking" else 0.0,
        integer=seed % 3 == 0,
    )
    least = brute_force_placement(problem)
    upper = least * slack if np.isfinite(least) else np.inf
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    ops: list[int] = []
    for v in np.random.default_rng(seed).permutation(problem.num_ops).tolist():
        if len(ops) < length and all(reach[u, v] or reach[v, u] for u in ops):
            ops.append(v)
    chain = _chain(problem, sorted(ops, key=problem.order.tolist().index), upper)
    if chain is not None:
        assert chain.run(WORK, Budget()) <= least * CLOSE
    else:
        assert least * CLOSE >= upper


@pytest.mark.parametrize("memory_fraction", [0.55, 0.7, np.inf])
def test_where_ops_follow_one_another_the_bound_is_the_optimum(memory_fraction: float) -> None:
    """On a path of ops, whatever the chain, halving arcs closes what multipliers alone leave open."""
    for seed in range(4):
        problem = _path(seed, memory_fraction)
        least = brute_force_placement(problem)
        for ops in ([], [2], [0, 1, 2, 3, 4, 5]):
            chain = _chain(problem, ops)
            if np.isfinite(least):
                assert chain is not None
                assert chain.run(4 * WORK, Budget()) >= least * (1.0 - 2e-3), (seed, ops)


def test_what_a_segment_costs_is_the_least_over_all_devices() -> None:
    """Along a path the cost of an arc is the least time with transfers and multipliers, by enumeration."""
    problem = _path(3, np.inf)
    window = shard_windows(problem, np.inf, possible_batches(problem))
    assert window is not None
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    held = problem.weight_bytes + problem.shard_bytes
    segment, multiplier = LagrangianSegment(problem, window, reach, 0, 5, held), np.array([0.3, 0.1])
    time_s = problem.op_time_s
    for arc in segment.arcs():
        least = np.inf
        for inner in itertools.product(range(2), repeat=4):
            device = (arc.source, *inner, arc.target)
            total = sum(time_s[v, device[v]] + multiplier[device[v]] * held[v] for v in range(5))
            total += sum(problem.transfer_s(v, device[v], device[v + 1]) for v in range(5))
            least = min(least, total)
        cost, _ = segment.cost(arc, multiplier, WORK)
        assert cost == pytest.approx(least)
        assert segment.cost(dataclasses.replace(arc, columns=[]), multiplier, 2)[0] <= least * CLOSE
        assert arc.least(multiplier) == pytest.approx(least)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), memory=st.sampled_from([0.35, 0.5, np.inf]))
def test_what_is_put_together_fits(seed: int, memory: float) -> None:
    """A placement from the columns breaks no constraint, and is not better than the bound."""
    problem = random_placement_problem(seed, num_ops=14, density=0.25, memory_fraction=memory, group_fraction=0.1)
    window = shard_windows(problem, np.inf, possible_batches(problem))
    chain = None if window is None else lagrangian_chain(problem, window, np.inf, Budget())
    if chain is not None:
        bound = chain.run(WORK, Budget())
        found = assemble(chain)
        if found is not None:
            assert bound <= makespan(problem, found) * CLOSE < np.inf


def test_the_same_problem_gives_the_same_bound() -> None:
    """Without a time limit, effort is counted: two runs agree to the last bit, and so do their placements."""
    problem = random_placement_problem(5, num_ops=24, density=0.15, memory_fraction=0.4)
    runs = []
    for _ in range(2):
        window = shard_windows(problem, np.inf, possible_batches(problem))
        assert window is not None
        chain = lagrangian_chain(problem, window, np.inf, Budget())
        assert chain is not None
        bound, found = chain.run(WORK, Budget()), assemble(chain)
        runs.append((bound, chain.nodes, None if found is None else found.sequence.tolist()))
    assert runs[0] == runs[1]


def test_tight_memory_counts_together_with_the_path() -> None:
    """Two devices that hold half of a path each, and a dear link: the bound knows that the path has to cross it."""
    problem = dataclasses.replace(
        _path(0, np.inf),
        time_s=np.stack([np.zeros((6, 2)), np.ones((6, 2))], axis=2),
        tensor_bytes=np.ones(6),
        weight_bytes=np.ones(6),
        shard_bytes=np.zeros(6),
        capacity_bytes=np.array([3.0, 3.0]),
        s_per_byte=np.array([[0.0, 5.0], [5.0, 0.0]]),
        delay_s=np.zeros((2, 2)),
    )
    assert memory_bound(problem) == pytest.approx(11.0, rel=2e-3)
    assert load_bound(problem) == pytest.approx(6.0)


def test_ops_that_cost_nothing_somewhere_have_a_bound() -> None:
    """Where the least time of every op is zero, the magnitude of the program is that of the other times."""
    problem = random_placement_problem(5, num_ops=2, num_devices=3, scale=1e12)
    time_s = problem.time_s.copy()
    time_s[[0, 1], [0, 1], 1] = 0.0
    problem = dataclasses.replace(problem, time_s=time_s, edges=np.array([(0, 1)]), capacity_bytes=np.full(3, np.inf))
    assert 0.0 <= memory_bound(problem) <= brute_force_placement(problem) * CLOSE


def test_magnitudes_far_apart_end_with_the_bound_that_is_proven() -> None:
    """Times and bytes 21 orders apart take no longer than others, and bound the least makespan without limit."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ops, devices = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        problem = random_placement_problem(seed, ops, devices, group_fraction=0.3 * (seed % 2))
        weight = problem.weight_bytes * 10.0 ** rng.uniform(-9, 12, ops)
        problem = dataclasses.replace(
            problem,
            time_s=problem.time_s * 10.0 ** rng.uniform(-9, 12, (ops, devices, 1)),
            tensor_bytes=problem.tensor_bytes * 10.0 ** rng.uniform(-9, 12, ops),
            weight_bytes=weight,
            capacity_bytes=(weight + problem.shard_bytes).sum() * rng.uniform(0.3, 1.0, devices),
        )
        chain = _chain(problem, [])
        if chain is not None:
            assert chain.run(10 * WORK, Budget()) <= brute_force_placement(problem) * CLOSE, seed
            assert chain.nodes < 10 * WORK, seed
