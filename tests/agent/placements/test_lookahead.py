"""Lookahead of the placement policy: feasible, and exact about what it tries."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.placements.features import LATE_WEIGHT, Observation, observe
from rlinit.agent.placements.lookahead import play_ahead
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, placement_of
from tests.placement_cases import problems_of

problems = problems_of(0.0, 0.3)


def random_policy(observed: Observation, seed: int) -> Policy:
    """Return random keys, scores and lateness weights."""
    rng, pairs = np.random.default_rng(seed), len(observed.arrays.time)
    return Policy(
        observed.features.base_key + rng.standard_normal(len(observed.device)),
        rng.standard_normal(pairs),
        LATE_WEIGHT * rng.random(pairs),
    )


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10**6), st.integers(0, 20), st.integers(1, 3))
def test_placements_with_lookahead_are_feasible(problem: PlacementProblem, seed: int, steps: int, ops: int) -> None:
    """Memory, groups, links and precedence hold, and the makespan is that of the schedule."""
    observed = observe(problem)
    value, device, start = play_ahead(
        observed.arrays, random_policy(observed, seed), observed.cost_to_go, steps, ops, 1.0
    )
    if not np.isfinite(value):
        return
    parallel = dataclasses.replace(problem, transfers="parallel")
    whole = np.repeat(start[:, None], problem.num_devices, axis=1)
    assert makespan(parallel, placement_of(parallel, device[:, None], whole)) == pytest.approx(value, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10**6))
def test_one_rival_and_no_other_device_is_the_greedy_placement(problem: PlacementProblem, seed: int) -> None:
    """With nothing to compare, looking ahead changes nothing: the same devices and starts as the plain policy's."""
    observed = observe(problem)
    policy = random_policy(observed, seed)
    trace = play(observed.arrays, policy, 0.0, 1, np.random.default_rng(0))
    value, device, start = play_ahead(observed.arrays, policy, observed.cost_to_go, 0, 1, -np.inf)
    assert value == trace.value[0, 0]
    if np.isfinite(value):
        np.testing.assert_array_equal(device, trace.device[0])
        np.testing.assert_array_equal(start, trace.start[0])
