"""Bottlenecks are multiples of the quantum, and raised bounds stay bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.exact.stages.bounds.rounding import raised_bound, value_quantum
from rlinit.exact.stages.bounds.simple import simple_bound
from rlinit.stages.problem import stage_value
from tests.draws import draws
from tests.stage_cases import brute_force_pipeline, monotone_assignments, random_problem


@settings(max_examples=draws(30), deadline=None)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(1, 2), scale=st.sampled_from([1.0, 0.25, 3.0]))
def test_every_value_is_a_multiple(seed: int, num_classes: int, scale: float) -> None:
    """Times and tensors included; the raised simple bound is at most the optimum."""
    problem = random_problem(seed, 5, 2, num_classes=num_classes, integer=True, scale=scale, io=1.0)
    quantum = value_quantum(problem)
    values = [stage_value(problem, stage, problem.stage_class) for stage in monotone_assignments(problem)]
    if max(values) == 0:
        return
    assert quantum >= scale
    assert all(value % quantum == 0 for value in values)
    assert raised_bound(simple_bound(problem)[0], quantum) <= brute_force_pipeline(problem)


def test_overflow_and_memory_have_none() -> None:
    """Where bytes over the cache cost time, values are no multiples of anything known."""
    problem = random_problem(1, 5, 2, integer=True, io=1.0)
    assert value_quantum(problem) > 0
    assert value_quantum(dataclasses.replace(problem, cache_bytes=np.array([1.0]))) == 0
    assert value_quantum(dataclasses.replace(problem, objective="memory")) == 0


def test_rounding_errors_are_not_raised() -> None:
    """A bound that exceeds a multiple by rounding alone stays there."""
    assert raised_bound(1000.0000000001, 1.0) == 1000.0000000001
    assert raised_bound(999.2, 1.0) == 1000.0
