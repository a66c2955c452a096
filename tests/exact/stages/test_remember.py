"""Branch, bound and remember against brute force; each rule that leaves something out against a mutation of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings

import rlinit
from rlinit.budget import Budget
from rlinit.errors import RlinitError
from rlinit.exact.stages.bounds.convex_cover import ConvexCover
from rlinit.exact.stages.remember import search
from rlinit.exact.stages.remember.search import search_below
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate
from tests.draws import draws
from tests.exact.stages.bounds.test_convex_cover import unlike
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


def check_trials(problem: StageProblem) -> None:
    """Refute below the optimum, find at it: around it, and nothing false anywhere."""
    optimum = brute_force_pipeline(problem)
    for trial in (0.5 * optimum, optimum * (1 - 1e-6), optimum, 1.3 * optimum):
        if not math.isfinite(trial):
            trial = 1e9
        found: list[StageAssignment] = []
        refuted = search_below(problem, ConvexCover(problem, Budget()), trial, Budget(), found.append)
        if trial < optimum * (1 - 1e-7):
            assert refuted
        else:
            assert not refuted
            assert evaluate(problem, found[0])[0] <= trial * (1 + 1e-8)


@pytest.mark.parametrize("seed", range(draws(60)))
def test_unlike_devices(seed: int) -> None:
    """Lines without bytes, times drawn apart for every device, some forbidden."""
    scale, density = (1e-9, 1.0, 1e12)[seed % 3], (0.0, 0.3, 0.6)[seed // 3 % 3]
    check_trials(unlike(seed, *((6, 3), (5, 4))[seed % 2], scale=scale, density=density))


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_every_feature(problem: StageProblem) -> None:
    """Transfers, caches, memories, forbidden devices, one class or two."""
    if problem.objective == "pipeline":
        check_trials(problem)


@pytest.mark.parametrize("seed", range(draws(60)))
def test_transfers(seed: int) -> None:
    """Tensors as dear as work, so that ops often do not pay for themselves."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        seed, 6, 3, num_classes=1 + seed % 3, density=0.5, io=float(rng.choice([0.3, 1.0, 3.0])), integer=seed % 2 == 0
    )
    work = np.where(rng.random(problem.work_s.shape) < 0.1, np.inf, problem.work_s)
    check_trials(dataclasses.replace(problem, work_s=work))


def test_ops_that_do_not_pay_for_themselves_are_not_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were every op thought to pay for itself, fuller stages would hide optima where tensors are dear."""
    monkeypatch.setattr(search, "pays_for_itself", lambda a, _forward, _count: np.ones(len(a.param), np.bool_))
    wrong = 0
    for seed in range(60):
        problem = random_problem(seed, 6, 3, density=0.5, io=3.0, integer=True)
        optimum = brute_force_pipeline(problem)
        wrong += search_below(problem, ConvexCover(problem, Budget()), optimum, Budget(), lambda _: None)
    assert wrong


@pytest.mark.parametrize("seed", range(draws(20)))
def test_the_method_proves(seed: int) -> None:
    """By name, the method ends with value and bound at the optimum; on other objectives it is refused."""
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c"]
    ops = [
        (f"op{v}", {"time_s": {d: float(rng.integers(1, 9)) for d in names}, "out_bytes": float(rng.integers(0, 3))})
        for v in range(6)
    ]
    edges = [(f"op{u}", f"op{v}") for u in range(6) for v in range(u + 1, 6) if rng.random() < 0.3]
    graph = rlinit.Graph.build(ops, edges)
    hardware = rlinit.Hardware.mesh([rlinit.Device(d) for d in names], 2.0)
    plan = rlinit.schedule(graph, hardware, objective="pipeline", method="remember")
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(brute_force_pipeline(lower_stages(graph, hardware, "pipeline").problem))
    with pytest.raises(RlinitError, match="'remember' is for pipeline"):
        rlinit.schedule(graph, hardware, objective="memory", method="remember")
