"""Heads and tails of batches, held against the timelines of placements."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.arrays import FloatArray
from rlinit.exact.placements.analysis import time_windows
from rlinit.exact.placements.analysis.batches import data_flow
from rlinit.exact.placements.analysis.open_propagation import carry_open
from rlinit.exact.placements.analysis.time_windows import (
    latest_end,
    possible_batches,
    shard_windows,
)
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, timeline
from rlinit.plan import Transfers
from tests.draws import draws
from tests.exact.placements.split.cases import make_problem
from tests.placement_cases import random_placement, random_placement_problem

CLOSE = 1.0 + 1e-9
WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")


def any_problem(seed: int) -> PlacementProblem:
    """Return a problem of up to eight ops of any kind."""
    rng = np.random.default_rng(seed)
    transfers = WAYS[int(rng.integers(3))]
    return random_placement_problem(
        seed,
        int(rng.integers(1, 9)),
        int(rng.integers(1, 4)),
        shards=int(rng.choice([1, 1, 2, 3])),
        transfers=transfers,
        scale=10.0 ** float(rng.integers(-12, 13)),
        transfer=float(rng.choice([0.0, 0.5, 5.0])),
        memory_fraction=float(rng.choice([np.inf, 0.7])),
        group_fraction=float(rng.choice([0.0, 0.4])),
        missing_links=0.0 if transfers == "blocking" else float(rng.choice([0.0, 0.2])),
        integer=bool(rng.random() < 0.5),
    )


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_placement_within_the_limit_lies_in_its_windows(seed: int) -> None:
    """No batch starts before its head, and after its end the makespan is at least its tail away."""
    problem = any_problem(seed)
    rng = np.random.default_rng(seed)
    for _ in range(10):
        placement = random_placement(problem, rng)
        value = makespan(problem, placement)
        if value == np.inf:
            continue
        run = timeline(problem, placement)
        tolerance = value * (CLOSE - 1.0)
        shards = shard_windows(problem, value * CLOSE if value > 0 else np.inf, possible_batches(problem))
        assert shards is not None
        for v in range(problem.num_ops):
            for i, count in zip(*np.unique(placement.device[v], return_counts=True), strict=True):
                assert shards.allowed[v, i, count]
                assert shards.head_s[v, i] <= run.start_s[v, i] + tolerance
                assert run.end_s[v, i] + shards.tail_s[v, i] <= value + tolerance
                assert shards.least_s[v, i] <= problem.time_s[v, i, count]
        assert value <= latest_end(problem, possible_batches(problem)) * CLOSE


@settings(max_examples=draws(100), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_two_of_each_kind_of_device_tell_the_windows_of_all(seed: int) -> None:
    """Heads and tails carried over two devices of each class are those carried over all, forbidden ones too."""
    problem = copies_of_devices(any_problem(seed), seed)
    allowed = possible_batches(problem)
    rng = np.random.default_rng(seed)
    for i in np.flatnonzero(rng.random(problem.num_devices) < 0.2).tolist():
        allowed[:, i] &= rng.random((problem.num_ops, 1)) < 0.8
    upper = float(rng.choice([np.inf, 0.5, 1.0])) * latest_end(problem, allowed)
    found = []
    for least in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(time_windows, "_MANY_BATCHES", least)
            found.append(shard_windows(problem, upper, allowed))
    few, every = found
    assert (few is None) == (every is None)
    if few is not None and every is not None:
        for field in ("allowed", "least_s", "head_s", "tail_s", "floor_s"):
            np.testing.assert_array_equal(getattr(few, field), getattr(every, field))


def copies_of_devices(problem: PlacementProblem, seed: int) -> PlacementProblem:
    """Return the problem with one to four of each device in a mixed order; links between copies are all alike."""
    rng = np.random.default_rng(seed)
    of = rng.permutation(np.repeat(np.arange(problem.num_devices), rng.integers(1, 5, problem.num_devices)))
    links = np.ix_(of, of)
    s_per_byte, delay_s = problem.s_per_byte[links], problem.delay_s[links]
    beside = (of[:, None] == of[None, :]) & ~np.eye(len(of), dtype=bool)
    s_per_byte[beside], delay_s[beside] = 0.25 * problem.s_per_byte[0, -1], 0.5 * problem.delay_s[0, -1]
    return dataclasses.replace(
        problem,
        time_s=np.ascontiguousarray(problem.time_s[:, of]),
        capacity_bytes=problem.capacity_bytes[of],
        s_per_byte=s_per_byte,
        delay_s=delay_s,
    )


def test_a_tail_leaves_the_op_itself_out() -> None:
    """Three ops in a row of 1, 2 and 4 s: heads 0, 1, 3, and Carlier's tails 6, 4, 0."""
    problem = make_problem(np.array([[1.0], [2.0], [4.0]]), [(0, 1), (1, 2)])
    shards = shard_windows(problem, np.inf, possible_batches(problem))
    assert shards is not None
    assert shards.head_s.ravel().tolist() == [0.0, 1.0, 3.0]
    assert shards.tail_s.ravel().tolist() == [6.0, 4.0, 0.0]
    assert shards.floor_s == 7.0
    assert latest_end(problem, possible_batches(problem)) == 7.0


def _carried(problem: PlacementProblem, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return least times, some missing, and what `carry_open` makes of them: (2, n, d) heads and tails."""
    n, d = problem.num_ops, problem.num_devices
    rng = np.random.default_rng(seed)
    least = np.where(rng.random((n, d)) < 0.2, np.inf, problem.time_s[:, :, -1])
    found = np.zeros((2, n, d))
    carry_open(data_flow(problem), np.isfinite(least), least, found[0], found[1])
    return least, found


@settings(max_examples=draws(100), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_neighbours_on_the_device_of_an_op_follow_one_another(seed: int) -> None:
    """Heads and tails are the least over all sets of neighbours on the op's device, in all orders of each set."""
    problem = any_problem(seed)
    least, found = _carried(problem, seed)
    n, d = least.shape
    for side, value in enumerate(found):
        for v in range(n):
            near = (problem.succ_of(v) if side else problem.pred_of(v)).tolist()
            for i in np.flatnonzero(np.isfinite(least[v])).tolist():
                away = {}
                for u in near:
                    links = [
                        (value[u, j] + least[u, j])
                        + (problem.transfer_s(v, i, j) if side else problem.transfer_s(u, j, i))
                        for j in range(d)
                        if j != i and np.isfinite(least[u, j]) and problem.group[u] != problem.group[v]
                    ]
                    away[u] = min(links, default=np.inf)
                expected = min(
                    max([*(away[u] for u in near if u not in own), _in_a_row(own, i, value, least)], default=0.0)
                    for size in range(len(near) + 1)
                    for own in itertools.permutations(near, size)
                )
                assert value[v, i] == pytest.approx(expected, rel=1e-12)


def _in_a_row(ops: tuple[int, ...], i: int, start: FloatArray, least: FloatArray) -> float:
    """Return when the last of some ops ends, run on a device in this order."""
    end = 0.0
    for u in ops:
        end = max(end, start[u, i]) + least[u, i]
    return end
