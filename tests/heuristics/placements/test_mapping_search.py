"""Searches over mappings: in slices as in one go, and what they say of a mapping is true."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.mapping_search import kernel as kernels
from rlinit.heuristics.placements.mapping_search.search import _String
from rlinit.placements.timeline import makespan
from tests.placement_cases import random_placement_problem


@pytest.mark.parametrize(("temperature", "several"), [(0.5, False), (0.0, True)])
@pytest.mark.parametrize("shards", [1, 3])
def test_slices_are_as_one(temperature: float, several: bool, shards: int) -> None:
    """Where the clock is looked at changes nothing, and the best mapping is worth what is noted for it."""
    string = _String.of(random_placement_problem(5, 90, 3, shards=shards, density=0.05, forbidden_fraction=0.0))
    start = string.fastest()
    assert start is not None
    states = [kernels.new_mapping(string.arrays, start) for _ in range(2)]
    for state, parts in zip(states, ([600], [7, 100, 1, 492]), strict=True):
        rng, now = np.random.default_rng(3), temperature
        for part in parts:
            now = kernels.search_mapping(rng, string.arrays, state, part, now, 0.995, several)
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)
    found = string.placement(states[0].best)
    assert found is not None
    assert states[0].value[1, 0] == 0.0
    assert makespan(string.problem, found) == pytest.approx(states[0].value[1, 1], rel=1e-12)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_runs_follow_the_timeline(seed: int, shards: int) -> None:
    """In the Python form: the makespan of a mapping, and none beyond a limit that is less."""
    string = _String.of(random_placement_problem(seed, 12, 3, shards=shards, density=0.3, forbidden_fraction=0.0))
    count = string.fastest()
    assert count is not None
    state = kernels.new_mapping(string.arrays, count)
    value = kernels._run.py_func(string.arrays, state.mask, state.end, np.inf)
    found = string.placement(count)
    assert found is not None
    assert value == pytest.approx(makespan(string.problem, found), rel=1e-12)
    assert kernels._run.py_func(string.arrays, state.mask, state.end, value * 0.99) == np.inf


@pytest.mark.parametrize("seed", range(5))
def test_changes_keep_to_what_is_allowed(seed: int) -> None:
    """In the Python form: a change moves all shards of a gene, or some, to where they may run."""
    string = _String.of(random_placement_problem(seed, 8, 3, shards=3, forbidden_fraction=0.4, memory_fraction=0.6))
    p, rng, new = string.arrays, np.random.default_rng(seed), np.zeros(3, np.int64)
    count = string.fastest()
    assert count is not None
    for g in p.movable:
        for _ in range(20):
            if kernels._propose.py_func(rng, p, g, count[g], new):
                assert new.sum() == 3
                assert (new != count[g]).any()
                assert all(p.allowed[g, i, new[i]] for i in range(3) if new[i])
