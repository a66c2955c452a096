"""Convex loads: their costliest one against enumeration, and the cover bound never above the optimum."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.convex_cover import ConvexCover, convex_cover_bound
from rlinit.exact.stages.bounds.convex_load import StageRoom, best_load, reach_bits
from rlinit.exact.stages.bounds.simple import load_balance
from rlinit.stages.problem import StageProblem
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


def unlike(seed: int, n: int = 6, k: int = 3, *, scale: float = 1.0, density: float = 0.3) -> StageProblem:
    """Return a line whose times are drawn apart for every device, some forbidden, ties and zeros among them."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, n, k, num_classes=k, density=density, io=0.0)
    work = rng.integers(0, 9, (k, n)).astype(np.float64) * scale
    work[rng.random((k, n)) < 0.2] = np.inf
    return dataclasses.replace(problem, work_s=work)


def costliest(problem: StageProblem, price: np.ndarray, c: int, room: StageRoom) -> float:
    """Return the price of the costliest convex set that fits, by trying all sets."""
    n = problem.num_nodes
    reach = np.zeros((n, n), np.bool_)
    for v in problem.order[::-1]:
        for u in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]:
            reach[v] |= reach[u]
            reach[v, u] = True
    best = 0.0
    for bits in itertools.product([False, True], repeat=n):
        member = np.array(bits)
        between = reach[member].any(axis=0) & reach[:, member].any(axis=1)
        param = problem.param_bytes[member].sum()
        over = max(0.0, param - room.cache) * room.overflow if np.isfinite(room.cache) else 0.0
        fits = problem.work_s[c, member].sum() + over <= room.limit and param <= room.memory
        if fits and not (between & ~member).any():
            best = max(best, float(price[member].sum()))
    return best


@pytest.mark.parametrize("seed", range(draws(150)))
def test_the_dearest_load_is_that_of_enumeration(seed: int) -> None:
    """With caches and memories, ties and zeros; an early end gives a bound that is not below it."""
    rng = np.random.default_rng(seed)
    scale = float(rng.choice([1e-9, 1.0, 1e12]))
    problem = unlike(seed, int(rng.integers(1, 9)), 2, scale=scale)
    n, order = problem.num_nodes, problem.order
    behind = reach_bits(np.ascontiguousarray(order), problem.succ_indptr, problem.succ)
    price = rng.integers(0, 4, n) * rng.choice([1.0, 0.3])
    total = float(problem.param_bytes.sum())
    room = StageRoom(
        float(rng.integers(0, 25)) * scale,
        float(rng.choice([np.inf, 0.6 * total])),
        float(rng.choice([np.inf, 0.3 * total])),
        float(rng.choice([0.0, 2.0])) * scale,
    )
    args = problem.work_s[0, order], problem.param_bytes[order], price[order].astype(np.float64), room, behind
    chosen = np.zeros(n, np.bool_)
    bound, found, _ = best_load(*args, 0.0, 10**6, chosen)
    expected = costliest(problem, price, 0, room)
    assert found == pytest.approx(expected)
    assert expected <= bound <= expected * (1 + 1e-6) + 1e-12
    assert price[order][chosen].sum() == pytest.approx(found)
    for cap in (0, 1, 3):
        early, known, _ = best_load(*args, 0.0, cap, np.zeros(n, np.bool_))
        assert early >= expected * (1 - 1e-12)
        assert known <= expected * (1 + 1e-12)
    above, _, _ = best_load(*args, expected + 1.0, 10**6, chosen)
    assert above >= expected
    assert not chosen.any()


@settings(max_examples=draws(100), deadline=None)
@given(problem=small_problems())
def test_never_above_the_optimum(problem: StageProblem) -> None:
    """Over every feature and magnitude: transfers, caches, memories, forbidden devices, one device or several."""
    if problem.objective == "memory":
        return
    optimum = brute_force_pipeline(problem)
    assert convex_cover_bound(ConvexCover(problem, Budget()), lower=0.0, upper=np.inf) <= optimum * (1 + 1e-9)
    cover = ConvexCover(problem, Budget())
    assert not np.isfinite(optimum) or not cover.refutes(optimum)


@pytest.mark.parametrize("seed", range(draws(120)))
def test_never_above_the_optimum_of_unlike_devices(seed: int) -> None:
    """Times drawn apart for every device, in any order; with the quantum of the data as well."""
    scale = (1e-9, 1.0, 1e12)[seed % 3]
    problem = unlike(seed, 6, 3, scale=scale, density=(0.0, 0.3, 0.7)[seed // 3 % 3])
    optimum = brute_force_pipeline(problem)
    for quantum in (0.0, scale if scale == 1.0 else 0.0):
        assert convex_cover_bound(
            ConvexCover(problem, Budget()), lower=0.0, upper=np.inf, quantum=quantum
        ) <= optimum * (1 + 1e-9)


def test_it_knows_of_what_lies_between() -> None:
    """The two ends of a chain are quick on one device, but then its middle is there, too, which is slow there."""
    problem = random_problem(0, 3, 2, num_classes=2, density=1.0, io=0.0)
    problem = dataclasses.replace(problem, work_s=np.array([[1.0, 9.0, 1.0], [9.0, 1.0, 9.0]]))
    optimum = brute_force_pipeline(problem)
    bound = convex_cover_bound(ConvexCover(problem, Budget()), lower=0.0, upper=optimum)
    assert optimum == 10.0
    assert load_balance(problem).bound < 7.0 < 8.9 < bound <= optimum
