"""Annealing of excess in its Python form, against the definition of a stage's cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.heuristics.stages.excess_kernel import anneal_excess, excess_state
from rlinit.stages.problem import StageAssignment, StageProblem, stage_costs
from tests.exact.stages.cases import any_problem
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem


def _free(problem: StageProblem) -> StageProblem:
    """Return the problem with tensors that cost nothing."""
    return dataclasses.replace(problem, in_s=np.zeros_like(problem.in_s), out_s=np.zeros_like(problem.out_s))


def _excess(problem: StageProblem, stage: np.ndarray, classes: np.ndarray, trial: float) -> float:
    costs = stage_costs(problem, StageAssignment(stage, classes))
    return float(np.maximum(0.0, costs - trial).sum())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_figures_stay_true(seed: int) -> None:
    """After annealing, assignments are feasible and what is known of stages is what the definition says."""
    problem = _free(any_problem(seed, "pipeline", 6))
    classes = problem.completed_classes([])
    starts = (StageAssignment(np.asarray(stage), classes) for stage in monotone_assignments(problem))
    start = next((each for each in starts if np.isfinite(stage_costs(problem, each)).all()), None)
    if start is None:
        return
    whole = float(stage_costs(problem, start).max())
    trial = 0.6 * whole
    costs = problem.cost_arrays
    state = excess_state.py_func(start.stage, classes, trial, 0.1 * whole, costs)
    met = anneal_excess.py_func(np.random.default_rng(seed), 300, 0.99, trial, costs, problem.precedence, state)
    now = StageAssignment(state.stage, state.classes)
    assert stage_costs(problem, now) == pytest.approx(state.cost, rel=1e-9, abs=1e-9 * whole)
    assert sorted(state.classes) == sorted(state.best_classes) == sorted(classes)
    tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    for stage in (state.stage, state.best):
        assert (stage[tail] <= stage[problem.succ]).all()
    least = _excess(problem, state.best, state.best_classes, trial)
    assert least == pytest.approx(state.now[1], rel=1e-9, abs=1e-9 * whole)
    assert met == (state.now[1] <= 1e-9 * trial)
    for at in range(problem.num_stages):
        assert sorted(state.member[at, : state.size[at]]) == np.flatnonzero(state.stage == at).tolist()


def test_a_trial_that_can_be_met_is_met() -> None:
    """On small lines with unlike devices annealing comes to the optimum."""
    for seed in range(8):
        problem = _free(random_problem(seed, 7, 3, num_classes=3, density=0.3, integer=True))
        optimum = brute_force_pipeline(problem)
        state = excess_state(
            np.zeros(7, np.int64), problem.completed_classes([]), optimum, 0.2 * optimum, problem.cost_arrays
        )
        rng = np.random.default_rng(seed)
        assert anneal_excess(rng, 50_000, 0.9999, optimum, problem.cost_arrays, problem.precedence, state)
        assert _excess(problem, state.best, state.best_classes, optimum) <= 1e-9 * optimum
