"""Steps of partial placements against the timeline of whole ones."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.env.steps import EpisodeState, complete, finish_times, take_nodes
from rlinit.placements.arrays import kernel_arrays
from rlinit.placements.timeline import makespan, placement_from_priority
from tests.placement_cases import random_placement_problem


@pytest.mark.parametrize("seed", range(12))
def test_the_rest_goes_where_it_ends_first(seed: int) -> None:
    """What `complete` returns is the makespan of the devices it writes; inf where an op has no device."""
    problem = random_placement_problem(
        seed, 8, 3, group_fraction=0.3, forbidden_fraction=0.2, memory_fraction=0.6 if seed % 2 else np.inf
    )
    a, n, d = kernel_arrays(problem), problem.num_ops, problem.num_devices
    nowhere = np.full(n, -1, np.int64)
    state = EpisodeState(nowhere.copy(), nowhere.copy(), np.zeros(n), np.zeros(d), a.capacity.copy())
    found = complete(a, state, problem.order)
    rank = np.empty(n)
    rank[problem.order] = np.arange(n)
    if found == np.inf:
        assert (state.device < 0).any()
        return
    placement = placement_from_priority(problem, state.device[:, None], rank)
    assert makespan(problem, placement) <= found * (1 + 1e-12)
    assert found == state.end.max() == state.free.max()
    assert complete(a, state, problem.order) == found
    forbidden = np.empty(d)
    finish_times(a, state, int(problem.order[0]), forbidden)
    assert np.isfinite(forbidden).sum() == 1  # its group has a device by now


def test_rows_open_what_waited_for_nothing_else() -> None:
    """In the first row node 2 waits for 0 and 1, in the second for 0 alone; -1 leaves a row as it is."""
    indptr, succ = np.array([[0, 1, 2, 2]] * 3), np.array([[2, 2]] * 3)
    waiting = np.array([[0, 0, 2], [0, 0, 1], [0, 0, 1]])
    ready = np.array([[True, True, False]] * 3)
    take_nodes(np.array([0, 0, -1]), indptr, succ, waiting, ready)
    assert ready.tolist() == [[False, True, False], [False, True, True], [True, True, False]]
    assert waiting.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
