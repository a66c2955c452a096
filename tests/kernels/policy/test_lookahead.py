"""Lookahead of the placement policy: feasible, exact about what it tries, and what training makes of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.placements.features import URGENCY, Seen, see
from rlinit.arrays import FloatArray
from rlinit.kernels.policy.lookahead import Weighed, play_ahead, weigh_choices
from rlinit.kernels.policy.rollouts import RolloutTrace, play
from rlinit.placements.arrays import join_problems
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, placement_of
from tests.placement_cases import random_placement_problem

problems = st.builds(
    random_placement_problem,
    st.integers(0, 10**6),
    st.integers(1, 14),
    st.integers(1, 4),
    transfers=st.sampled_from(["parallel", "exclusive", "blocking"]),
    scale=st.sampled_from([1e-9, 1.0, 1e12]),
    memory_fraction=st.sampled_from([np.inf, 0.7]),
    group_fraction=st.sampled_from([0.0, 0.3]),
    missing_links=st.sampled_from([0.0, 0.15]),
    integer=st.booleans(),
    zero_fraction=st.sampled_from([0.0, 0.3, 1.0]),
)


def opinion(seen: Seen, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return random keys, scores and urgencies."""
    rng, pairs = np.random.default_rng(seed), len(seen.arrays.time)
    return (
        seen.features.base_key + rng.standard_normal(len(seen.device)),
        rng.standard_normal(pairs),
        URGENCY * rng.random(pairs),
    )


def weighed_schedules(seen: Seen, seed: int, samples: int, steps: int, ops: int) -> tuple[RolloutTrace, Weighed]:
    """Return sampled schedules of a problem and what their choices lead to."""
    policy, free = opinion(seen, seed), np.full(len(seen.device), -1)
    trace = play(seen.arrays, *policy, 1.0, samples, free, np.random.default_rng(seed))
    whole = np.isfinite(trace.value)
    return trace, weigh_choices(seen.arrays, trace.chosen, trace.device, whole, *policy, seen.after, steps, ops)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10**6), st.integers(0, 20), st.integers(1, 3))
def test_placements_with_lookahead_are_feasible(problem: PlacementProblem, seed: int, steps: int, ops: int) -> None:
    """Memory, groups, links and precedence hold, and the makespan is that of the schedule."""
    seen = see(problem)
    value, device, start = play_ahead(seen.arrays, *opinion(seen, seed), seen.after, steps, ops, 1.0)
    if not np.isfinite(value):
        return
    parallel = dataclasses.replace(problem, transfers="parallel")
    whole = np.repeat(start[:, None], problem.num_devices, axis=1)
    assert makespan(parallel, placement_of(parallel, device[:, None], whole)) == pytest.approx(value, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10**6))
def test_one_rival_and_no_other_device_is_the_greedy_placement(problem: PlacementProblem, seed: int) -> None:
    """With nothing to compare, looking ahead changes nothing: the same devices and starts as the plain policy's."""
    seen = see(problem)
    policy, free = opinion(seen, seed), np.full(problem.num_ops, -1)
    trace = play(seen.arrays, *policy, 0.0, 1, free, np.random.default_rng(0))
    value, device, start = play_ahead(seen.arrays, *policy, seen.after, 0, 1, -np.inf)
    assert value == trace.value[0, 0]
    if np.isfinite(value):
        np.testing.assert_array_equal(device, trace.device[0])
        np.testing.assert_array_equal(start, trace.start[0])


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(0, 10**6), st.integers(1, 3))
def test_choices_weighed_to_the_end_are_worth_the_makespan(problem: PlacementProblem, seed: int, ops: int) -> None:
    """The first op on each device, the policy playing on to the end, comes to the makespan of that schedule."""
    seen = see(problem)
    trace, weighed = weighed_schedules(seen, seed, 2, problem.num_ops, ops)
    policy, d = opinion(seen, seed), problem.num_devices
    for s in np.flatnonzero(np.isfinite(trace.value[:, 0])):
        first = int(np.flatnonzero(trace.chosen[s] == 0)[0])
        for i in np.flatnonzero(np.isfinite(weighed.pair_value[s, first * d : (first + 1) * d])):
            forced, key = np.full(problem.num_ops, -1), policy[0].copy()
            forced[first], key[first] = i, np.inf
            again = play(seen.arrays, key, *policy[1:], 0.0, 1, forced, np.random.default_rng(0))
            assert weighed.pair_value[s, first * d + i] * seen.arrays.scale[0] == pytest.approx(again.value[0, 0])
        rivals = weighed.op[s, first][weighed.op[s, first] >= 0]
        assert rivals[0] == first
        assert len(set(rivals.tolist())) == len(rivals) <= ops
        assert all(trace.ready[s, op] == 0 for op in rivals)


def test_credits_give_the_gradient_of_the_expected_outcome() -> None:
    """The gradient of credit times log-probability is minus that of the mean outcome under the policy."""
    torch = pytest.importorskip("torch")
    from rlinit.agent.placements.log_prob import weighed_choices

    seen = [see(random_placement_problem(seed, 8, 1 + seed % 3, zero_fraction=0.0)) for seed in range(4)]
    arrays = join_problems([one.arrays for one in seen])
    rng, n, pairs = np.random.default_rng(0), len(arrays.tensor), len(arrays.time)
    key, score, urgency = rng.standard_normal(n), rng.standard_normal(pairs), rng.random(pairs)
    trace = play(arrays, key, score, urgency, 1.0, 2, np.full(n, -1), rng)
    after = np.concatenate([one.after for one in seen])
    whole = np.isfinite(trace.value)
    weighed = weigh_choices(arrays, trace.chosen, trace.device, whole, key, score, urgency, after, 5, 3)
    leaves = [torch.tensor(x, requires_grad=True) for x in (key, score, urgency)]
    log_prob, credit, trajectory = weighed_choices(arrays, trace, weighed, *leaves)
    assert len(log_prob) == len(credit) == len(trajectory)
    found = torch.autograd.grad((credit * log_prob).sum(), leaves)
    expected = torch.zeros((), dtype=torch.float64)
    for s in range(2):
        for g in range(len(seen)):
            d = int(arrays.device_ptr[g + 1] - arrays.device_ptr[g])
            for v in range(int(arrays.ptr[g]), int(arrays.ptr[g + 1])):
                ops = weighed.op[s, v] >= 0
                value = torch.from_numpy(weighed.op_value[s, v][ops])
                expected = expected + (torch.softmax(leaves[0][weighed.op[s, v][ops]], 0) * value).sum()
                low = int(arrays.pair_ptr[g]) + (v - int(arrays.ptr[g])) * d
                at = low + np.flatnonzero(np.isfinite(weighed.pair_value[s, low : low + d]))
                logits = leaves[1][at] - leaves[2][at] * torch.from_numpy(trace.late[s, at])
                value = torch.from_numpy(weighed.pair_value[s, at])
                expected = expected + (torch.softmax(logits, 0) * value).sum()
    for ours, theirs in zip(found, torch.autograd.grad(expected, leaves), strict=True):
        np.testing.assert_allclose(ours.numpy(), -theirs.numpy(), atol=1e-3)
