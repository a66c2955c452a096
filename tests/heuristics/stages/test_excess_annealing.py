"""Annealing of excess in its Python form, against the definition of a stage's cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.hardware import CAPACITY_SLACK
from rlinit.heuristics.stages.excess.annealing import counted_tensors
from rlinit.heuristics.stages.excess.kernel import anneal_excess, excess_state, gather_group
from rlinit.stages.problem import StageAssignment, StageProblem, stage_costs
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, slot_costs
from tests.draws import draws
from tests.exact.stages.cases import any_problem
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem


def _free(problem: StageProblem) -> StageProblem:
    """Return the problem with tensors that cost nothing."""
    return dataclasses.replace(problem, in_s=np.zeros_like(problem.in_s), out_s=np.zeros_like(problem.out_s))


def _excess(problem: StageProblem, stage: np.ndarray, classes: np.ndarray, trial: float) -> float:
    costs = stage_costs(problem, StageAssignment(stage, classes))
    return float(np.maximum(0.0, costs - trial).sum())


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 100_000), st.booleans())
def test_figures_stay_true(seed: int, free: bool) -> None:
    """After annealing, assignments are feasible and what is known of stages is what the definition says."""
    problem = any_problem(seed, "pipeline", 6)
    problem = _free(problem) if free else problem
    classes = problem.completed_classes([])
    starts = (StageAssignment(np.asarray(stage), classes) for stage in monotone_assignments(problem))
    start = next((each for each in starts if np.isfinite(stage_costs(problem, each)).all()), None)
    if start is None:
        return
    whole = float(stage_costs(problem, start).max())
    trial = 0.6 * whole
    costs, tensors = problem.cost_arrays, counted_tensors(problem)
    slot = np.arange(problem.num_stages)
    state = excess_state.py_func(start.stage, slot, classes, trial, 0.1 * whole, costs, tensors)
    rng = np.random.default_rng(seed)
    met = anneal_excess.py_func(rng, 300, 0.99, trial, True, False, costs, tensors, problem.precedence, state)
    now = StageAssignment(state.stage, state.classes[state.slot])
    assert stage_costs(problem, now) == pytest.approx(state.cost[state.slot], rel=1e-9, abs=1e-9 * whole)
    assert sorted(state.slot) == sorted(state.best_slot) == slot.tolist()
    assert sorted(state.classes) == sorted(state.best_classes) == sorted(classes)
    tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    for stage in (state.stage, state.best):
        assert (stage[tail] <= stage[problem.succ]).all()
    least = _excess(problem, state.best, state.best_classes[state.best_slot], trial)
    assert least == pytest.approx(state.now[1], rel=1e-9, abs=1e-9 * whole)
    assert met == (state.now[1] <= 1e-9 * trial)
    for at in range(problem.num_stages):
        assert sorted(state.member[at, : state.size[at]]) == np.flatnonzero(state.stage == at).tolist()
        for t in range(len(tensors.src)):
            readers = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]]
            assert state.inside[t, at] == (state.stage[readers] == at).sum()
    assert (state.made == state.stage[tensors.src]).all()


@pytest.mark.parametrize(("free", "num_classes"), [(True, 3), (False, 3), (False, 1)])
def test_a_trial_that_can_be_met_is_met(free: bool, num_classes: int) -> None:
    """On small problems annealing comes to the optimum, with and without transfers, on alike and unlike devices."""
    for seed in range(8):
        problem = random_problem(seed, 7, 3, num_classes=num_classes, density=0.3, integer=True)
        problem = _free(problem) if free else problem
        optimum = brute_force_pipeline(problem)
        costs, tensors = problem.cost_arrays, counted_tensors(problem)
        start, slot = np.zeros(7, np.int64), np.arange(3)
        state = excess_state(start, slot, problem.completed_classes([]), optimum, 0.2 * optimum, costs, tensors)
        rng = np.random.default_rng(seed)
        assert anneal_excess(rng, 50_000, 0.9999, optimum, True, False, costs, tensors, problem.precedence, state)
        assert _excess(problem, state.best, state.best_classes[state.best_slot], optimum) <= 1e-9 * optimum


def test_what_leads_to_a_node_moves_with_it() -> None:
    """A group is a node and all that follows it in its stage, and none where they are too many."""
    indptr, after = np.array([0, 2, 3, 3, 3]), np.array([1, 2, 3])
    met, stage = np.zeros(4, np.bool_), np.array([0, 0, 1, 0])
    for most, nodes in ((4, [0, 1, 3]), (3, [])):
        chosen = np.empty(most, np.int64)
        count = gather_group(0, stage, (indptr, after), met, chosen)
        assert chosen[:count].tolist() == nodes
        assert not met.any()


@settings(max_examples=draws(60), deadline=None)
@given(st.integers(0, 100_000), st.sampled_from(["interleaved", "free", "loose"]))
def test_figures_of_devices_stay_true(seed: int, rules: str) -> None:
    """Where devices run several stages, or any ops, costs are those of the definition, and memories and orders hold."""
    problem = any_problem(seed, "pipeline", 6)
    chunked = ChunkedStages(problem, 1 if rules == "loose" else 2, "free" if rules == "free" else "interleaved")
    begin = ChunkAssignment(np.zeros(problem.num_nodes, np.int64), chunked.interleaved_slots, problem.stage_class)
    whole = float(slot_costs(chunked, begin).max())
    if not 0.0 < whole < np.inf:
        return
    costs = problem.cost_arrays
    costs = costs._replace(memory=costs.memory * CAPACITY_SLACK)
    trial, tensors = 0.6 * whole, counted_tensors(problem)
    state = excess_state.py_func(begin.stage, begin.slot, begin.classes, trial, 0.1 * whole, costs, tensors)
    order, how = problem.precedence, (rules != "loose", chunked.is_bound)
    anneal_excess.py_func(np.random.default_rng(seed), 300, 0.99, trial, *how, costs, tensors, order, state)
    now = ChunkAssignment(state.stage, state.slot, state.classes)
    assert slot_costs(chunked, now) == pytest.approx(state.cost, rel=1e-9, abs=1e-9 * whole)
    assert sorted(state.slot) == sorted(begin.slot)
    assert not chunked.is_bound or (state.slot == begin.slot).all()
    assert sorted(state.classes) == sorted(begin.classes)
    tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    assert rules == "loose" or (state.best[tail] <= state.best[problem.succ]).all()
    best = slot_costs(chunked, ChunkAssignment(state.best, state.best_slot, state.best_classes))
    assert np.maximum(0.0, best - trial).sum() == pytest.approx(state.now[1], rel=1e-9, abs=1e-9 * whole)
