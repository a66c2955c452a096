"""Data parallelism: the split of the inputs whose largest load is least, and what it beats."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rlinit
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.placements.data_parallel import data_parallel, least_largest_load
from rlinit.placements.timeline import makespan
from tests.placement_cases import random_placement_problem


@pytest.mark.parametrize("seed", range(40))
def test_no_split_has_a_smaller_largest_load(seed: int) -> None:
    """Against all splits; also with loads that do not grow, and sizes that a device cannot run."""
    rng = np.random.default_rng(seed)
    d, s = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    load = rng.integers(0, 9, (d, s + 1)).astype(float)
    load[rng.random(load.shape) < 0.3] = np.inf
    load[:, 0] = 0.0
    splits = [split for split in itertools.product(range(s + 1), repeat=d) if sum(split) == s]
    best = min(max(load[i, count] for i, count in enumerate(split)) for split in splits)
    found = least_largest_load(load)
    if found is None:
        assert best == np.inf
    else:
        assert found.sum() == s
        assert load[np.arange(d), found].max() == best


@pytest.mark.parametrize("memory_fraction", [np.inf, 0.6])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_moves_and_memories_hold(seed: int, memory_fraction: float) -> None:
    """Every op is split alike, and the makespan is the largest load of a device."""
    problem = random_placement_problem(seed, shards=4, forbidden_fraction=0.02, memory_fraction=memory_fraction)
    found = data_parallel(problem)
    if found is None:
        return
    assert (found.device == found.device[0]).all()
    count = np.bincount(found.device[0], minlength=problem.num_devices)
    load = problem.time_s[:, np.arange(problem.num_devices), count].sum(axis=0)
    assert makespan(problem, found) == pytest.approx(load.max())


def test_a_chain_of_small_ops_is_split_by_its_inputs() -> None:
    """No device is waited for where each has the whole chain; `auto` starts there and tells it as a baseline."""
    devices = [Device("fast", "f", flops_per_s=3e9), Device("slow", "s", flops_per_s=1e9)]
    ops = [(f"op{v}", {"flops": 1e6, "out_bytes": 1e6}) for v in range(60)]
    graph = Graph.build(ops, [(f"op{v}", f"op{v + 1}") for v in range(59)])
    plan = rlinit.schedule(
        graph, Hardware.mesh(devices, 1e6), objective="throughput", inputs=16, time_limit_s=1.0, transfers="exclusive"
    )
    assert plan.baselines["data parallel"] == pytest.approx(60 * 12e6 / 3e9)
    assert plan.baseline_notes["data parallel"] == "12 + 4 inputs"
    assert plan.value == plan.baselines["data parallel"]
    assert plan.status == "optimal"
