"""Bounds of placements: never above a feasible placement, and where they must be sharp."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.exact.placements.analysis.reachability import reachability, reachable_sums
from rlinit.exact.placements.bounds import registry
from rlinit.exact.placements.bounds.destructive import DestructiveSearch
from rlinit.exact.placements.bounds.registry import PLACEMENT_BOUNDS
from rlinit.exact.solvers.lp_dual_bound import LinearProgram
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan
from rlinit.plan import Transfers
from tests.draws import draws
from tests.placement_cases import brute_force_placement, random_placement, random_placement_problem

BOUNDS = list(PLACEMENT_BOUNDS)
CLOSE = 1.0 + 1e-9
WAYS: tuple[Transfers, ...] = ("parallel", "exclusive", "blocking")
SEEDS = draws(60)


@functools.cache
def _tiny(seed: int) -> tuple[PlacementProblem, float]:
    """Return a tiny problem of some kind, by its seed, and its least makespan."""
    shards = 2 if seed % 4 == 3 else 1
    transfers = WAYS[seed // 4 % 3]
    problem = random_placement_problem(
        seed,
        num_ops=3 if shards == 2 else 4 + seed % 2,
        num_devices=2 if shards == 2 or seed % 2 else 3,
        shards=shards,
        transfers=transfers,
        density=(0.0, 0.35, 0.7)[seed // 12 % 3],
        scale=(1.0, 1e-9, 1e12)[seed % 5 % 3],
        transfer=(0.0, 0.2, 1.0, 5.0)[seed // 3 % 4],
        memory_fraction=(np.inf, 0.7, 0.5, 0.35)[seed % 7 % 4],
        group_fraction=(0.0, 0.4)[seed // 2 % 2],
        missing_links=(0.0, 0.3)[seed // 5 % 2] if transfers != "blocking" else 0.0,
        integer=seed % 3 == 0,
        identical=seed % 11 == 0,
    )
    return problem, brute_force_placement(problem)


def _plain(times: list[list[float]], edges: list[tuple[int, int]]) -> PlacementProblem:
    """Return a `latency` problem with free transfers from the times of its ops on each device."""
    seconds = np.array(times, np.float64)
    n, d = seconds.shape
    return PlacementProblem(
        objective="latency",
        transfers="parallel",
        shard_inputs=1,
        time_s=np.stack([np.zeros((n, d)), seconds], axis=2),
        tensor_bytes=np.zeros(n),
        weight_bytes=np.zeros(n),
        shard_bytes=np.zeros(n),
        capacity_bytes=np.full(d, np.inf),
        s_per_byte=np.zeros((d, d)),
        delay_s=np.zeros((d, d)),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        order=np.arange(n),
        group=np.arange(n),
    )


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_is_above_the_least_makespan(name: str) -> None:
    """On tiny problems of every kind, no bound exceeds the makespan that brute force finds."""
    for seed in range(SEEDS):
        problem, least = _tiny(seed)
        bound = PLACEMENT_BOUNDS[name](problem)
        assert 0.0 <= bound <= least * CLOSE, (seed, bound, least)


@pytest.mark.parametrize("name", ["path", "load"])
def test_what_runs_late_holds_without_any_time(name: str) -> None:
    """The bounds that every plan has, however short its limit, do not exceed the least makespan either."""
    above = 0
    for seed in range(SEEDS):
        problem, least = _tiny(seed)
        bound = PLACEMENT_BOUNDS[name](problem, budget=Budget(0.0))
        assert 0.0 <= bound <= least * CLOSE, (seed, bound, least)
        above += bound > 0.0
    assert above > SEEDS // 2


@pytest.mark.parametrize("name", ["path", "load"])
@pytest.mark.parametrize("late", [False, True])
def test_paths_without_windows_hold_and_are_no_better(name: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no time for the windows of all ops and devices, transfers are left out."""
    monkeypatch.setattr(registry, "_WINDOW_S", 1e3)
    above_zero = 0
    for seed in range(SEEDS):
        problem, best = _tiny(seed)
        problem = dataclasses.replace(problem)  # whose windows are not known yet
        quick = PLACEMENT_BOUNDS[name](problem, budget=Budget(0.0 if late else 1.0))
        assert quick <= best * CLOSE, seed
        if name == "path":
            assert quick <= PLACEMENT_BOUNDS[name](problem) * CLOSE, seed
        above_zero += quick > 0.0
    assert above_zero > SEEDS // 2


@pytest.mark.parametrize("name", BOUNDS)
def test_upper_is_not_exceeded_and_prunes_nothing_better(name: str) -> None:
    """With any upper value the bound is at most that, and at most the least makespan if that is smaller."""
    for seed in range(0, SEEDS, 5):
        problem, least = _tiny(seed)
        if least == np.inf:
            continue
        for factor in (0.5, 1.0, 1.01, 1.5):
            upper = least * factor
            bound = PLACEMENT_BOUNDS[name](problem, upper=upper)
            assert bound <= min(upper, least * CLOSE), (seed, factor, bound, least)


@pytest.mark.parametrize("transfers", WAYS)
@pytest.mark.parametrize("shards", [1, 4])
def test_no_bound_is_above_a_placement_of_a_larger_problem(transfers: Transfers, shards: int) -> None:
    """On problems of 24 ops, no bound exceeds the best of many random placements."""
    for seed in range(2):
        problem = random_placement_problem(
            seed,
            num_ops=24,
            shards=shards,
            transfers=transfers,
            density=(0.05, 0.2)[seed],
            group_fraction=0.2 * (seed % 2),
            transfer=0.1,
            forbidden_fraction=0.05,
        )
        rng = np.random.default_rng(seed)
        best = np.inf
        for _ in range(120):
            # A placement that breaks up a group or uses a device forbidden to one of it has makespan inf.
            best = min(best, makespan(problem, random_placement(problem, rng)))
        for name in BOUNDS:
            assert PLACEMENT_BOUNDS[name](problem, budget=Budget(0.15)) <= best * CLOSE, (name, seed)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_path_of_ops_is_bounded_by_its_best_devices(name: str) -> None:
    """Of ops one after the other and free transfers, every bound is the sum of the best times."""
    problem = _plain([[3.0, 1.0], [1.0, 5.0], [2.0, 4.0]], [(0, 1), (1, 2)])
    assert PLACEMENT_BOUNDS[name](problem) == pytest.approx(4.0)


@pytest.mark.parametrize("name", [name for name in BOUNDS if name != "path"])
def test_one_device_runs_everything(name: str) -> None:
    """On one device every bound but the path is the sum of all times, whatever the edges."""
    problem = _plain([[3.0], [1.0], [2.0], [0.0]], [(0, 3)])
    assert PLACEMENT_BOUNDS[name](problem) == pytest.approx(6.0)


@pytest.mark.parametrize("name", [name for name in BOUNDS if name not in ("path", "load")])
def test_what_lies_around_an_op_counts(name: str) -> None:
    """Two loads with one op between them are bounded by their sum, which neither path nor load sees."""
    fan = [(k, 4) for k in range(4)] + [(4, k) for k in range(5, 9)]
    problem = _plain([[1.0, 1.0]] * 9, fan)
    assert PLACEMENT_BOUNDS[name](problem) == pytest.approx(5.0)


def test_branching_sees_that_ops_are_whole() -> None:
    """Five equal ops on two equal devices take three times one, which only the search proves."""
    problem = _plain([[1.0, 1.0]] * 5, [])
    search = DestructiveSearch(problem)
    assert PLACEMENT_BOUNDS["relaxation"](problem) == pytest.approx(2.5)
    assert search.run(100, Budget()) == pytest.approx(3.0)


def test_more_nodes_never_lower_the_bound_of_the_search() -> None:
    """The bound of a continued search grows, and stays below what brute force finds."""
    for seed in (0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14):
        problem, least = _tiny(seed)
        search, last = DestructiveSearch(problem), 0.0
        for _ in range(10):
            bound = search.run(3, Budget())
            assert last <= bound <= least * CLOSE
            last = bound


@pytest.mark.parametrize("name", BOUNDS)
def test_scaling_all_times_scales_the_bound(name: str) -> None:
    """Seconds in units of a power of two give the same bound in these units."""
    for seed in (1, 5, 13, 21):
        problem, _ = _tiny(seed)
        scaled = dataclasses.replace(
            problem,
            time_s=problem.time_s * 2.0**30,
            s_per_byte=problem.s_per_byte * 2.0**30,
            delay_s=problem.delay_s * 2.0**30,
        )
        assert PLACEMENT_BOUNDS[name](scaled) == pytest.approx(PLACEMENT_BOUNDS[name](problem) * 2.0**30, rel=1e-6)


@pytest.mark.parametrize("name", BOUNDS)
def test_what_cannot_run_has_an_infinite_bound(name: str) -> None:
    """An op without a device, or a path without a link, leaves no placement; nor does an upper value at most zero."""
    stuck = _plain([[np.inf, np.inf], [1.0, 1.0]], [])
    assert PLACEMENT_BOUNDS[name](stuck) == np.inf
    apart = _plain([[1.0, np.inf], [np.inf, 1.0]], [(0, 1)])
    apart = dataclasses.replace(apart, delay_s=np.array([[0.0, np.inf], [np.inf, 0.0]]))
    assert PLACEMENT_BOUNDS[name](apart) == np.inf
    assert PLACEMENT_BOUNDS[name](_plain([[1.0]], []), upper=0.0) == 0.0


@pytest.mark.parametrize("name", BOUNDS)
def test_nothing_to_do_takes_no_time(name: str) -> None:
    """Ops without duration, and no ops at all, have the bound zero."""
    assert PLACEMENT_BOUNDS[name](_plain([[0.0, 0.0]] * 3, [(0, 1)])) == 0.0
    empty = _plain([[0.0, 0.0]], [])
    empty = dataclasses.replace(
        empty,
        time_s=np.zeros((0, 2, 2)),
        tensor_bytes=np.zeros(0),
        weight_bytes=np.zeros(0),
        shard_bytes=np.zeros(0),
        order=np.zeros(0, np.int64),
        group=np.zeros(0, np.int64),
    )
    assert PLACEMENT_BOUNDS[name](empty) == 0.0


@pytest.mark.parametrize("name", BOUNDS)
def test_an_expired_budget_still_gives_a_bound(name: str) -> None:
    """Without time left the bound is a cheap one, at least the longest path."""
    problem = random_placement_problem(3, num_ops=40)
    bound = PLACEMENT_BOUNDS[name](problem, budget=Budget(0.0))
    assert bound >= PLACEMENT_BOUNDS["path"](problem)


def test_memory_without_room_is_infeasible() -> None:
    """Capacities below what all ops hold together are found to leave no placement."""
    problem = _plain([[1.0, 1.0]] * 4, [])
    problem = dataclasses.replace(problem, weight_bytes=np.ones(4), capacity_bytes=np.array([1.0, 1.5]))
    for name in ("load", "around", "relaxation", "chain", "joined"):
        assert PLACEMENT_BOUNDS[name](problem) == np.inf


@settings(max_examples=draws(60), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_multipliers_prove_a_bound(seed: int) -> None:
    """The Lagrangian value of arbitrary multipliers is never above the minimum over points of the program."""
    rng = np.random.default_rng(seed)
    rows, equal, size = 4, 2, 5
    scale = 10.0 ** rng.integers(-3, 4)
    matrix, fixed = rng.normal(size=(rows, size)) * scale, rng.normal(size=(equal, size))
    point = rng.random(size) * 2.0
    program = LinearProgram(
        rng.normal(size=size),
        scipy.sparse.csr_matrix(matrix),
        matrix @ point + rng.random(rows) * scale,
        scipy.sparse.csr_matrix(fixed),
        fixed @ point,
        np.zeros(size),
        np.full(size, 2.0),
    )
    value = float(program.cost @ point)
    assert program.dual_value(-rng.random(rows) * 10, rng.normal(size=equal) * 10) <= value + 1e-9 * scale
    solution = program.solve(10.0)
    assert solution.bound <= value + 1e-9
    assert solution.point is not None
    assert solution.bound == pytest.approx(float(program.cost @ solution.point), abs=1e-6)


@settings(max_examples=draws(20), deadline=None)
@given(seed=st.integers(0, 10**6), num_ops=st.integers(1, 150))
def test_sums_over_what_leads_to_an_op(seed: int, num_ops: int) -> None:
    """Sums by bits equal those by the reachability matrix, in any topological order."""
    problem = random_placement_problem(seed, num_ops=num_ops, density=0.03)
    reach = reachability(problem.order, problem.succ_indptr, problem.succ)
    weight = np.random.default_rng(seed).random(num_ops)
    before = reachable_sums(problem.order, problem.pred_indptr, problem.pred, weight)
    after = reachable_sums(problem.order[::-1].copy(), problem.succ_indptr, problem.succ, weight)
    np.testing.assert_allclose(before, weight @ reach)
    np.testing.assert_allclose(after, reach @ weight)
