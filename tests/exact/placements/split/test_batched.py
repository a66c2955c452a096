"""Properties of splitting problems with shards."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.split import batched
from rlinit.exact.placements.split.batched import solve_split_batched, splits
from rlinit.placements.timeline import makespan, placement_from_priority
from tests.draws import draws
from tests.exact.placements.split.cases import make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem

TIGHT = 1 + 1e-12


@settings(max_examples=draws(30), deadline=None)
@given(st.integers(1, 6), st.integers(1, 4))
def test_splits_are_all_there_is(num_shards: int, num_devices: int) -> None:
    """Splits are distinct, sum to the shards, and are as many as combinations with repetition."""
    rows = splits(num_shards, num_devices, 10_000)
    assert (rows.sum(axis=1) == num_shards).all()
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)
    count = 1
    for i in range(1, num_devices):
        count = count * (num_shards + i) // i
    assert len(rows) == count
    assert len(splits(num_shards, num_devices, 2)) <= 2


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["parallel", "exclusive", "blocking"]), st.integers(1, 3))
def test_value_and_bound_enclose_the_optimum(seed: int, transfers: str, min_ops: int) -> None:
    """The optimum lies between the bound and the value, which is that of the placement."""
    problem = random_placement_problem(seed, 3, 2, shards=2, transfers=transfers, group_fraction=0.2)  # type: ignore[arg-type]
    best = brute_force_placement(problem)
    with mock.patch.object(batched, "LEAST_OPS", min_ops):
        result = solve_split_batched(problem, budget=Budget(), channels=1 + seed % 2)
    assert result.bound <= best * TIGHT
    if result.placement is not None:
        assert result.value is not None
        assert result.value >= best / TIGHT
        assert makespan(problem, result.placement) == result.value


def test_blocks_may_be_split_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is fast on one device runs there whole; one that two devices share is shared."""
    count = np.arange(3.0)
    fast, even = np.outer([1.0, 50.0], count), np.outer([4.0, 4.0], count)
    problem = make_problem(np.stack([fast, fast, even, even]), [(0, 1), (1, 2), (2, 3)])
    monkeypatch.setattr(batched, "LEAST_OPS", 2)
    result = solve_split_batched(problem, budget=Budget(), channels=1)
    assert result.placement is not None
    assert result.placement.device[:2].tolist() == [[0, 0], [0, 0]]
    assert sorted(result.placement.device[2].tolist()) == [0, 1]
    for way in ([0, 0], [0, 1], [1, 1]):
        alike = placement_from_priority(problem, np.tile(way, (4, 1)), np.arange(4.0))
        assert result.value is not None
        assert result.value <= makespan(problem, alike)
