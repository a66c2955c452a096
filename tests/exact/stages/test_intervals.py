"""The interval bound: never above the optimum, exact where intervals are single ideals, and in time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlinit.budget import Budget
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.exact.stages.intervals.cover import Cover, Lattice, undecided
from rlinit.exact.stages.intervals.crossings import crossings
from rlinit.exact.stages.intervals.search import interval_bound, refuted
from rlinit.stages.problem import StageProblem, evaluate
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


def ideals(problem: StageProblem) -> list[NDArray[np.bool_]]:
    """Return the sets of nodes closed under predecessors."""
    n = problem.num_nodes
    edges = [(int(u), v) for v in range(n) for u in problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]]
    sets = [np.array([number >> v & 1 for v in range(n)], bool) for number in range(2**n)]
    return [held for held in sets if all(held[u] or not held[v] for u, v in edges)]


def members(bits: NDArray[np.uint64], n: int) -> NDArray[np.bool_]:
    """Return (p, n) which nodes each set holds."""
    return np.array([[bool(row[v >> 6] >> np.uint64(v & 63) & np.uint64(1)) for v in range(n)] for row in bits])


def finer(lattice: Lattice, rounds: int, rng: np.random.Generator) -> Cover:
    """Return a cover after random halvings."""
    cover = lattice.whole()
    for _ in range(rounds):
        chosen = undecided(cover) & (rng.random(cover.size) < 0.7)
        if chosen.any():
            halved = lattice.halved(cover, chosen, Budget())
            assert halved is not None
            cover = halved
    return cover


@settings(max_examples=draws(150), deadline=None)
@given(problem=small_problems(), most=st.sampled_from([4, 10, 40, 8_000]))
def test_never_above_the_optimum(problem: StageProblem, most: int) -> None:
    """Over every feature and magnitude, however coarse the intervals are."""
    if problem.objective == "memory":
        return
    optimum = brute_force_pipeline(problem)
    for upper in (np.inf, optimum, optimum * 1.5):
        assert interval_bound(problem, upper=upper, most=most, first=most) <= optimum * (1 + 1e-9)


@settings(max_examples=draws(150), deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-9, 1.0, 1e12]), whole=st.booleans())
def test_single_ideals_decide(seed: int, scale: float, whole: bool) -> None:
    """On equal devices without overflow the optimum is never refuted, and what is below it always."""
    rng = np.random.default_rng(seed)
    density, k = float(rng.choice([0.0, 0.3, 0.7])), int(rng.integers(1, 5))
    problem = random_problem(
        seed, int(rng.integers(1, 8)), k, density=density, scale=scale, integer=whole, tensors_per_node=2
    )
    problem = dataclasses.replace(problem, overflow_s_per_byte=np.zeros(1), memory_bytes=np.array([np.inf]))
    optimum, lattice = brute_force_pipeline(problem), Lattice(problem)
    assert refuted(lattice, optimum, 10**6, Budget()) is False
    assert refuted(lattice, optimum * (1 - 1e-6), 10**6, Budget()) is (optimum > 0)


@pytest.mark.parametrize("seed", range(5))
def test_sets_of_several_words_decide(seed: int) -> None:
    """Where sets of ops take three words and far intervals are told apart by these, the same holds as in one."""
    problem = random_problem(seed, 130, 2 + seed, density=0.4, io=0.3 * seed, tensors_per_node=1 + seed % 2)
    problem = dataclasses.replace(problem, overflow_s_per_byte=np.zeros(1), memory_bytes=np.array([np.inf]))
    exact, lattice = solve_ideals(problem, 200_000), Lattice(problem)
    assert exact is not None
    assert exact.assignment is not None
    optimum = evaluate(problem, exact.assignment)[0]
    assert refuted(lattice, optimum, 10**6, Budget()) is False
    assert refuted(lattice, optimum * (1 - 1e-6), 10**6, Budget()) is True
    assert 0 < interval_bound(problem, upper=2 * optimum, most=2_000) <= optimum * (1 + 1e-9)


@settings(max_examples=draws(60), deadline=None)
@given(seed=st.integers(0, 10**6), rounds=st.integers(0, 6))
def test_intervals_hold_every_ideal_in_an_order(seed: int, rounds: int) -> None:
    """Each ideal is in an interval, none within one of an earlier interval, and pays for what crosses it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 7, 3, density=0.3, tensors_per_node=2)
    lattice = Lattice(problem)
    cover = finer(lattice, rounds, rng)
    inner, outer = members(cover.inner, 7), members(cover.outer, 7)
    found = crossings(cover.inner, cover.outer, problem.tensor_arrays, lattice.in_s, Budget())
    assert found is not None
    tensor_of = np.repeat(np.arange(problem.num_tensors), np.diff(problem.tensor_indptr))
    for held in ideals(problem):
        holds = np.flatnonzero((inner <= held).all(axis=1) & (held <= outer).all(axis=1))
        assert len(holds) >= 1
        assert (cover.least[holds] <= problem.work_s[0, held].sum()).all()
        assert (cover.most[holds] >= problem.work_s[0, held].sum()).all()
        crosses = np.zeros(problem.num_tensors, bool)
        crosses[tensor_of[held[problem.tensor_src[tensor_of]] & ~held[problem.tensor_dst]]] = True
        assert (found.total[holds] <= problem.in_s[0, crosses].sum() * (1 + 1e-12)).all()
    for late in range(2, cover.size - 1):
        assert not (inner[late] <= outer[1:late]).all(axis=1).any()


def test_stops_when_the_budget_ends() -> None:
    """A spent budget proves what the cheapest bound does, and leaves trials at once."""
    problem = random_problem(3, 60, 6, density=0.02)
    spent = Budget(0.0)
    assert interval_bound(problem, upper=1e9, budget=spent) > 0
    assert refuted(Lattice(problem), 1e-3 * problem.work_s.sum(), 10**6, spent) in (None, True)


@pytest.mark.parametrize("k", [4, 12])
def test_sees_transfers_that_balancing_does_not(k: int) -> None:
    """Two chains that exchange large tensors: the bound counts what every boundary between stages costs."""
    problem = random_problem(1, 24, k, density=0.2, io=3.0)
    problem = dataclasses.replace(problem, overflow_s_per_byte=np.zeros(1), memory_bytes=np.array([np.inf]))
    for upper in (problem.work_s.sum(), np.inf):
        assert interval_bound(problem, upper=upper) > problem.work_s.sum() / k * 1.05
