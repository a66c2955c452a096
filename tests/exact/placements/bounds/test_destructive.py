"""Refuted trial makespans: never one that a placement has, and those that simple arguments refute."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.destructive_kernel import order_ops
from rlinit.placements.problem import PlacementProblem
from rlinit.plan import Transfers
from tests.draws import draws
from tests.placement_cases import brute_force_placement, random_placement_problem

CLOSE = 1.0 + 1e-9
LIMIT = 30.0
WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")


def _case(seed: int) -> PlacementProblem:
    """Return a tiny problem of one shard of some kind, by its seed."""
    way = WAYS[seed % 3]
    return random_placement_problem(
        seed,
        num_ops=3 + seed % 3,
        num_devices=2 if seed % 5 else 3,
        transfers=way,
        density=(0.0, 0.35, 0.7)[seed // 3 % 3],
        scale=(1.0, 1e-9, 1e12)[seed // 7 % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 4 % 4],
        memory_fraction=(np.inf, 0.7, 0.5, 0.35)[seed // 2 % 4],
        group_fraction=(0.0, 0.4)[seed // 6 % 2],
        missing_links=(0.0, 0.3)[seed // 5 % 2] if way != "blocking" else 0.0,
        integer=seed % 4 == 0,
        identical=seed % 11 == 0,
    )


@pytest.mark.parametrize("first", range(0, draws(2_000), 250))
def test_no_makespan_that_a_placement_has_is_refuted(first: int) -> None:
    """By propagation, and with branching to the end, the bound is at most what brute force finds."""
    for seed in range(first, first + 250):
        problem = _case(seed)
        best = brute_force_placement(problem)
        for upper in (np.inf, best * (1.0 + 0.3 * (seed % 2)) if np.isfinite(best) else 1.0):
            search = DestructiveSearch(problem, upper=upper)
            assert search.run(0, Budget()) <= best * CLOSE, seed
            assert search.run(400, Budget()) <= best * CLOSE, seed


def test_branching_to_the_end_proves_small_problems() -> None:
    """With parallel transfers and no memory limit the bound reaches the optimum, as orders are branched on too."""
    for seed in range(60):
        problem = random_placement_problem(seed, 5, 2, integer=seed % 2 == 0)
        best = brute_force_placement(problem)
        search = DestructiveSearch(problem, upper=best * 1.1)
        assert search.run(100_000, Budget()) >= best * (1.0 - 3e-4), seed
        assert search.exhausted


def test_bounds_step_over_quanta() -> None:
    """Where all data are multiples of a quantum, bounds of trials are, and reach the value exactly."""
    found = 0
    for seed in range(0, 80, 4):
        problem = random_placement_problem(seed, 5, 2, integer=True, transfer=0.0, scale=0.5)
        quantum, best = makespan_quantum(problem), brute_force_placement(problem)
        if quantum > 0 and best > 0:
            found += 1
            assert DestructiveSearch(problem, upper=best).run(100_000, Budget()) == best, seed
    assert found > 5


@pytest.mark.parametrize("scale", [0.1, 0.2, 1 / 3, 0.7e-9])
def test_trials_end_where_multiples_of_the_quantum_round(scale: float) -> None:
    """A trial that was not refuted is not tried again, though its quotient by the quantum rounds upwards."""
    for seed in range(30):
        problem = random_placement_problem(seed, 5, 2, transfer=0.0, scale=scale, integer=True, identical=True)
        search = DestructiveSearch(problem)
        for _ in range(60):
            search.run(200, Budget(5.0))
        assert search.nodes < 60 * 400, seed
        assert search.bound_s <= brute_force_placement(problem) * CLOSE, seed


def test_more_choices_never_lower_the_bound() -> None:
    """The bound of a continued search grows, also past bounds that it is told of."""
    problem = random_placement_problem(5, 12, 3)
    search, last = DestructiveSearch(problem), 0.0
    search.raise_bound(0.1)
    for _ in range(8):
        bound = search.run(50, Budget())
        assert bound >= max(last, 0.1)
        last = bound


@pytest.mark.parametrize("num_devices", [2, 3])
def test_whole_ops_do_not_split(num_devices: int) -> None:
    """Equal ops on equal devices take as many rounds as the fullest device runs, which no fraction knows."""
    problem = random_placement_problem(
        0, 2 * num_devices + 1, num_devices, density=0.0, zero_fraction=0.0, forbidden_fraction=0.0, identical=True
    )
    times = np.ones_like(problem.time_s)
    times[:, :, 0] = 0.0
    problem.time_s[:] = times
    search = DestructiveSearch(problem, upper=4.0)
    assert search.run(10_000, Budget()) == pytest.approx(3.0)


def _settled(
    pairs: Callable[[IntArray, FloatArray, FloatArray, FloatArray], int], case: int
) -> tuple[int, FloatArray, FloatArray]:
    """Return what a way to put ops of one device in order comes to when repeated: its last answer, heads and tails."""
    rng = np.random.default_rng(case)
    n = int(rng.integers(2, 12))
    least = rng.integers(1, 5, (n, 1)).astype(float)
    head, tail = rng.integers(0, 20, (n, 1)).astype(float), rng.integers(0, 20, (n, 1)).astype(float)
    ops = rng.permutation(n)
    answer = 1
    while answer == 1:
        answer = pairs(ops, least, head, tail)
    return answer, head, tail


def test_orders_of_overlapping_windows_are_all_there_are() -> None:
    """Comparing only ops whose windows overlap comes to what comparing all pairs does, and few pairs prove less."""

    def every(ops: IntArray, least: FloatArray, head: FloatArray, tail: FloatArray) -> int:
        changed = 0
        if (head + least + tail > LIMIT).any():
            return -1
        for v, w in itertools.combinations(ops.tolist(), 2):
            both = least[v, 0] + least[w, 0]
            forth, back = (head[a, 0] + both + tail[b, 0] <= LIMIT for a, b in ((v, w), (w, v)))
            if not forth and not back:
                return -1
            if forth != back:
                a, b = (v, w) if forth else (w, v)
                if head[a, 0] + least[a, 0] > head[b, 0] or least[b, 0] + tail[b, 0] > tail[a, 0]:
                    head[b, 0] = max(head[b, 0], head[a, 0] + least[a, 0])
                    tail[a, 0] = max(tail[a, 0], least[b, 0] + tail[b, 0])
                    changed = 1
        return changed

    ends = []
    for case in range(300):
        some = _settled(lambda ops, p, h, t: order_ops(ops, 0, p, h, t, LIMIT, 1_000), case)
        few = _settled(lambda ops, p, h, t: order_ops(ops, 0, p, h, t, LIMIT, 3), case)
        full = _settled(every, case)
        assert some[0] == full[0], case
        ends.append(full[0])
        if full[0] == 0:
            np.testing.assert_array_equal(some[1:], full[1:])
            assert few[0] == 0
            assert (few[1] <= full[1]).all()
            assert (few[2] <= full[2]).all()
    assert 30 < ends.count(0) < 270


@pytest.mark.compiled
def test_many_ops_of_one_device_take_little_time() -> None:
    """Windows of 60,000 ops that only one device runs are put in order within a bounded number of pairs."""
    n = 60_000
    least, zeros = np.full((n, 1), 1e-3), np.zeros((n, 1))
    order_ops(np.arange(9), 0, least, zeros.copy(), zeros.copy(), 90.0, 10)
    began = time.process_time()
    assert order_ops(np.arange(n), 0, least, zeros.copy(), zeros.copy(), 90.0, 1_000_000) == 0
    assert time.process_time() - began < 20.0


def test_an_expired_budget_ends_it_at_once() -> None:
    """Without time nothing is tried."""
    search = DestructiveSearch(random_placement_problem(3, num_ops=40))
    assert search.run(1_000, Budget(0.0)) == 0.0
    assert search.nodes == 0


def test_a_group_that_no_device_may_run_is_refuted() -> None:
    """Each op of a group may run somewhere, but nowhere do all of them: no placement, whatever the makespan."""
    for seed in range(200):
        problem = _case(seed)
        together = np.flatnonzero(np.bincount(problem.group, minlength=problem.num_ops)[problem.group] > 1)
        if not len(together):
            continue
        allowed = np.isfinite(problem.time_s)
        allowed[:, :, 0] = False
        one, other = np.flatnonzero(problem.group == problem.group[together[0]])[:2]
        allowed[one, 1:], allowed[other, 0] = False, False
        if allowed.any(axis=(1, 2)).all():
            assert DestructiveSearch(problem, upper=LIMIT, allowed=allowed).run(10, Budget()) == LIMIT
            return
    raise AssertionError("no case with a group")
