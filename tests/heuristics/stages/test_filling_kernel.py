"""Filling one stage is exact where it is not cut short, and a line that is filled keeps to its limit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinit.arrays import FloatArray
from rlinit.heuristics.stages.filling.kernel import fill_line, fill_stage, new_line, new_loads
from rlinit.heuristics.stages.filling.stage_state import FillRule, new_state, place
from rlinit.stages.kernel_arrays import kernel_arrays
from rlinit.stages.problem import StageProblem, stage_cost, stage_value
from tests.draws import draws
from tests.exact.stages.cases import any_problem, small_problems


def rule(problem: StageProblem, value: FloatArray, forward: bool, **changes: Any) -> FillRule:
    """Return a rule that enumerates everything, with what is changed."""
    penalty = np.zeros(problem.num_tensors)
    plain = FillRule(forward, value, np.zeros(problem.num_nodes), penalty, 1_000_000, 0, 0.0, 2.0)
    return plain._replace(**changes)


def keys(problem: StageProblem) -> np.ndarray:
    """Return the bits that tell loads apart."""
    return np.random.default_rng(0).integers(1, 2**63, problem.num_nodes).astype(np.uint64)


def closed(problem: StageProblem, member: np.ndarray, forward: bool) -> bool:
    """Return whether a set holds all that must come before (or after) its ops."""
    tail = np.repeat(np.arange(problem.num_nodes), np.diff(problem.succ_indptr))
    return (
        not (member[problem.succ] & ~member[tail]).any()
        if forward
        else not (member[tail] & ~member[problem.succ]).any()
    )


@settings(max_examples=draws(150), deadline=None)
@given(problem=small_problems(), seed=st.integers(0, 10**6), forward=st.booleans())
@example(problem=any_problem(1350, "pipeline"), seed=200, forward=True)  # ops without time, within no time
def test_enumeration_finds_the_best_load(problem: StageProblem, seed: int, forward: bool) -> None:
    """Whatever is placed before: no load within the limit is worth more, by all terms of a stage's cost."""
    if problem.objective == "memory":
        return
    rng = np.random.default_rng(seed)
    n, a = problem.num_nodes, kernel_arrays(problem)
    subsets = [np.array(bits, np.bool_) for bits in itertools.product((False, True), repeat=n)]
    ends = [one for one in subsets if closed(problem, one, forward)]
    done = ends[int(rng.integers(len(ends)))]
    state = new_state(a)
    for v in problem.order if forward else problem.order[::-1]:
        if done[v]:
            place(a, state, forward, int(v))
    c = int(rng.integers(problem.num_classes))
    value = rng.random(n)
    limit = float(rng.uniform(0.1, 1.0) * np.where(np.isfinite(a.work), a.work, 0).sum() + rng.random() * a.in_s.sum())
    loads = new_loads(1, keys(problem))
    fill_stage(rng, a, state, loads, rule(problem, value, forward), c, limit)
    best = max(
        (
            float(value[one & ~done].sum())
            for one in ends
            if (done & ~one).sum() == 0 and (one & ~done).any()
            if stage_cost(problem, one & ~done, c) <= limit
        ),
        default=-np.inf,
    )
    assert loads.score[0] == pytest.approx(best)
    assert state.placed.astype(np.bool_).tolist() == done.tolist()
    if best > -np.inf:
        load = np.zeros(n, np.bool_)
        load[loads.member[0, : loads.size[0]]] = True
        assert stage_cost(problem, load, c) == pytest.approx(loads.cost[0])


@settings(max_examples=draws(100), deadline=None)
@given(
    problem=small_problems(),
    seed=st.integers(0, 10**6),
    front=st.sampled_from([0.0, 0.5, 1.0]),
    cap=st.sampled_from([0, 3, 1000]),
    penalty=st.booleans(),
    quota=st.sampled_from([0, 5, 10**9]),
)
def test_a_filled_line_keeps_to_its_limit(
    problem: StageProblem, seed: int, front: float, cap: int, penalty: bool, quota: int
) -> None:
    """Where nothing is left over, the assignment is monotone and its bottleneck at most the limit, in parts or not."""
    if problem.objective == "memory":
        return
    rng = np.random.default_rng(seed)
    n, a = problem.num_nodes, kernel_arrays(problem)
    value = np.where(np.isfinite(a.work), a.work, np.inf).min(axis=0)
    if not np.isfinite(value).all():
        return
    limit = float(rng.uniform(0.4, 1.2)) * float(value.sum() + a.in_s.sum() + a.out_s.sum())
    sides = [
        rule(problem, value, forward, cap=cap, dives=4, noise=0.5, penalty=a.in_s.min(axis=0) * penalty)
        for forward in (True, False)
    ]
    state = new_state(a)
    line = new_line(a, state, problem.num_stages, problem.class_count)
    args = (new_loads(1, keys(problem)), (sides[0], sides[1]), limit, front, np.ones(problem.num_classes))
    while line.now[2] > 0 and line.now[0] <= line.now[1]:
        fill_line(rng, a, state, *args, np.zeros(0, np.int64), line, quota)
    if line.now[2] == 0:
        tail = np.repeat(np.arange(n), np.diff(problem.succ_indptr))
        assert (line.stage[tail] <= line.stage[problem.succ]).all()
        assert sorted(line.classes.tolist()) == sorted(problem.stage_class.tolist())
        assert stage_value(problem, line.stage, line.classes) <= limit * (1 + 1e-9)
