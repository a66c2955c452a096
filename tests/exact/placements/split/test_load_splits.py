"""Placements from the multipliers of the load bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.budget import Budget
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.exact.placements.split.load_splits import load_placement
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import makespan, obstacle
from tests.draws import draws
from tests.exact.placements.split.cases import make_problem
from tests.placement_cases import brute_force_placement, random_placement_problem


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["parallel", "exclusive", "blocking"]))
def test_what_is_found_is_feasible(seed: int, transfers: str) -> None:
    """Whatever memories, groups and scales there are, a placement that is returned breaks nothing."""
    problem = random_placement_problem(
        seed,
        num_ops=1 + seed % 9,
        num_devices=1 + seed % 4,
        shards=1 + seed % 3,
        transfers=transfers,  # type: ignore[arg-type]
        scale=(1.0, 1e-9, 1e12)[seed % 5 % 3],
        memory_fraction=(np.inf, 0.6, 0.4)[seed % 7 % 3],
        group_fraction=(0.0, 0.3)[seed // 2 % 2],
    )
    found = load_placement(problem, Budget())
    if found is not None:
        assert not obstacle(problem, found)
        assert makespan(problem, found) >= 0.0


def test_memory_goes_to_the_ops_that_gain_most_from_it() -> None:
    """Of two ops in a row the quick device holds one: the one that is slow elsewhere."""
    seconds = np.array([[[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]], [[0.0, 1.0, 2.0], [0.0, 50.0, 99.0]]])
    problem = make_problem(seconds, [(0, 1)], shard_bytes=np.ones(2), capacity_bytes=np.array([2.0, 9.0]))
    found = load_placement(problem, Budget())
    assert found is not None
    assert found.device.tolist() == [[1, 1], [0, 0]]
    assert makespan(problem, found) == pytest.approx(brute_force_placement(problem))


def test_a_device_without_memory_is_left_out() -> None:
    """What overfills a device finds its way to another one beside a device that holds nothing."""
    seconds = np.tile([0.0, 1.0], (4, 3, 1)) * np.array([1.0, 1.0, 1.5])[:, None]
    capacity = np.array([0.0, 2.0, 2.0])
    problem = make_problem(seconds, [], weight_bytes=np.ones(4), capacity_bytes=capacity)
    found = load_placement(problem, Budget())
    assert found is not None
    assert np.bincount(found.device[:, 0], minlength=3).tolist() == [0, 2, 2]


def test_batches_that_fill_memory_are_planned_near_the_bound() -> None:
    """A network whose 128 inputs overfill the quick devices is planned within a seventh of the bound, unsearched."""
    sizes = (32, 64, 96, 128)
    graph = rwnn("er", seed=1, num_modules=6, nodes_per_module=16, batch_sizes=sizes)
    devices = [
        rlinit.Device("cpu", "cpu"),
        rlinit.Device("t4", "t4", memory_bytes=2e9),
        rlinit.Device("a100", "a100", memory_bytes=8e9),
    ]
    hardware = rlinit.Hardware.mesh(devices, 31.5e9)
    problem = lower_placement(graph, hardware, "throughput", inputs=128).problem
    found = load_placement(problem, Budget())
    assert found is not None
    assert makespan(problem, found) < PLACEMENT_BOUNDS["load"](problem) * 7 / 6
