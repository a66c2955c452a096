"""Windows of a schedule, cut out and put back, against the plain timeline."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.list_scheduling.common import device_memory
from rlinit.heuristics.placements.local_search import window_annealing
from rlinit.kernels.placements.annealing import PassPlan, cooling_factor
from rlinit.placements.timeline import held_bytes, timeline, timeline_arrays
from tests.placement_cases import random_placement, random_placement_problem


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [3, 12])
@pytest.mark.parametrize("forwards", [True, False])
def test_a_window_knows_the_makespan(seed: int, width: int, forwards: bool) -> None:
    """Without moves a pass changes nothing, and the longest path through any window is at most the makespan."""
    problem = random_placement_problem(seed, 12, 3, density=0.3, forbidden_fraction=0.0)
    placement = random_placement(problem, np.random.default_rng(seed))
    makespan_s = timeline(problem, placement).makespan_s
    a, memory = timeline_arrays(problem), device_memory(problem)
    held = held_bytes(problem, placement.device)
    state = window_annealing.new_op_sequence(placement.sequence // 3, placement.device[:, 0], held)
    plan = PassPlan(forwards, width, 2, 0, 1.0, 0.1)
    window_annealing.begin_pass(a, state, plan)
    longest = []
    goes_on = True
    while goes_on:
        lo, free, rest = int(state.at[0]), state.free.copy(), state.rest.copy()
        window_annealing._move_on(a, state, forwards, lo, lo + width)
        window = window_annealing._cut_out(a, memory, state, lo, lo + width)
        inside = window_annealing._inside(state, window.ops)
        longest.append(window_annealing._window_cost.py_func(window, inside, 0, np.inf))
        state.free[:], state.rest[:] = free, rest  # `anneal_windows` moves on by itself.
        goes_on = window_annealing.anneal_windows(np.random.default_rng(0), a, memory, state, plan, 1)
    assert max(longest) <= makespan_s * (1 + 1e-12)
    if width == 12:
        assert longest == pytest.approx([makespan_s])
    assert window_annealing.end_pass(a, state) == makespan_s
    assert (state.sequence == placement.sequence // 3).all()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_of_a_window_is_what_it_costs(seed: int) -> None:
    """Costs from any position on are those of the whole window, and no limit below the cost lets it pass."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(seed, 14, 3, density=0.3, forbidden_fraction=0.2, integer=seed % 2 == 0)
    placement = random_placement(problem, rng)
    a, memory = timeline_arrays(problem), device_memory(problem)
    state = window_annealing.new_op_sequence(
        placement.sequence // 3, placement.device[:, 0], held_bytes(problem, placement.device)
    )
    window_annealing.begin_pass(a, state, PassPlan(True, 9, 2, 0, 1.0, 0.1))
    window_annealing._move_on(a, state, True, 3, 12)
    window = window_annealing._cut_out(a, memory, state, 3, 12)
    inside = window_annealing._inside(state, window.ops)
    cost = window_annealing._window_cost(window, inside, 0, np.inf)
    window_annealing._commit(window, inside, 0)
    for first in range(9):
        inside.end[inside.order[first:]] = np.nan
        assert window_annealing._window_cost(window, inside, first, np.inf) == cost
        assert window_annealing._window_cost(window, inside, first, cost * (1 + 1e-12)) == cost
        assert window_annealing._window_cost(window, inside, first, cost * (1 - 1e-9)) >= cost
        window_annealing._reset(inside, first)
        assert (inside.end == inside.kept).all()


def test_cooling_ends_at_the_last_temperature() -> None:
    """So many steps lead from the first temperature to the last; without heat there is nothing to cool."""
    assert 2.0 * cooling_factor.py_func(2.0, 0.5, 7) ** 7 == pytest.approx(0.5)
    assert cooling_factor.py_func(0.0, 0.0, 7) == 1.0
