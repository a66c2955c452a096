"""Earliest-time-first scheduling against a plain pass over all pairs of ready ops and devices."""

from __future__ import annotations

import numpy as np
import pytest

from rlinit.heuristics.placements.published.earliest_task_first import schedule_earliest_start
from rlinit.kernels.placements.list_scheduling import NO_STORAGES, earliest_finish, fill_devices
from rlinit.placements.arrays import kernel_arrays
from rlinit.placements.problem import PlacementProblem
from tests.placement_cases import random_placement_problem


def scheduled(problem: PlacementProblem, favourite: np.ndarray | None = None) -> tuple[bool, np.ndarray, np.ndarray]:
    """Return whether a schedule was found, with (n, d) shards of each batch as bits, and when they start."""
    shape = (problem.num_ops, problem.num_devices)
    mask, start, end = np.zeros(shape, np.int64), np.empty(shape), np.empty(shape)
    nobody = np.full(problem.num_ops, -1, np.int64)
    near = np.ones(shape, np.bool_)
    arrays, order = kernel_arrays(problem), problem.order
    done = schedule_earliest_start(arrays, order, near, nobody if favourite is None else favourite, mask, start, end)
    return bool(done), mask, start


def step_by_step(problem: PlacementProblem) -> dict[int, tuple[int, float]]:
    """Return device and start of each op, trying every pair of ready ops and devices again and again."""
    rank = np.empty(problem.num_ops, np.int64)
    rank[problem.order] = np.arange(problem.num_ops)
    free = np.zeros(problem.num_devices)
    placed: dict[int, tuple[int, float]] = {}
    time = problem.time_s[:, :, 1]
    while len(placed) < problem.num_ops:
        first: list[tuple[float, float, int, int, int]] = []
        for i in range(problem.num_devices):
            here = []
            for v in set(range(problem.num_ops)) - set(placed):
                before = problem.pred_of(v).tolist()
                if not set(before) <= set(placed) or not np.isfinite(time[v, i]):
                    continue
                ends = {u: placed[u][1] + time[u, placed[u][0]] for u in before}
                ready = max([0.0, *(ends[u] + problem.transfer_s(u, placed[u][0], i, 1) for u in before)])
                here.append((max(free[i], ready), int(rank[v]), v))
            if here:
                at, place, v = min(here)
                first.append((at, at + float(time[v, i]), place, i, v))
        at, over, _, i, v = min(first)
        placed[v], free[i] = (i, at), over
    return placed


@pytest.mark.parametrize("seed", range(20))
def test_the_pair_that_starts_first_is_taken(seed: int) -> None:
    """Every op is where and when the plain pass puts it."""
    problem = random_placement_problem(seed, 9, 3, density=0.3, forbidden_fraction=0.1, integer=seed % 2 == 0)
    done, mask, start = scheduled(problem)
    assert done
    for v, (i, at) in step_by_step(problem).items():
        assert mask[v].nonzero()[0].tolist() == [i]
        assert start[v, i] == pytest.approx(at, rel=1e-12)


def test_no_op_starts_before_its_inputs_are_there() -> None:
    """Whole ops on one device each, with devices that wait for favourite children: inputs arrive before they start."""
    for seed in range(40):
        problem = random_placement_problem(seed, 10, 2, density=0.3, integer=True, forbidden_fraction=0.0)
        favourite = np.array([min(problem.succ_of(v).tolist(), default=-1) for v in range(problem.num_ops)], np.int64)
        done, mask, start = scheduled(problem, favourite)
        assert done
        assert (np.count_nonzero(mask, axis=1) == 1).all()
        device = mask.argmax(axis=1)
        at = start[np.arange(problem.num_ops), device]
        over = at + problem.time_s[np.arange(problem.num_ops), device, 1]
        for v in range(problem.num_ops):
            for u in problem.pred_of(v).tolist():
                assert at[v] >= over[u] + problem.transfer_s(u, int(device[u]), int(device[v]), 1) - 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_memory_groups_and_shards_are_kept(seed: int) -> None:
    """Where a schedule is found, each shard of an op is somewhere, groups are together, and no device is overfull."""
    problem = random_placement_problem(
        seed,
        8,
        3,
        shards=1 + seed % 3,
        memory_fraction=0.5,
        group_fraction=0.3,
        forbidden_fraction=0.25,
        missing_links=0.2,
        transfers="parallel" if seed % 3 == 0 else "exclusive",
    )
    arrays, whole = kernel_arrays(problem), (1 << problem.num_shards) - 1
    masks = [scheduled(problem)[1]] if scheduled(problem)[0] else []
    filled = np.zeros((problem.num_ops, problem.num_devices), np.int64)
    if fill_devices(arrays, problem.order, problem.capacity_bytes * 0.6, filled):
        masks.append(filled)
    for mask in masks:
        assert (np.bitwise_or.reduce(mask, axis=1) == whole).all()
        assert (mask == mask[problem.group]).all()
        count = np.vectorize(int.bit_count, otypes=[np.int64])(mask)
        held = (problem.weight_bytes[:, None] * (mask > 0) + problem.shard_bytes[:, None] * count).sum(axis=0)
        assert (held <= arrays.capacity * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(20))
def test_whole_ops_go_where_they_end_first(seed: int) -> None:
    """In sequence, each op ends when its device and inputs let it, and first of all devices where all have room."""
    memory = 0.7 if seed % 2 else np.inf
    problem = random_placement_problem(seed, 8, 3, group_fraction=0.3, memory_fraction=memory, forbidden_fraction=0.2)
    arrays = kernel_arrays(problem)
    device, end = np.empty(problem.num_ops, np.int64), np.empty(problem.num_ops)
    found = earliest_finish(arrays, NO_STORAGES, problem.order, device, end)
    assert not found or (device == device[problem.group]).all()
    free = np.zeros(problem.num_devices)
    for v in problem.order.tolist() if found else ():
        over = []
        for i in range(problem.num_devices):
            before = problem.pred_of(v).tolist()
            ready = max([0.0, *(end[u] + problem.transfer_s(u, int(device[u]), i, 1) for u in before)])
            over.append(max(ready, free[i]) + problem.time_s[v, i, 1])
        assert end[v] == pytest.approx(over[device[v]], rel=1e-12)
        free[device[v]] = end[v]
        alone = np.count_nonzero(problem.group == problem.group[v]) == 1
        if alone and memory == np.inf:
            assert end[v] == pytest.approx(min(over), rel=1e-12)
    assert found == (device >= 0).all()
