"""Filling stages under a bisected bottleneck."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings

from rlinit.budget import Budget
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.heuristics.stages import Found
from rlinit.heuristics.stages.beam.search import Beam, beam
from rlinit.heuristics.stages.filling.search import Filler, FillSettings, bisect_from, fill, quick_lower_bound
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.stage_cases import brute_force_pipeline, random_problem


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems())
def test_between_the_quick_bound_and_brute_force(problem: StageProblem) -> None:
    """The bound that ends the search is a bound, and no assignment is better than the optimum."""
    if problem.objective == "memory":
        return
    settings_ = FillSettings(problem)
    optimum = brute_force_pipeline(problem)
    assert quick_lower_bound(settings_) <= optimum * (1 + 1e-9)
    for method in (fill, beam):
        found = method(problem, seed=0, evaluations=5_000)
        if found is not None:
            assert found[1][0] >= optimum * (1 - 1e-9)


@pytest.mark.parametrize("method", [fill, beam])
@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_small_problems_are_solved(num_classes: int, method: Callable[..., Found]) -> None:
    """With equal and with unlike devices, few ops are assigned optimally."""
    for seed in range(4):
        problem = random_problem(seed, 6, max(2, num_classes), num_classes=num_classes, density=0.3, io=0.1)
        found = method(problem, seed=0, evaluations=100_000)
        assert found is not None
        assert found[1][0] == pytest.approx(brute_force_pipeline(problem), rel=1e-9)


def test_never_worse_than_its_start_and_stops_at_the_bound() -> None:
    """A start at the bound is returned as it is, without a single load."""
    problem = random_problem(3, 8, 3)
    found = fill(problem, seed=0, evaluations=50_000)
    assert found is not None
    again = bisect_from(Filler, problem, found[0], seed=1, loads=1_000, lower=found[1][0], budget=Budget())
    assert again is not None
    assert again[0] is found[0]


@pytest.mark.parametrize("searcher", [Filler, Beam])
def test_each_better_assignment_is_told(searcher: type[Filler | Beam]) -> None:
    """What is told while the search goes on gets better from one to the next, and the last is what is returned."""
    problem = random_problem(5, 30, 4, num_classes=3, density=0.2, io=0.1)
    told: list[StageAssignment] = []
    found = bisect_from(searcher, problem, None, seed=0, loads=20_000, on_solution=told.append)
    assert found is not None
    assert told[-1] is found[0]
    values = [evaluate(problem, one) for one in told]
    assert all(later < earlier for earlier, later in itertools.pairwise(values))


def test_an_op_placed_from_one_end_is_not_placed_again_from_the_other() -> None:
    """Assignments are monotone and hold every op, whichever ends stages are filled from."""
    for seed in range(0, 120, 2):
        objective: Literal["pipeline", "memory"] = "memory" if seed % 4 else "pipeline"
        problem = random_problem(seed + 1, 5 + seed % 25, 2 + seed % 5, density=0.3, io=0.1, objective=objective)
        found = fill(problem, seed=seed + 1, evaluations=20_000)
        assert found is not None
        source = np.repeat(found[0].stage, np.diff(problem.succ_indptr))
        assert (source <= found[0].stage[problem.succ]).all(), seed


@pytest.mark.parametrize(("tasks", "stations", "evaluations"), [(200, 10, 300_000), (240, 6, 2_000_000)])
def test_stages_without_any_slack_are_filled_exactly(tasks: int, stations: int, evaluations: int) -> None:
    """Where whole seconds leave no idle second, each of the stages is filled to the last one."""
    rng = np.random.default_rng(5)
    seconds = rng.integers(100, 1_000, tasks)
    seconds[-1] += -int(seconds.sum()) % stations
    edges = [(f"op{int(rng.integers(max(0, v - 60), v))}", f"op{v}") for v in range(1, tasks) if rng.random() < 0.8]
    graph = Graph.build([(f"op{v}", {"time_s": float(seconds[v])}) for v in range(tasks)], edges)
    problem = lower_stages(graph, Hardware.pipeline(stations), "pipeline").problem
    found = fill(problem, seed=0, evaluations=evaluations)
    assert found is not None
    assert found[1][0] == int(seconds.sum()) / stations
