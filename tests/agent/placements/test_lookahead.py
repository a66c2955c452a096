"""Lookahead of the placement policy: feasible, and exact about what it tries."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinit.agent.placements.features import LATE_WEIGHT, Observation, observe
from rlinit.agent.placements.lookahead import play_ahead
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import MODES, makespan, obstacle, placement_of
from tests.draws import draws
from tests.placement_cases import problems_of, random_placement_problem

problems = problems_of(0.0, 0.3)

WITHOUT_TIME = random_placement_problem(1899, 7, 3, transfers="blocking", group_fraction=0.3, zero_fraction=1.0)
"""An op that receives for a while and takes no time itself goes behind one that ends when it begins to receive."""


def random_policy(observed: Observation, seed: int) -> Policy:
    """Return random keys, scores and lateness weights."""
    rng, pairs = np.random.default_rng(seed), len(observed.arrays.time)
    return Policy(
        observed.features.base_key + rng.standard_normal(len(observed.device)),
        rng.standard_normal(pairs),
        LATE_WEIGHT * rng.random(pairs),
    )


@settings(max_examples=draws(60), deadline=None)
@given(problems, st.integers(0, 10**6), st.integers(0, 20), st.integers(1, 3))
@example(WITHOUT_TIME, 1, 2, 1)
def test_placements_with_lookahead_are_feasible(problem: PlacementProblem, seed: int, steps: int, ops: int) -> None:
    """Memory, groups, links and precedence hold, and the makespan is that of the schedule, where transfers run at once.

    Under other rules the schedule is one all the same, and no earlier than if they ran at once.
    """
    observed = observe(problem)
    policy = random_policy(observed, seed)
    for transfers, rule in MODES.items():
        value, device, start = play_ahead(observed.arrays, policy, observed.cost_to_go, steps, ops, 1.0, rule)
        if not np.isfinite(value):
            continue
        ruled = dataclasses.replace(problem, transfers=transfers)  # type: ignore[arg-type]
        whole = np.repeat(start[:, None], problem.num_devices, axis=1)
        found = placement_of(ruled, device[:, None], whole)
        assert obstacle(ruled, found) == ""
        assert np.isfinite(makespan(ruled, found))
        parallel = makespan(dataclasses.replace(problem, transfers="parallel"), found)
        if transfers == "parallel":
            assert parallel == pytest.approx(value, rel=1e-9)
        assert parallel <= value * (1 + 1e-9)


@pytest.mark.parametrize("transfers", ["exclusive", "blocking"])
def test_transfers_of_a_chain_are_counted_as_the_timeline_counts_them(transfers: str) -> None:
    """Where no two transfers meet, the makespan played is that of the rule; where they do, it knows of the queue."""
    for seed in range(20):
        drawn = random_placement_problem(seed, 12, 2, transfers=transfers, forbidden_fraction=0.0)  # type: ignore[arg-type]
        edges = np.array([(v, v + 1) for v in range(11)])
        problem = dataclasses.replace(drawn, edges=edges, order=np.arange(12))
        observed = observe(problem)
        value, device, start = play_ahead(
            observed.arrays, random_policy(observed, seed), observed.cost_to_go, 4, 2, np.inf, MODES[transfers]
        )
        whole = np.repeat(start[:, None], 2, axis=1)
        assert makespan(problem, placement_of(problem, device[:, None], whole)) == pytest.approx(value, rel=1e-9)


@settings(max_examples=draws(60), deadline=None)
@given(problems, st.integers(0, 10**6))
def test_one_rival_and_no_other_device_is_the_greedy_placement(problem: PlacementProblem, seed: int) -> None:
    """With nothing to compare, looking ahead changes nothing: the same devices and starts as the plain policy's."""
    observed = observe(problem)
    policy = random_policy(observed, seed)
    trace = play(observed.arrays, policy, 0.0, 1, np.random.default_rng(0))
    value, device, start = play_ahead(observed.arrays, policy, observed.cost_to_go, 0, 1, -np.inf, MODES["parallel"])
    assert value == trace.value[0, 0]
    if np.isfinite(value):
        np.testing.assert_array_equal(device, trace.device[0])
        np.testing.assert_array_equal(start, trace.start[0])
