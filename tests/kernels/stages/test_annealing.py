"""The annealing kernels in their Python form, against the definition of a stage's cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.kernels.stages import annealing
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate, stage_cost
from tests.exact.stages.cases import any_problem
from tests.stage_cases import random_problem

seeds = st.integers(0, 100_000)


def check_state(problem: StageProblem, state: annealing.AnnealingState) -> None:
    """Compare costs, bytes and counts with those of the stages as they are; moves here ignore capacities."""
    roomy = dataclasses.replace(problem, memory_bytes=np.full(problem.num_classes, np.inf))
    scale = float(problem.work_s.sum() + problem.in_s.sum() + problem.out_s.sum() + problem.param_bytes.sum())
    for at, c in enumerate(state.classes.tolist()):
        member = state.stage == at
        assert state.cost[at] == pytest.approx(stage_cost(roomy, member, c), rel=1e-9, abs=1e-9 * scale)
        held = problem.param_bytes[member].sum()
        assert state.held[at] == pytest.approx(held, rel=1e-9, abs=1e-9 * scale)
    for t in range(problem.num_tensors):
        consumers = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]]
        assert state.tensor_stage[t] == state.stage[problem.tensor_src[t]]
        assert state.inside[t].tolist() == [
            int((state.stage[consumers] == at).sum()) for at in range(len(state.classes))
        ]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_states_and_moves_keep_costs_true(seed: int) -> None:
    """After building the state, after any move and after annealing, every figure is that of the definition."""
    problem = any_problem(seed, "pipeline", 6)
    if problem.num_tensors == 0 or not np.isfinite(problem.work_s).all():
        return
    costs, tensors = problem.cost_arrays, problem.tensor_arrays
    rng = np.random.default_rng(seed)
    start = np.zeros(problem.num_nodes, np.int64)
    state = annealing.annealing_state.py_func(start, problem.stage_class, 0.03, costs, tensors)
    check_state(problem, state)
    last = int(problem.order[-1])
    if problem.num_stages > 1:
        annealing.move_node.py_func(last, int(rng.integers(1, problem.num_stages)), costs, tensors, state)
    check_state(problem, state)
    annealing.anneal_moves.py_func(rng, 0, 200, 0.98, costs, tensors, problem.precedence, False, state)
    check_state(problem, state)
    tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    assert (state.stage[tail] <= state.stage[problem.succ]).all()


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_stages_exchange_devices_and_costs_stay_true(seed: int) -> None:
    """The classes of all stages stay the same devices, the best assignment costs what it says."""
    problem = random_problem(seed, 7, 3, num_classes=3, density=0.3)
    costs, tensors = problem.cost_arrays, problem.tensor_arrays
    rng = np.random.default_rng(seed)
    classes = problem.completed_classes([])
    state = annealing.annealing_state.py_func(np.zeros(7, np.int64), classes, 0.5, costs, tensors)
    annealing.anneal_moves.py_func(rng, 0, 300, 0.99, costs, tensors, problem.precedence, True, state)
    check_state(problem, state)
    assert sorted(state.classes) == sorted(state.best_classes) == sorted(classes)
    value = evaluate(problem, StageAssignment(state.best, state.best_classes))[0]
    assert value == pytest.approx(state.now[2], rel=1e-9)


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_annealing_in_pieces_is_annealing_at_once(pieces: int) -> None:
    """However often the budget is looked at, equal seeds give equal assignments."""
    problem = random_problem(3, 20, 4, density=0.2)
    costs, tensors = problem.cost_arrays, problem.tensor_arrays
    found = []
    for steps in (1, pieces):
        state = annealing.annealing_state(np.zeros(20, np.int64), problem.stage_class, 0.03, costs, tensors)
        rng = np.random.default_rng(5)
        for first in range(0, 1200, 1200 // steps):
            annealing.anneal_moves(
                rng, first, first + 1200 // steps, 0.995, costs, tensors, problem.precedence, False, state
            )
        found.append((state.stage.tolist(), state.best.tolist(), state.now.tolist()))
    assert found[0] == found[1]
