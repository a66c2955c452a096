"""The chain of segments and what joins it to the relaxation: bounds at all times, copies searched once, levels."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from rlinit.arrays import FloatArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.chains import segment_problem
from rlinit.exact.placements.analysis.reachability import reachability
from rlinit.exact.placements.analysis.time_windows import possible_batches, shard_windows
from rlinit.exact.placements.bounds.chain import ChainBound
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.registry import JoinedBound
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import Transfers
from tests.draws import draws
from tests.exact.placements.split.cases import make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9


def _copies(seed: int, copies: int, transfers: Transfers) -> PlacementProblem:
    """Return copies of one block of two branches, joined by single ops; equal times in all copies."""
    rng = np.random.default_rng(seed)
    scale = (1.0, 1e-9, 1e12)[seed % 3]
    block = rng.integers(1, 5, (3, 2)) * scale
    times = np.concatenate([block[2:], *[block] * copies])
    edges = []
    for k in range(copies):
        join = 3 * k
        edges += [(join, join + 1), (join, join + 2), (join + 1, join + 3), (join + 2, join + 3)]
    pace = rng.uniform(0.0, 2.0, (2, 2)) * scale
    np.fill_diagonal(pace, 0.0)
    return make_problem(times.astype(float), edges, s_per_byte=pace, transfers=transfers)


@pytest.mark.parametrize("transfers", ["parallel", "exclusive"])
def test_copies_of_a_segment_are_searched_once(transfers: Transfers) -> None:
    """Two copies share their searches, and the bound stays below the optimum and reaches it where all is separated."""
    reached = 0
    for seed in range(8):
        problem = _copies(seed, 2, transfers)
        best = brute_force_placement(problem)
        for upper in (np.inf, best * 1.2):
            window = shard_windows(problem, upper, possible_batches(problem))
            assert window is not None
            chain = ChainBound(problem, window, [0, 3, 6], upper, Budget())
            assert chain.levels[0].segments[1] is chain.levels[0].segments[2] or upper < np.inf
            last = 0.0
            for _ in range(4):
                bound = chain.run(2_000, Budget())
                assert last <= bound <= best * CLOSE, seed
                last = bound
        reached += last >= best * (1.0 - 3e-4)
    assert reached > 4 or transfers != "parallel"


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_continued_bounds_stay_below_the_optimum(transfers: Transfers) -> None:
    """Turns of the relaxation and the chain never prove more than brute force finds, and never less than before."""
    for seed in range(draws(25)):
        problem = random_placement_problem(
            seed,
            4 + seed % 2,
            2,
            transfers=transfers,
            density=(0.3, 0.7)[seed % 2],
            scale=(1.0, 1e-9, 1e12)[seed % 3],
            memory_fraction=(np.inf, 0.6)[seed // 2 % 2],
            group_fraction=(0.0, 0.4)[seed // 3 % 2],
            integer=seed % 4 == 0,
        )
        best = brute_force_placement(problem)
        if not np.isfinite(best):
            continue
        for upper in (best, best * 1.3):
            joined, last = JoinedBound(problem, upper, Budget()), 0.0
            for seconds in (np.inf, 0.05, 0.05):
                bound = joined.run(Budget(seconds if seconds < np.inf else None))
                assert last <= bound <= best * CLOSE, seed
                last = bound


WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")


def _case(seed: int) -> tuple[PlacementProblem, list[int]]:
    """Return a tiny problem of some kind and a chain of it, by its seed."""
    way = WAYS[seed // 2 % 3]
    problem = random_placement_problem(
        seed,
        6,
        2,
        transfers=way,
        density=(0.4, 0.7)[seed % 2],
        scale=(1.0, 1e-9, 1e12)[seed % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 4 % 4],
        memory_fraction=(np.inf, 0.7)[seed // 3 % 2],
        group_fraction=(0.0, 0.4)[seed // 5 % 2],
        missing_links=(0.0, 0.3)[seed // 7 % 2] if way != "blocking" else 0.0,
        integer=seed % 4 == 0,
        identical=seed % 11 == 0,
    )
    reach, rng = reachability(problem.order, problem.succ_indptr, problem.succ), np.random.default_rng(seed)
    chain = [int(rng.integers(0, 2))]
    for v in range(6):
        if reach[chain[-1], v] and rng.random() < 0.8:
            chain.append(v)
    return problem, chain


def _least_times(problem: PlacementProblem, chain: list[int], a: int, b: int) -> FloatArray:
    """Return by brute force the least times of the segment between two ops of the chain, by devices of its ends."""
    window = shard_windows(problem, np.inf, possible_batches(problem))
    assert window is not None
    ends = [-1, *chain, -1]
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    segment, ops = segment_problem(problem, window, reach, ends[a], ends[b])
    least = np.full((2, 2), np.inf)
    for i, j in np.ndindex(2, 2):
        if (ends[a] < 0 and i > 0) or (ends[b] < 0 and j > 0):
            continue
        time_s = segment.time_s.copy()
        for op, device in ((ends[a], i), (ends[b], j)):
            if op >= 0:
                time_s[np.searchsorted(ops, op), 1 - device, 1] = np.inf
        if np.isfinite(time_s[:, :, 1]).any(axis=1).all():
            least[i, j] = brute_force_placement(dataclasses.replace(segment, time_s=time_s))
    return least


@pytest.mark.parametrize("first", range(0, draws(60), 20))
def test_no_segment_takes_less_than_its_bound(first: int) -> None:
    """Tables of single and of longer segments stay below brute force, and a level proves no less than the one below."""
    levels = 0
    for seed in range(first, first + 20):
        problem, chain = _case(seed)
        best = brute_force_placement(problem)
        window = shard_windows(problem, np.inf, possible_batches(problem))
        if not np.isfinite(best) or window is None:
            continue
        bound, last = ChainBound(problem, window, chain, np.inf, Budget()), 0.0
        for _ in range(4):
            value = bound.run(300, Budget())
            assert last <= value <= best * CLOSE, seed
            last = value
        below = 0.0
        for level in bound.levels:
            level.add_up()
            proven = float(level.shortest()[0][-1].min())
            assert below * (1.0 - 1e-12) <= proven <= best * CLOSE, seed
            below = proven
            for a, b, segment in level.spans:
                assert (segment.bound_s <= _least_times(problem, chain, a, b) * CLOSE).all(), (seed, a, b)
        levels += len(bound.levels) > 2
    assert levels > 4


@pytest.mark.parametrize("transfers", WAYS)
def test_pairs_of_alike_devices_share_their_bounds(transfers: Transfers) -> None:
    """Two alike devices and a third: no pair of devices takes less than what is proven for pairs like it."""
    alike, shared = np.array([0, 0, 2]), 0
    for seed in range(draws(15)):
        problem = random_placement_problem(seed, 5, 3, transfers=transfers, density=0.5, integer=seed % 2 == 0)
        pace, delay = (np.where(np.eye(3) > 0, 0.0, each.max()) for each in (problem.s_per_byte, problem.delay_s))
        capacity = problem.capacity_bytes[alike]
        times = problem.time_s[:, alike]
        problem = dataclasses.replace(problem, time_s=times, s_per_byte=pace, delay_s=delay, capacity_bytes=capacity)
        window = shard_windows(problem, np.inf, possible_batches(problem))
        reach = reachability(problem.order, problem.succ_indptr, problem.succ)
        between = np.where(reach, reach.astype(np.int64) @ reach, -1)
        u, v = divmod(int(between.argmax()), len(reach))
        if window is None or not reach[u, v]:
            continue
        bound = ChainBound(problem, window, [u, v], np.inf, Budget())
        bound.run(600, Budget())
        segment = bound.levels[0].segments[1]
        assert (segment.alike((0, 0)) == np.diag([True, True, False])).all()
        assert segment.alike((0, 1)).sum() == segment.alike((2, 1)).sum() == segment.alike((1, 2)).sum() == 2
        whole, ops = segment_problem(problem, window, reach, u, v)
        for i, j in np.ndindex(3, 3):
            time_s = whole.time_s.copy()
            for op, device in ((u, i), (v, j)):
                time_s[np.searchsorted(ops, op), np.arange(3) != device, 1] = np.inf
            if np.isfinite(time_s[:, :, 1]).any(axis=1).all():
                least = brute_force_placement(dataclasses.replace(whole, time_s=time_s))
                assert segment.bound_s[i, j] <= least * CLOSE, seed
        shared += 1
    assert shared > 2


def test_trials_with_lags_stay_below_the_optimum() -> None:
    """With the exact least times between neighbours as lags propagation proves their sum, and trials no false bound."""
    for seed in range(200, 230):
        problem, chain = _case(seed)
        problem = dataclasses.replace(problem, transfers="parallel")
        best = brute_force_placement(problem)
        if not np.isfinite(best):
            continue
        pairs = np.array(list(itertools.pairwise([-1, *chain, -1])), np.int64)
        exact = np.array([_least_times(problem, chain, k, k + 1) for k in range(len(pairs))])
        total = np.array([0.0, np.inf])
        for lag in exact:
            total = (total[:, None] + lag).min(axis=0)
        for upper in (np.inf, best * 1.2):
            search = DestructiveSearch(problem, upper=upper, lags=(pairs, exact * (1.0 - 1e-12)))
            propagated = search.run(0, Budget())
            assert propagated <= best * CLOSE, seed
            assert upper == np.inf or propagated >= total[0] - 3e-4 * best, seed
            assert search.run(300, Budget()) <= best * CLOSE, seed


def test_a_longer_segment_knows_what_is_beside_the_chain() -> None:
    """On one device ops that run beside the chain count for the longer segment alone."""
    problem = make_problem(np.ones((5, 1)), [(0, 1), (1, 2), (2, 4), (0, 3), (3, 4)])
    window = shard_windows(problem, np.inf, possible_batches(problem))
    assert window is not None
    chain = ChainBound(problem, window, [0, 1, 2, 4], np.inf, Budget())
    assert chain.run(2_000, Budget()) == pytest.approx(5.0)
    assert float(chain.levels[0].shortest()[0][-1].min()) == pytest.approx(4.0)
