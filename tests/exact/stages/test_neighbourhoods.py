"""Stages cut out of an assignment cost what they cost in it, and solving them again never loses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.exact.stages.neighbourhoods import improve_by_segments
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate, stage_costs, stage_value
from rlinit.stages.segment import segment
from tests.draws import draws
from tests.exact.stages.cases import small_problems
from tests.heuristics.test_stages import check_monotone
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem


def drawn(problem: StageProblem, rng: np.random.Generator) -> StageAssignment:
    """Return some monotone assignment with the classes in some order."""
    options = [stage.copy() for stage in monotone_assignments(problem)]
    return StageAssignment(options[int(rng.integers(len(options)))], rng.permutation(problem.stage_class))


@settings(max_examples=draws(80), deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(1, 3))
def test_a_segment_costs_what_it_costs_in_the_whole(seed: int, num_classes: int) -> None:
    """Every assignment of a segment, put back, is monotone and has the segment's bottleneck there."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 7, 4, num_classes=num_classes, cache_fraction=0.5, tensors_per_node=2)
    whole = drawn(problem, rng)
    first = int(rng.integers(0, 3))
    last = int(rng.integers(first + 1, 4))
    cut = segment(problem, whole, first, last)
    own = whole.stage[cut.nodes] - first
    k = last - first + 1
    if not len(own):
        return
    # The old stages, with a device before and one behind.
    old = StageAssignment(
        np.concatenate([[0], own + 1, [k + 1]]),
        np.concatenate([[problem.num_classes], whole.classes[first : last + 1], [problem.num_classes + 1]]),
    )
    check_monotone(cut.problem, old)
    costs = stage_costs(problem, whole)[first : last + 1]
    assert stage_value(cut.problem, old.stage, old.classes) == pytest.approx(costs.max())
    back = cut.inserted(old)
    assert back.stage.tolist() == whole.stage.tolist()
    assert back.classes.tolist() == whole.classes.tolist()


@settings(max_examples=draws(60), deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 10**6), cap=st.sampled_from([3, 8, 100_000]))
def test_never_worse_and_never_below_the_optimum(problem: StageProblem, seed: int, cap: int) -> None:
    """Whatever it starts from: monotone, feasible where the start was, at most its value and at least the optimum."""
    if problem.objective == "memory":
        return
    start = drawn(problem, np.random.default_rng(seed))
    before = evaluate(problem, start)
    optimum = brute_force_pipeline(problem)
    found, value = improve_by_segments(problem, start, ideal_cap=cap)
    check_monotone(problem, found)
    assert value == evaluate(problem, found)
    assert value <= before
    if np.isfinite(value[0]):
        assert value[0] >= optimum * (1 - 1e-9)


def test_two_stages_are_solved_to_the_optimum() -> None:
    """With two stages the segment is the whole problem."""
    for seed in range(10):
        problem = random_problem(seed, 8, 2, num_classes=2, io=0.2)
        start = StageAssignment(np.zeros(8, np.int64), problem.stage_class)
        assert improve_by_segments(problem, start)[1][0] == pytest.approx(brute_force_pipeline(problem))
