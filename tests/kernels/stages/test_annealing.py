"""The annealing kernels in their Python form, against the definition of a stage's cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.kernels.stages import annealing
from rlinit.stages.problem import StageProblem, stage_cost
from tests.exact.stages.cases import any_problem

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
    """After building the state and after any move, every figure is that of the definition."""
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
