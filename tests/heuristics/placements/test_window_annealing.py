"""Windows of a schedule, cut out and put back, against the plain timeline."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.list_scheduling.common import device_memory
from rlinit.heuristics.placements.local_search import window_annealing
from rlinit.heuristics.placements.local_search.window_annealing import BatchSequence
from rlinit.kernels.placements.annealing import PassPlan, cooling_factor
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan, shard_masks, timeline, timeline_arrays
from tests.placement_cases import random_placement, random_placement_problem


def _state(problem: PlacementProblem, placement: Placement) -> BatchSequence:
    mask = shard_masks(placement.device, problem.num_devices)
    held = held_bytes(problem, placement.device)
    return window_annealing.new_batch_sequence(placement.sequence, mask, held, problem.num_shards)


def _placement(problem: PlacementProblem, state: BatchSequence) -> Placement:
    bits = np.arange(problem.num_shards)
    device = ((state.mask[:, :, None] >> bits) & 1).argmax(axis=1)
    return Placement(device, state.sequence[: state.num_batches].copy())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [3, 60])
@pytest.mark.parametrize("forwards", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_window_knows_the_makespan(seed: int, width: int, forwards: bool, shards: int) -> None:
    """Without moves a pass changes nothing, and the longest path through any window is at most the makespan."""
    problem = random_placement_problem(seed, 12, 3, shards=shards, density=0.3, forbidden_fraction=0.0)
    placement = random_placement(problem, np.random.default_rng(seed))
    makespan_s = timeline(problem, placement).makespan_s
    a, memory, state = timeline_arrays(problem), device_memory(problem), _state(problem, placement)
    split = shards if shards > 1 else None
    plan = PassPlan(forwards, width, 2, 0, 1.0, 0.1)
    window_annealing.begin_pass(a, state, plan)
    longest = []
    goes_on = True
    while goes_on:
        lo, free, rest = int(state.at[0]), state.free.copy(), state.rest.copy()
        hi = min(lo + width, state.num_batches)
        window_annealing._move_on(a, state, forwards, lo, hi)
        window = window_annealing._cut_out(a, memory, state, lo, hi)
        inside = window_annealing._inside(state, window, lo, hi)
        longest.append(window_annealing._window_cost(a, state, window, inside, 0, np.inf, split))
        state.member[:] = -1
        state.free[:], state.rest[:] = free, rest  # `anneal_windows` moves on by itself.
        goes_on = window_annealing.anneal_windows(np.random.default_rng(0), a, memory, state, plan, 1, split)
    assert max(longest) <= makespan_s * (1 + 1e-12)
    if width == 60:
        assert longest == pytest.approx([makespan_s])
    assert window_annealing.end_pass(a, state) == makespan_s
    assert (state.sequence[: state.num_batches] == placement.sequence).all()


@pytest.mark.parametrize("seed", [*range(12), 81])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_moves_are_kept_or_forgotten_whole(seed: int, shards: int) -> None:
    """After each move, kept or not, costs from any position on are those of the window, which is a schedule."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        seed, 14, 3, shards=shards, density=0.3, forbidden_fraction=0.0, group_fraction=(0.0, 0.3)[seed % 2],
        integer=seed % 3 == 0,
    )  # fmt: skip
    placement = random_placement(problem, rng)
    a, memory, state = timeline_arrays(problem), device_memory(problem), _state(problem, placement)
    split = shards if shards > 1 else None
    size = state.num_batches
    lo, hi = size // 4, size - size // 4
    window_annealing.begin_pass(a, state, PassPlan(True, hi - lo, 2, 0, 1.0, 0.1))
    window_annealing._move_on(a, state, True, lo, hi)
    window = window_annealing._cut_out(a, memory, state, lo, hi)
    x = window_annealing._inside(state, window, lo, hi)
    cost = window_annealing._window_cost(a, state, window, x, 0, np.inf, split)
    window_annealing._commit(window, x, 0, 0, 0, 0)
    for _ in range(60):
        first, count, i, j = window_annealing._propose(rng, window, x, memory.capacity, split)
        if first < 0:
            continue
        tried = window_annealing._window_cost(a, state, window, x, first, np.inf, split)
        assert tried == window_annealing._window_cost(a, state, window, x, 0, np.inf, split)
        assert window_annealing._window_cost(a, state, window, x, first, tried * (1 + 1e-12), split) == tried
        assert window_annealing._window_cost(a, state, window, x, first, tried * (1 - 1e-9), split) >= tried
        if tried < np.inf and rng.random() < 0.5:
            window_annealing._commit(window, x, first, count, i, j)
            cost = tried
        else:
            window_annealing._reset(window, x, first, count, i, j)
            assert window_annealing._window_cost(a, state, window, x, 0, np.inf, split) == cost
        batches = x.order[: x.size[0]]
        assert (x.place[batches] == np.arange(len(batches))).all()
        assert (x.place >= 0).sum() == len(batches)
        assert (x.mask[batches] > 0).all()
        assert (x.mask[x.first] > 0).all()
        assert (np.add.reduceat(x.mask, np.arange(len(window.ops)) << window.bits) == (1 << shards) - 1).all()
        assert (x.mask == x.kept_mask).all()


@pytest.mark.parametrize("seed", [*range(12), 81])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_pass_gives_a_schedule_that_is_no_longer(seed: int, shards: int) -> None:
    """Whatever moves are made, within memory, batches are in a topological order and end as the timeline says."""
    problem = random_placement_problem(
        seed, 20, 3, shards=shards, forbidden_fraction=0.0, memory_fraction=(np.inf, 0.6)[seed % 2],
        group_fraction=(0.0, 0.2)[seed // 2 % 2], zero_fraction=0.3,
    )  # fmt: skip
    placement = random_placement(problem, np.random.default_rng(seed))
    before = makespan(problem, placement)
    if before == np.inf:
        pytest.skip("the random placement takes too much memory")
    a, memory, state = timeline_arrays(problem), device_memory(problem), _state(problem, placement)
    split = shards if shards > 1 else None
    for turn in range(6):
        plan = PassPlan(turn % 2 == 0, 4 + 3 * turn, 2 + turn, 60, 1.0, 0.1)
        window_annealing.begin_pass(a, state, plan)
        while window_annealing.anneal_windows(np.random.default_rng(turn), a, memory, state, plan, 2, split):
            pass
        after = window_annealing.end_pass(a, state)
        assert after == makespan(problem, _placement(problem, state)) <= before * (1 + 1e-12)
        assert state.held == pytest.approx(held_bytes(problem, _placement(problem, state).device))
        before = after


def test_cooling_ends_at_the_last_temperature() -> None:
    """So many steps lead from the first temperature to the last; without heat there is nothing to cool."""
    assert 2.0 * cooling_factor.py_func(2.0, 0.5, 7) ** 7 == pytest.approx(0.5)
    assert cooling_factor.py_func(0.0, 0.0, 7) == 1.0
