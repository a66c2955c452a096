"""Segments of an order: exact on chains, feasible or absent elsewhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

from rlinit.budget import Budget
from rlinit.heuristics.placements.contiguous.search import segments
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, obstacle


def chain(rng: np.random.Generator, num_ops: int, num_devices: int, memory: float) -> PlacementProblem:
    """Return a chain of random ops, some forbidden from some devices, each device holding a part of all bytes."""
    time = rng.uniform(0.5, 2.0, (num_ops, num_devices, 1)).round(2)
    time[rng.random(time.shape) < 0.1] = np.inf
    weight = rng.uniform(1.0, 3.0, num_ops).round(1)
    apart = ~np.eye(num_devices, dtype=np.bool_)
    return PlacementProblem(
        "latency",
        "parallel",
        1,
        np.concatenate([np.zeros_like(time), time], axis=2),
        rng.uniform(0.0, 1.0, num_ops).round(2),
        weight,
        np.zeros(num_ops),
        np.full(num_devices, memory * weight.sum()),
        apart * rng.uniform(0.1, 1.0, (num_devices, num_devices)).round(2),
        np.asarray(apart * 0.05, np.float64),
        np.array([(v, v + 1) for v in range(num_ops - 1)], np.int64).reshape(-1, 2),
        np.arange(num_ops),
        np.arange(num_ops),
    )


def best_segments(problem: PlacementProblem) -> float:
    """Return the least total of a chain cut in every way over every turn of distinct devices; inf: nothing fits."""
    n, best = problem.num_ops, np.inf
    for parts in range(1, problem.num_devices + 1):
        for cuts in combinations(range(1, n), parts - 1):
            bounds = [0, *cuts, n]
            for turn in permutations(range(problem.num_devices), parts):
                device = np.repeat(turn, np.diff(bounds))
                held = np.bincount(device, weights=problem.weight_bytes, minlength=problem.num_devices)
                if (held > problem.capacity_bytes * (1 + 1e-9)).any():
                    continue
                total = problem.op_time_s[np.arange(n), device].sum()
                total += sum(problem.transfer_s(v, int(device[v]), int(device[v + 1])) for v in range(n - 1))
                best = min(best, total)
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_exact_on_chains(seed: int) -> None:
    """On a chain the cut is the best of all, or there is none where none fits."""
    rng = np.random.default_rng(seed)
    problem = chain(rng, int(rng.integers(1, 8)), int(rng.integers(1, 5)), rng.choice([0.3, 0.5, 1.0]))
    found = segments(problem, seed=0)
    expected = best_segments(problem)
    assert (found is None) == np.isinf(expected)
    if found is not None:
        assert not obstacle(problem, found)
        assert makespan(problem, found) == pytest.approx(expected)


def test_many_devices_take_turns() -> None:
    """With more devices than can be tried in every turn, a model that only fits spread over all still finds a place."""
    problem = chain(np.random.default_rng(3), 400, 10, 0.12)
    problem.time_s[:, :, 1:] = np.where(np.isinf(problem.time_s[:, :, 1:]), 1.0, problem.time_s[:, :, 1:])
    found = segments(problem, seed=0)
    assert found is not None
    assert not obstacle(problem, found)
    assert len(np.unique(found.device)) >= 9


@pytest.mark.parametrize("num_devices", [6, 30])
def test_time_limits_hold(num_devices: int) -> None:
    """Nothing is cut once time is up; half the time gives no better a cut than all of it."""
    problem = chain(np.random.default_rng(0), 300, num_devices, 1.0)
    problem = replace(problem, time_s=np.where(np.isfinite(problem.time_s), problem.time_s, 1.0))
    assert segments(problem, budget=Budget(0.0)) is None
    whole, part = segments(problem), segments(problem, budget=Budget(0.05))
    assert whole is not None
    assert part is None or makespan(problem, part) >= makespan(problem, whole)
