"""Annealing of timelines in which transfers wait for each other, against the plain timeline."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.list_scheduling.common import device_memory
from rlinit.heuristics.placements.local_search.contention_annealing import anneal_timeline, new_timeline_search
from rlinit.placements.problem import Placement
from rlinit.placements.timeline import MODES, held_bytes, makespan, shard_masks, timeline_arrays
from rlinit.plan import Transfers
from tests.placement_cases import random_placement, random_placement_problem


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("transfers", ["exclusive", "blocking"])
def test_the_state_is_that_of_its_sequence(seed: int, shards: int, transfers: Transfers) -> None:
    """Places, shards and bytes follow the sequence, and the best makespan is that of the best sequence."""
    rng = np.random.default_rng(seed)
    problem = random_placement_problem(
        seed, 10, 3, shards=shards, density=0.3, transfers=transfers, memory_fraction=0.7 if seed % 2 else np.inf
    )
    placement = random_placement(problem, rng)
    a, held = timeline_arrays(problem), held_bytes(problem, placement.device)
    mask = shard_masks(placement.device, 3)
    empty = np.flatnonzero(mask.ravel() == 0)
    sequence = np.concatenate([placement.sequence, empty])
    state = new_timeline_search(a, MODES[transfers], sequence, mask, held, 1.0)
    before = float(state.value[0])
    best = anneal_timeline(rng, a, device_memory(problem), MODES[transfers], state, 300, 0.98)
    assert best == state.value[1] <= before
    assert (state.sequence[state.place] == np.arange(30)).all()
    bits = (state.mask[:, :, None] >> np.arange(shards)) & 1
    assert (bits.sum(axis=1) == 1).all()
    assert state.held == pytest.approx(held_bytes(problem, bits.argmax(axis=1)))
    found = ((state.best_mask[:, :, None] >> np.arange(shards)) & 1).argmax(axis=1)
    filled = state.best_sequence[state.best_mask.ravel()[state.best_sequence] != 0]
    if best < np.inf and (held <= problem.capacity_bytes).all():
        assert makespan(problem, Placement(found, filled)) == pytest.approx(best, rel=1e-12)
        assert (held_bytes(problem, found) <= problem.capacity_bytes * (1 + 1e-9)).all()
