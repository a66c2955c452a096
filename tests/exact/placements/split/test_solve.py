"""Properties of splitting a problem into blocks."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.split import separators, solve
from rlinit.exact.placements.split.search import MAX_BLOCK_OPS
from rlinit.exact.placements.split.solve import solve_split
from rlinit.placements.timeline import makespan, placement_from_priority
from rlinit.plan import Transfers
from tests.draws import draws
from tests.exact.placements.split.cases import any_placement_problem, brute_force, chain_of_blocks, make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem

TIGHT = 1 + 1e-12


@settings(max_examples=draws(80), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_one_channel_is_exact(seed: int, groups: bool) -> None:
    """Without memory limits the split finds and proves the optimum, infeasible problems included."""
    problem = any_placement_problem(seed, max_ops=7, chain=True, groups=groups)
    best = brute_force(problem)
    result = solve_split(problem, budget=Budget(), channels=1)
    if result.placement is None:
        assert best == np.inf
        assert result.bound == np.inf
        return
    assert result.exact
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound == pytest.approx(best, rel=1e-9)
    assert makespan(problem, result.placement) == result.value


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, "auto"]), st.booleans(), st.integers(1, 3))
def test_value_and_bound_enclose_the_optimum(seed: int, channels: int, chain: bool, min_ops: int) -> None:
    """With memory limits and several channels the optimum lies between the bound and the value."""
    problem = any_placement_problem(seed, max_ops=6, chain=chain, memory=True)
    best = brute_force(problem)
    with mock.patch.object(solve, "LEAST_OPS", min_ops):
        result = solve_split(problem, budget=Budget(), channels=channels)
    assert result.bound <= best * TIGHT
    if result.value is not None:
        assert result.value >= best / TIGHT
        assert result.placement is not None
        assert makespan(problem, result.placement) == result.value
    if result.exact:
        assert result.value == pytest.approx(best, rel=1e-9)
    if channels == 1:
        # Blocks end with separators, so that the schedules carried along cover every schedule there is.
        assert result.bound == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_side_outputs_are_put_aside(transfers: Transfers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound without ops that lead to other outputs alone is one of the whole; with them it is a placement again."""
    monkeypatch.setattr(separators, "_SIDE_OPS", 1.0)
    aside = exact = 0
    for seed in range(120):
        problem = random_placement_problem(
            seed,
            3 + seed % 3,
            2,
            transfers=transfers,
            density=(0.2, 0.5)[seed % 2],
            scale=(1.0, 1e-9, 1e12)[seed // 2 % 3],
            memory_fraction=(np.inf, 0.6)[seed // 3 % 2],
            group_fraction=(0.0, 0.4)[seed // 5 % 2],
            integer=seed % 4 == 0,
        )
        best = brute_force_placement(problem)
        result = solve_split(problem, budget=Budget(), channels=1)
        aside += sum(map(len, result.blocks)) < problem.num_ops
        exact += result.exact
        assert result.bound <= best * TIGHT, seed
        if result.placement is not None:
            assert best / TIGHT <= makespan(problem, result.placement) == result.value, seed
            device = result.placement.device
            assert (device == device[problem.group]).all(), seed
        late = solve_split(problem, budget=Budget(0.0), channels=1)
        assert late.bound <= best * TIGHT, seed
        assert late.value is None or late.value >= best / TIGHT, seed
    assert aside > 40
    assert exact > 20 or transfers != "parallel"


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["exclusive", "blocking"]))
def test_bound_holds_for_transfers_that_share_links(seed: int, transfers: str) -> None:
    """Where links are shared the bound is still one."""
    missing = 0.1 if transfers == "exclusive" else 0.0
    problem = random_placement_problem(seed, 5, 2, transfers=transfers, missing_links=missing)  # type: ignore[arg-type]
    best = brute_force_placement(problem)
    result = solve_split(problem, budget=Budget())
    assert result.bound <= best * TIGHT
    assert result.value is None or result.value >= best / TIGHT


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 10**6), st.floats(0.5, 1.5))
def test_cutoff_does_not_spoil_the_bound(seed: int, factor: float) -> None:
    """Given a makespan to beat, the bound holds, and what is better is found."""
    problem = any_placement_problem(seed, max_ops=6, chain=True)
    best = brute_force(problem)
    upper = best * factor
    result = solve_split(problem, budget=Budget(), channels=1, upper=upper)
    assert result.bound <= best * TIGHT
    if best < upper * (1 - 1e-9) < np.inf:
        assert result.value == pytest.approx(best, rel=1e-9)
    elif np.isfinite(upper):
        assert result.bound >= min(best, upper) * (1 - 1e-8)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 30))
def test_bound_holds_when_work_ends(seed: int, max_work: int) -> None:
    """Stopped at any time, the split has a bound, and a value if it has a schedule."""
    problem = any_placement_problem(seed, max_ops=7, chain=True, memory=seed % 2 == 0)
    best = brute_force(problem)
    for result in (
        solve_split(problem, budget=Budget(), max_work=max_work),
        solve_split(problem, budget=Budget(0.0), max_work=max_work),
    ):
        assert result.bound <= best * TIGHT
        assert result.value is None or result.value >= best / TIGHT


@pytest.mark.parametrize("jobs", [1, 2])
def test_ten_blocks_are_proven(jobs: int) -> None:
    """Ten random blocks of eight ops on three devices are proven, with threads as without."""
    problem = chain_of_blocks(4, num_blocks=10, block_ops=8, num_devices=3)
    result = solve_split(problem, budget=Budget(), jobs=jobs)
    assert result.exact
    assert result.value == solve_split(problem, budget=Budget(), jobs=1).value
    assert len(result.blocks) >= 10


def test_copies_of_a_block_are_solved_once() -> None:
    """Twenty copies of a block take hardly more work than two."""
    work = []
    for count in (3, 20):
        problem = chain_of_blocks(4, num_blocks=count, block_ops=9, num_devices=3, same=True)
        result = solve_split(problem, budget=Budget())
        assert result.exact
        work.append(result.work)
    assert work[1] < 10 * work[0]


def test_parts_too_large_to_search_have_a_schedule_and_a_bound() -> None:
    """A block beyond what can be searched is still scheduled and bounded."""
    problem = chain_of_blocks(2, num_blocks=2, block_ops=MAX_BLOCK_OPS + 30, num_devices=2)
    result = solve_split(problem, budget=Budget(5.0), max_work=50_000)
    assert result.value is not None
    assert 0 < result.bound <= result.value


def test_several_channels() -> None:
    """Blocks joined by two tensors are scheduled one into the other, within the guarantee of the bound."""
    problem = chain_of_blocks(5, num_blocks=4, block_ops=8, num_devices=2, channels=2)
    result = solve_split(problem, budget=Budget(5.0), channels=2, max_work=100_000)
    assert result.value is not None
    assert result.value <= 2 * result.bound
    serial = placement_from_priority(problem, np.ones((problem.num_ops, 1), np.int64), np.zeros(problem.num_ops))
    assert result.value <= makespan(problem, serial)


def test_memory_that_binds_is_respected() -> None:
    """Where all that is fast does not fit in one device, the split spreads it and proves the optimum."""
    n = 6
    problem = make_problem(
        np.tile([[2.0, 1.0]], (n, 1)),
        [(v, v + 1) for v in range(n - 1)],
        s_per_byte=np.array([[0.0, 0.5], [0.5, 0.0]]),
        weight_bytes=np.ones(n),
        capacity_bytes=np.array([6.0, 4.0]),
    )
    result = solve_split(problem, budget=Budget(), channels=1)
    assert result.value == 4 * 1 + 2 * 2 + 0.5
    assert result.exact


def test_batches_are_refused() -> None:
    """A problem with shards is not one the split takes."""
    problem = random_placement_problem(0, 3, 2, shards=2)
    with pytest.raises(ValueError, match="1 shard"):
        solve_split(problem, budget=Budget())


def test_results_repeat() -> None:
    """The same problem gives the same placement."""
    problem = chain_of_blocks(6, num_blocks=5, block_ops=9, num_devices=3)
    first, second = (solve_split(dataclasses.replace(problem), budget=Budget()) for _ in range(2))
    assert first.placement is not None
    assert second.placement is not None
    assert (first.placement.sequence == second.placement.sequence).all()
    assert first.work == second.work
