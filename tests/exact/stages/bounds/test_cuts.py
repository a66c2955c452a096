"""Cut and spectral bounds against brute force over assignments and over node sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlinit.budget import Budget
from rlinit.exact.stages.bounds.anchored_cut import anchored_cut_bound
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.exact.stages.bounds.spectral import Communication, reachability, spectral_bound
from rlinit.stages.problem import StageProblem, stage_cost
from tests.draws import draws
from tests.stage_cases import brute_force_pipeline, random_problem

BOUNDS: tuple[Callable[..., float], ...] = (anchored_cut_bound, spectral_bound)


def _problem(seed: int) -> StageProblem:
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        int(rng.integers(1, 7)),
        int(rng.integers(1, 5)),
        num_classes=int(rng.choice([1, 1, 2, 3])),
        density=float(rng.choice([0.0, 0.3, 0.8])),
        scale=10.0 ** rng.integers(-9, 13),
        io=float(rng.choice([0.1, 1.0, 4.0])),
        zero_fraction=float(rng.choice([0.0, 0.2, 0.9])),
        tensors_per_node=int(rng.integers(1, 3)),
        cache_fraction=float(rng.choice([np.inf, 0.3, 0.9])),
        integer=bool(rng.random() < 0.4),
    )
    if rng.random() < 0.3:
        problem = replace(problem, in_s=problem.in_s * rng.uniform(0, 3), out_s=problem.out_s * rng.uniform(0, 3))
    if rng.random() < 0.2:
        work = problem.work_s.copy()
        work[rng.random(work.shape) < 0.15] = np.inf
        problem = replace(problem, work_s=work)
    if rng.random() < 0.2:
        memory = problem.param_bytes.sum() * rng.uniform(0.4, 1.0, problem.num_classes)
        problem = replace(problem, memory_bytes=memory)
    return problem


@settings(deadline=None, max_examples=draws(120))
@given(st.integers(0, 10**6), st.sampled_from([np.inf, 1.0, 1.2]))
def test_bounds_are_at_most_the_optimum(seed: int, slack: float) -> None:
    """No assignment beats any bound, given the optimum as `upper`, a worse value, or none."""
    problem = _problem(seed)
    optimum = brute_force_pipeline(problem)
    for bound in BOUNDS:
        assert bound(problem, upper=optimum * slack) <= optimum * (1 + 1e-9)


@settings(deadline=None, max_examples=draws(60))
@given(st.integers(0, 10**6))
def test_bounds_hold_on_graphs_full_of_communication(seed: int) -> None:
    """Seven dense nodes of like work, where partitions pay much and the spectral bound is active."""
    problem = random_problem(seed, 7, 2 + seed % 3, density=0.6, io=0.1 + seed % 4, zero_fraction=0.0)
    optimum = brute_force_pipeline(problem)
    for bound in BOUNDS:
        for upper in (np.inf, optimum, 1.1 * optimum):
            assert bound(problem, upper=upper) <= optimum * (1 + 1e-9)


def _members(problem: StageProblem, v: int) -> list[NDArray[np.bool_]]:
    n = problem.num_nodes
    return [m for m in (((i >> np.arange(n)) & 1).astype(bool) for i in range(1 << n)) if m[v]]


def _closed_around(problem: StageProblem, reach: NDArray[np.bool_], member: NDArray[np.bool_], v: int) -> bool:
    """Whether every path between v and a member stays inside."""
    return all(
        not (reach[a] & reach[:, b] & ~member).any() for u in np.flatnonzero(member) for a, b in ((u, v), (v, u))
    )


@settings(deadline=None, max_examples=draws(30))
@given(st.integers(0, 10**6))
def test_anchored_bound_is_the_dearest_anchors_cheapest_set(seed: int) -> None:
    """It equals max over v of min cost over sets that contain v and all paths between v and themselves."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, int(rng.integers(1, 8)), 50, num_classes=int(rng.integers(1, 3)), io=2.0, tensors_per_node=2,
        density=float(rng.choice([0.3, 0.6])), scale=10.0 ** rng.integers(-9, 13),
    )  # fmt: skip
    reach = reachability(problem).astype(bool)
    expected = simple_bound(problem)[0]
    for v in range(problem.num_nodes):
        sets = [m for m in _members(problem, v) if _closed_around(problem, reach, m, v)]
        cheapest = min(stage_cost(problem, m, c) for m in sets for c in range(problem.num_classes))
        expected = max(expected, cheapest)
    assert anchored_cut_bound(problem) == pytest.approx(expected, rel=1e-8)


def _chain(work: list[float], size: float, k: int) -> StageProblem:
    n = len(work)
    base = random_problem(0, n, k)
    tensors = np.full(n - 1, size)
    return replace(
        base,
        work_s=np.array([work]),
        param_bytes=np.zeros(n),
        tensor_src=np.arange(n - 1, dtype=np.int64),
        tensor_indptr=np.arange(n, dtype=np.int64),
        tensor_dst=np.arange(1, n, dtype=np.int64),
        tensor_bytes=tensors,
        in_s=tensors[None, :],
        out_s=tensors[None, :],
    )


def test_anchored_bound_pays_for_what_surrounds_a_heavy_op() -> None:
    """Around an op of 10 in a chain, both tensors of 2 are cheaper than any neighbour of 5: 14."""
    assert anchored_cut_bound(_chain([5.0, 5.0, 10.0, 5.0, 5.0], 2.0, 5)) == pytest.approx(14.0, rel=1e-8)


def test_spectral_bound_sees_the_communication_of_a_dense_graph() -> None:
    """On a complete graph every split is dear, and the bound is well above the average."""
    problem = random_problem(5, 8, 2, density=1.0, zero_fraction=0.0, io=1.0)
    problem = replace(problem, work_s=np.ones((1, 8)))
    optimum = brute_force_pipeline(problem)
    assert simple_bound(problem)[0] * 1.05 < spectral_bound(problem, upper=optimum) <= optimum


def _one_tensor(num_pins: int, work: float, receive: float, send: float) -> StageProblem:
    base = random_problem(0, num_pins, num_pins)
    return replace(
        base,
        work_s=np.concatenate([[work + receive - send], np.full(num_pins - 1, work)])[None, :],
        param_bytes=np.zeros(num_pins),
        tensor_src=np.zeros(1, np.int64),
        tensor_indptr=np.array([0, num_pins - 1], np.int64),
        tensor_dst=np.arange(1, num_pins, dtype=np.int64),
        tensor_bytes=np.ones(1),
        in_s=np.full((1, 1), receive),
        out_s=np.full((1, 1), send),
    )


@pytest.mark.parametrize("num_pins", [2, 3, 5])
@pytest.mark.parametrize("send", [0.1, 0.3, 0.5])
def test_spectral_bound_is_tight_where_all_stages_cost_the_same(num_pins: int, send: float) -> None:
    """One tensor that every op needs, ops too heavy to share a stage, each stage 1.3 s: the bound is 1.3 s."""
    problem = _one_tensor(num_pins, 1.0, 0.3, send)
    assert brute_force_pipeline(problem) == pytest.approx(1.3)
    for upper in (np.inf, 1.3, 1.45):
        assert 1.3 * (1 - 2e-3) <= spectral_bound(problem, upper=upper) <= 1.3 * (1 + 1e-9)


@settings(deadline=None, max_examples=draws(60))
@given(st.integers(0, 10**6))
def test_priced_communication_bounds_every_partition(seed: int) -> None:
    """The affine function of the shared stages is at most the communication of any assignment, for any prices."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, 9)), int(rng.integers(1, 6))
    problem = random_problem(seed, n, k, density=0.7, io=1.0, zero_fraction=0.1, tensors_per_node=2)
    if problem.num_tensors == 0 or not problem.work_s.any():
        return
    problem = replace(problem, out_s=problem.out_s * rng.uniform(0, 3))
    work = problem.work_s[0]
    communication = Communication(problem, np.ones(1), work)
    for _ in range(20):
        stage = rng.integers(0, k, n)
        held = np.bincount(stage, weights=work, minlength=k)
        communication.restrict(float(held.max()))
        prices = rng.choice([0.0, 0.1, 1.0]) * rng.random(problem.num_tensors)
        shared = (stage[:, None] == stage[None, :]).astype(float)
        squares = np.einsum("ti,ij,tj->t", communication.pins, shared, communication.pins)
        bound = communication.constants(prices)[0] - prices * squares
        for t in range(problem.num_tensors):
            used = stage[problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]]]
            others = set(used.tolist()) - {int(stage[problem.tensor_src[t]])}
            paid = len(others) * problem.in_s[0, t] + bool(others) * problem.out_s[0, t]
            assert bound[t] <= paid + 1e-9


def test_no_steps_prove_the_simple_bound() -> None:
    """A limit on steps returns the best proven so far, at least the simple bound."""
    problem = random_problem(11, 30, 6, density=0.15, io=1.0)
    assert spectral_bound(problem, iterations=0) == simple_bound(problem)[0]


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_spent_budget_returns_the_simple_bound(bound: Callable[..., float]) -> None:
    """A budget that has already ended leaves what is known without any search."""
    problem = random_problem(11, 30, 6, density=0.15, io=1.0)
    budget = Budget(None)
    budget.cancel()
    assert bound(problem, budget=budget) == simple_bound(problem)[0]


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_repeat_and_scale(bound: Callable[..., float]) -> None:
    """The same problem gives the same bound, and a power of two times it for costs scaled by that."""
    problem = random_problem(4, 25, 4, density=0.2, io=1.0)
    scaled = replace(
        problem, work_s=problem.work_s * 2.0**40, in_s=problem.in_s * 2.0**40, out_s=problem.out_s * 2.0**40
    )
    scaled = replace(scaled, overflow_s_per_byte=problem.overflow_s_per_byte * 2.0**40)
    assert bound(problem) == bound(problem)
    assert bound(scaled) == pytest.approx(bound(problem) * 2.0**40, rel=1e-6)


@pytest.mark.parametrize("bound", BOUNDS)
def test_degenerate_problems(bound: Callable[..., float]) -> None:
    """One node, more stages than nodes, no tensors, no cost, and an op without a place."""
    for n, k in ((1, 1), (1, 9), (3, 9)):
        problem = random_problem(1, n, k, zero_fraction=0.0)
        assert simple_bound(problem)[0] <= bound(problem) <= brute_force_pipeline(problem) * (1 + 1e-9)
    loose = random_problem(1, 5, 2, density=0.0)
    assert bound(loose) == simple_bound(loose)[0]
    assert bound(random_problem(1, 5, 2, scale=0.0)) == 0.0
    assert bound(random_problem(1, 5, 2, scale=0.0, density=1.0)) == 0.0
    nowhere = random_problem(1, 5, 2)
    assert bound(replace(nowhere, work_s=np.full((1, 5), np.inf))) == np.inf


def test_relabelling_changes_nothing() -> None:
    """The spectral and cut bounds do not depend on the order in which tensors are listed."""
    problem = random_problem(8, 20, 4, density=0.25, io=1.0, zero_fraction=0.0)
    order = np.arange(problem.num_tensors)[::-1]
    rows = [problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]] for t in order]
    turned = replace(
        problem,
        tensor_src=problem.tensor_src[order],
        tensor_dst=np.concatenate(rows),
        tensor_indptr=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        tensor_bytes=problem.tensor_bytes[order],
        in_s=np.ascontiguousarray(problem.in_s[:, order]),
        out_s=np.ascontiguousarray(problem.out_s[:, order]),
    )
    assert anchored_cut_bound(turned) == pytest.approx(anchored_cut_bound(problem), rel=1e-8)
    assert spectral_bound(turned) == pytest.approx(spectral_bound(problem), rel=1e-2)
