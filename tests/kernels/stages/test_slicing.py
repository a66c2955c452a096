"""The passes of slicing in their Python form, against the definition of a stage's cost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.arrays import IntArray
from rlinit.kernels.stages import slicing
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate, stage_cost
from rlinit.stages.states import StageStates
from tests.draws import draws
from tests.exact.stages.cases import any_problem

seeds = st.integers(0, 100_000)


def chain_of(problem: StageProblem) -> slicing.Chain:
    """Return the natural order as the kernels take it, filled by their own Python form."""
    n = problem.num_nodes
    position, last_use = np.empty(n, np.int64), np.empty(problem.num_tensors, np.int64)
    slicing.positions.py_func(problem.order, problem.tensor_arrays, position, last_use)
    work = np.where(np.isfinite(problem.work_s), problem.work_s, 1e300).min(axis=0)
    total = np.append(0.0, np.cumsum(work[problem.order]))
    return slicing.Chain(problem.order, position, last_use, total[-1] - total)


def slice_cost(problem: StageProblem, first: int, last: int, class_idx: int) -> float:
    """Return the cost of the nodes at positions first to last - 1 of the natural order."""
    member = np.zeros(problem.num_nodes, np.bool_)
    member[problem.order[first:last]] = True
    return stage_cost(problem, member, class_idx)


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_positions_are_those_of_the_last_consumer(seed: int) -> None:
    """Every node is at its position, every tensor last used at the largest position of a consumer."""
    problem = any_problem(seed, "pipeline", 6)
    chain = chain_of(problem)
    assert chain.position[problem.order].tolist() == list(range(problem.num_nodes))
    for t in range(problem.num_tensors):
        consumers = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]]
        assert chain.last_use[t] == chain.position[consumers].max()


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_a_pass_labels_every_prefix_with_its_smallest_bottleneck(seed: int) -> None:
    """Label (state, prefix) is the least bottleneck over all ways to fill just those stages with the prefix."""
    problem = any_problem(seed, "pipeline", 5)
    n = problem.num_nodes
    if not np.isfinite(problem.work_s).any(axis=0).all():
        return
    stage_states = StageStates.counted(problem.class_count, min(n, problem.num_stages))
    states = slicing.States(stage_states.step, stage_states.left.sum(axis=1).astype(np.float64), False)
    shape = (stage_states.num_states, n + 1)
    labels = slicing.BottleneckLabels(np.full(shape, np.inf), np.zeros(shape, np.int32), np.zeros(shape, np.int16))
    labels.value[0, 0] = 0.0
    everything = 1e30
    slicing.pipeline_pass.py_func(
        everything, 0, n + 1, chain_of(problem), problem.cost_arrays, problem.tensor_arrays, states, labels
    )
    truth = np.full(shape, np.inf)
    truth[0, 0] = 0.0
    for end in range(1, n + 1):
        for start, state, c in itertools.product(range(end), range(shape[0]), range(problem.num_classes)):
            after = stage_states.step[state, c]
            if after >= 0:
                reached = max(truth[state, start], slice_cost(problem, start, end, c))
                truth[after, end] = min(truth[after, end], reached)
    assert labels.value == pytest.approx(truth, rel=1e-9)


@settings(max_examples=draws(60), deadline=None)
@given(seeds, st.floats(0.0, 1.0))
def test_longest_first_slices_keep_their_threshold(seed: int, share: float) -> None:
    """Each stage costs at most the threshold, and one node more would cost more or is the last feasible end."""
    problem = any_problem(seed, "pipeline", 6)
    k, n = problem.num_stages, problem.num_nodes
    finite = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
    threshold = share * float(finite.sum() + problem.in_s.sum() + problem.out_s.sum())
    ends = np.zeros(k, np.int64)
    placed = slicing.greedy_ends.py_func(
        threshold, chain_of(problem), problem.cost_arrays, problem.tensor_arrays, problem.stage_class, ends
    )
    assert placed == ends[-1]
    starts = np.append(0, ends[:-1])
    for j, c in enumerate(problem.stage_class.tolist()):
        cost = slice_cost(problem, int(starts[j]), int(ends[j]), c)
        assert cost <= threshold * (1 + 1e-9) + 1e-300
        longer = [slice_cost(problem, int(starts[j]), end, c) for end in range(int(ends[j]) + 1, n + 1)]
        assert all(more > threshold * (1 - 1e-9) for more in longer)


@settings(max_examples=draws(40), deadline=None)
@given(seeds)
def test_longest_first_finds_the_threshold_it_says(seed: int) -> None:
    """The stages it leaves behind keep the threshold that it returns."""
    problem = any_problem(seed, "pipeline", 6)
    ends = np.zeros(problem.num_stages, np.int64)
    arrays = (chain_of(problem), problem.cost_arrays, problem.tensor_arrays, problem.stage_class)
    kept = slicing.longest_first.py_func(0.0, 1e30, 60, *arrays, ends)
    if np.isfinite(kept):
        stage = np.empty(problem.num_nodes, np.int64)
        stage[problem.order] = np.searchsorted(ends, np.arange(problem.num_nodes), side="right")
        value = evaluate(problem, StageAssignment(stage, problem.stage_class))[0]
        assert value <= kept * (1 + 1e-9) + 1e-300


@settings(max_examples=draws(60), deadline=None)
@given(seeds)
def test_a_memory_pass_finds_the_best_off_cache_bytes_and_traffic(seed: int) -> None:
    """At the last prefix and state stands the lexicographic optimum over all slicings within the peak."""
    problem = any_problem(seed, "memory", 5)
    n, k = problem.num_nodes, problem.num_stages
    costs = problem.cost_arrays._replace(
        work=np.where(np.isfinite(problem.work_s), problem.param_bytes, np.inf), out_s=problem.tensor_bytes[None, :]
    )
    rest = np.append(0.0, np.cumsum(problem.param_bytes[problem.order]))
    chain = chain_of(problem)._replace(rest=rest[-1] - rest)
    slicings = [_stages(problem, cuts) for cuts in itertools.combinations_with_replacement(range(n + 1), k - 1)]
    values = [evaluate(problem, StageAssignment(stage, problem.stage_class)) for stage in slicings]
    feasible = [value for value in values if np.isfinite(value[0])]
    if not feasible:
        return
    peak = min(value[0] for value in feasible)
    best = min(value[1:] for value in feasible if value[0] <= peak * (1 + 1e-12))
    shape = (k + 1, n + 1)
    labels = slicing.MemoryLabels(np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, -1, np.int32))
    labels.off_cache[0, 0] = labels.traffic[0, 0] = 0.0
    tie = 1e-12 * float(problem.param_bytes.sum())
    slicing.memory_pass.py_func(peak, tie, 0, n + 1, chain, costs, problem.tensor_arrays, problem.stage_class, labels)
    assert labels.off_cache[k, n] == pytest.approx(best[0], rel=1e-9, abs=tie)
    assert labels.traffic[k, n] == pytest.approx(best[1], rel=1e-9)


def _stages(problem: StageProblem, cuts: tuple[int, ...]) -> IntArray:
    stage = np.empty(problem.num_nodes, np.int64)
    stage[problem.order] = np.searchsorted(np.array(cuts), np.arange(problem.num_nodes), side="right")
    return stage
