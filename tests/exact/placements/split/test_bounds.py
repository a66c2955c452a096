"""Properties of the lower bounds from blocks, and of the guarantee factors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.arrays import IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.split.bounds import block_bound, guarantee, quick_bound, split_bound
from rlinit.exact.placements.split.separators import channel_cuts, induced
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan
from tests.draws import draws
from tests.exact.placements.split.cases import any_placement_problem, brute_force, make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem

TIGHT = 1 + 1e-12


def random_blocks(problem: PlacementProblem, seed: int) -> list[IntArray]:
    """Cut the topological order anywhere."""
    rng = np.random.default_rng(seed)
    cuts = np.flatnonzero(rng.random(problem.num_ops - 1) < 0.4) + 1
    return [np.asarray(part, np.int64) for part in np.split(problem.order, cuts)]


@settings(max_examples=draws(120), deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_bound_holds_with_exact_parts(seed: int, chain: bool, memory: bool) -> None:
    """Whatever the blocks, the recursion over the optima of their parts is no more than the optimum."""
    problem = any_placement_problem(seed, max_ops=6, chain=chain, memory=memory)
    bound = split_bound(problem, random_blocks(problem, seed), budget=Budget(), lower_bound=brute_force)
    assert bound <= brute_force(problem) * TIGHT


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["parallel", "exclusive", "blocking"]), st.integers(0, 4096))
def test_bound_holds_with_searched_parts(seed: int, transfers: str, max_sets: int) -> None:
    """The bound from searches of the parts holds for any kind of transfers, with groups and missing links."""
    problem = random_placement_problem(
        seed,
        5,
        2,
        transfers=transfers,  # type: ignore[arg-type]
        group_fraction=0.2,
        missing_links=0.1 if transfers != "blocking" else 0.0,
        scale=1e-9,
    )
    blocks = random_blocks(problem, seed)
    best = brute_force_placement(problem)
    assert split_bound(problem, blocks, budget=Budget(), max_sets=max_sets) <= best * TIGHT


@settings(max_examples=draws(30), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3]))
def test_bound_holds_for_shards(seed: int, shards: int) -> None:
    """With several shards, the recursion over the optima of fewer of them is no more than the optimum."""
    ops, density = (3, 0.6) if shards == 2 else (2, 1.0)
    problem = random_placement_problem(seed, ops, 2, shards=shards, density=density, forbidden_fraction=0.0)
    blocks = random_blocks(problem, seed)
    best = brute_force_placement(problem)
    assert split_bound(problem, blocks, budget=Budget(), lower_bound=brute_force_placement) <= best * TIGHT
    assert split_bound(problem, blocks, budget=Budget()) <= best * TIGHT


@settings(max_examples=draws(80), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_bounds_of_parts_hold(seed: int, memory: bool) -> None:
    """The quick bound and the searched one are no more than the optimum, and the search is exact."""
    problem = any_placement_problem(seed, max_ops=6, memory=memory)
    best = brute_force(problem)
    assert quick_bound(problem) <= best * TIGHT
    assert block_bound(Budget())(problem) == pytest.approx(best, rel=1e-9)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 10**6))
def test_quick_bound_holds_for_shards(seed: int) -> None:
    """The quick bound is no more than the optimum with batches."""
    problem = random_placement_problem(seed, 2, 2, shards=3, forbidden_fraction=0.0)
    assert quick_bound(problem) <= brute_force_placement(problem) * TIGHT


def test_remark_of_the_source_fails_for_ops_that_lead_nowhere() -> None:
    """Adding the optimum of all of the first block, as printed, exceeds the optimum; what leads on does not."""
    problem = make_problem(np.array([[1.0, 1.0], [10.0, 10.0], [10.0, 10.0]]), [(0, 2)])
    blocks = [np.array([0, 1]), np.array([2])]
    first, second = (brute_force(induced(problem, block)) for block in blocks)
    best = brute_force(problem)
    assert first + second == 20.0
    assert best == 11.0
    assert split_bound(problem, blocks, budget=Budget(), lower_bound=brute_force) == 11.0


def test_remark_of_the_source_fails_for_batches() -> None:
    """No one input of the second block need wait for L - b + 1 shards: they may be split among the inputs."""
    # Op 0 leads to 2 and op 1 to 3. Ops 0 and 1 take 4 s on devices 2 and 3, one of which a shard has both on; op 2
    # takes 4 s on device 0 and 8 s on 1, op 3 the same on 4 and 5.
    per_shard = np.full((4, 6), np.inf)
    per_shard[:2, 2:4] = per_shard[2, 0] = per_shard[3, 4] = 4.0
    per_shard[2, 1] = per_shard[3, 5] = 8.0
    time_s = np.stack([np.zeros_like(per_shard), per_shard, 2 * per_shard], axis=2)
    problem = make_problem(time_s, [(0, 2), (1, 3)], group=np.array([0, 0, 2, 3]))
    blocks = [np.array([0, 1]), np.array([2, 3])]
    load_one = brute_force_placement(induced(problem, blocks[0], 1))
    after = [brute_force_placement(induced(problem, np.array([v]), 2)) for v in (2, 3)]
    assert load_one + min(after) == 16.0
    # One shard runs op 0 first and the other op 1, so that ops 2 and 3 begin with different shards, where they are
    # slow.
    device = np.array([[2, 3], [2, 3], [1, 0], [4, 5]])
    sequence = [2, 9, 8, 3, 13, 12, 22, 23]
    assert makespan(problem, Placement(device, np.array(sequence))) == 12.0
    assert split_bound(problem, blocks, budget=Budget()) <= 12.0
    recursion = split_bound(problem, blocks, budget=Budget(), lower_bound=brute_force_placement)
    assert recursion == 12.0


@pytest.mark.parametrize(
    ("edges", "alpha", "beta"),
    [
        ([(0, 2), (0, 3), (1, 2), (1, 3)], 1.0, 1.0),
        ([(0, 2), (1, 2), (1, 3)], 0.5, 0.5),
        ([(0, 2), (1, 3)], 0.5, 0.5),
    ],
)
def test_table_of_factors(edges: list[tuple[int, int]], alpha: float, beta: float) -> None:
    """Two channels between blocks of two ops on one device give the cases (a), (b) and (c) of Table 3.1."""
    problem = make_problem(np.ones((4, 1)), edges)
    blocks = [np.array([0, 1]), np.array([2, 3])]
    report = guarantee(problem, blocks, budget=Budget(), lower_bound=brute_force, upper_bound=brute_force)
    (pair,) = report.pairs
    assert min(pair.alpha) == alpha
    assert min(pair.beta) == beta
    assert pair.factor == 2 - max(alpha, beta)


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_factors_hold(seed: int, chain: bool) -> None:
    """The optima of two blocks sum to at most the factor times that of both, and of all to the total factor."""
    problem = any_placement_problem(seed, max_ops=6, chain=chain)
    blocks = random_blocks(problem, seed)
    report = guarantee(problem, blocks, budget=Budget(), lower_bound=brute_force, upper_bound=brute_force)
    searched = guarantee(problem, blocks, budget=Budget())
    assert [pair.factor for pair in searched.pairs] == pytest.approx([pair.factor for pair in report.pairs])
    best = brute_force(problem)
    if not best < np.inf:
        return
    optima = [brute_force(induced(problem, block)) for block in blocks]
    for t, pair in enumerate(report.pairs):
        both = brute_force(induced(problem, np.concatenate(blocks[t : t + 2])))
        assert optima[t] + optima[t + 1] <= pair.factor * both * (1 + 1e-9)
        assert 1.0 <= pair.factor <= 2.0
    assert report.total_s == pytest.approx(sum(optima))
    assert sum(optima) <= report.factor * best * (1 + 1e-9)


def test_bound_is_exact_with_one_channel_and_free_transfers() -> None:
    """On a chain of separators with free transfers the bound is the optimum."""
    problem = any_placement_problem(7, max_ops=6, chain=True, groups=False)
    free = make_problem(problem.op_time_s, [(int(v), int(v) + 1) for v in range(problem.num_ops - 1)])
    blocks = channel_cuts(free, 1)
    assert split_bound(free, blocks, budget=Budget(), lower_bound=brute_force) == pytest.approx(brute_force(free))
