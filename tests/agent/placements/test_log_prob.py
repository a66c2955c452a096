"""The policy of the latency agent: HEFT untrained, exact probabilities trained."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.placements.features import LATE_WEIGHT, observe
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.kernels.batches import NUMBERED, disjoint_union
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutTrace
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan, placement_of
from tests.draws import draws
from tests.placement_cases import problems_of, random_placement_problem


def played(problem: PlacementProblem, seed: int, samples: int) -> RolloutTrace:
    """Return samples by random keys, scores and lateness weights."""
    observed, rng = observe(problem), np.random.default_rng(seed)
    n, pairs = problem.num_ops, problem.num_ops * problem.num_devices
    key = observed.features.base_key + rng.standard_normal(n)
    policy = Policy(key, rng.standard_normal(pairs), LATE_WEIGHT * rng.random(pairs))
    return play(observed.arrays, policy, 1.0, samples, rng)


problems = problems_of(0.0, 0.3)


@settings(max_examples=draws(60), deadline=None)
@given(problems_of(0.0))
def test_the_untrained_greedy_placement_is_that_of_heft(problem: PlacementProblem) -> None:
    """Without scores and with one lateness weight the devices, the order and the makespan are those of HEFT.

    Only HEFT looks ahead at the other ops of a group.
    """
    observed = observe(problem)
    heft = PLACEMENT_HEURISTICS["heft"](problem, seed=0)
    if heft is None or not np.isfinite(observed.value):
        assert heft is None
        return
    start = np.repeat(observed.start[:, None], problem.num_devices, axis=1)
    ours = placement_of(problem, observed.device[:, None], start)
    np.testing.assert_array_equal(ours.device, heft.device)
    assert makespan(problem, ours) == makespan(problem, heft)


@settings(max_examples=draws(60), deadline=None)
@given(problems, st.integers(0, 10**6))
def test_every_sample_is_feasible_and_its_value_is_its_makespan(problem: PlacementProblem, seed: int) -> None:
    """Ops come after those they read, memory, groups and links are respected, and the value is the list schedule's."""
    trace = played(problem, seed, 3)
    for s in range(3):
        if not np.isfinite(trace.value[s, 0]):
            continue
        place = trace.chosen[s]
        assert sorted(place) == list(range(problem.num_ops))
        assert (place[problem.edges[:, 0]] < place[problem.edges[:, 1]]).all()
        assert (trace.ready[s] <= place).all()
        start = np.repeat(trace.start[s][:, None], problem.num_devices, axis=1)
        parallel = dataclasses.replace(problem, transfers="parallel")
        value = makespan(parallel, placement_of(parallel, trace.device[s][:, None], start))
        assert value == pytest.approx(trace.value[s, 0], rel=1e-9)


def test_log_probabilities_are_those_of_the_sampler_step_by_step() -> None:
    """The vectorised log-probabilities and entropies equal a walk through the choices one by one."""
    torch = pytest.importorskip("torch")
    from rlinit.agent.placements.log_prob import choice_lists, log_probabilities

    cases = [random_placement_problem(seed, 9, 1 + seed % 4, group_fraction=0.2) for seed in range(5)]
    arrays = disjoint_union([observe(problem).arrays for problem in cases], NUMBERED)
    rng = np.random.default_rng(1)
    key, score = rng.standard_normal(len(arrays.tensor)), rng.standard_normal(len(arrays.time))
    late_weight = rng.random(len(arrays.time))
    trace = play(arrays, Policy(key, score, late_weight), 1.0, 4, rng)
    lists = choice_lists(arrays, trace)
    log_prob, entropy, trajectory = log_probabilities(
        lists, torch.from_numpy(key), torch.from_numpy(score), torch.from_numpy(late_weight)
    )
    for g, problem in enumerate(cases):
        for s in range(4):
            total, spread = 0.0, 0.0
            low, n, d = int(arrays.ptr[g]), problem.num_ops, problem.num_devices
            for step in range(n if np.isfinite(trace.value[s, g]) else 0):
                ops = [v for v in range(low, low + n) if trace.ready[s, v] <= step and trace.chosen[s, v] >= step]
                (taken,) = [at for at, v in enumerate(ops) if trace.chosen[s, v] == step]
                p = np.exp(key[ops]) / np.exp(key[ops]).sum()
                total, spread = total + np.log(p[taken]), spread - (p * np.log(p)).sum()
                first = int(arrays.pair_ptr[g]) + (ops[taken] - low) * d
                late = trace.late[s, first : first + d]
                free = np.flatnonzero(np.isfinite(late))
                q = np.exp(score[first + free] - late_weight[first + free] * late[free])
                q /= q.sum()
                at = free.tolist().index(int(trace.device[s, ops[taken]]))
                total, spread = total + np.log(q[at]), spread - (q * np.log(q)).sum()
            mine = trajectory == g * 4 + s
            assert float(log_prob[mine].sum()) == pytest.approx(total, abs=1e-4)
            assert float(entropy[mine].sum()) == pytest.approx(spread, abs=1e-4)


def test_frequencies_of_samples_are_their_probabilities() -> None:
    """What the sampler draws first, it draws as often as the softmax of its keys says."""
    problem = random_placement_problem(3, 4, 2, density=0.0)
    observed, rng = observe(problem), np.random.default_rng(0)
    key = np.array([0.0, 0.5, 1.0, -1.0])
    zeros = np.zeros(8)
    trace = play(observed.arrays, Policy(key, zeros, zeros), 1.0, 20_000, rng)
    first = np.bincount((trace.chosen == 0).argmax(axis=1), minlength=4) / 20_000
    np.testing.assert_allclose(first, np.exp(key) / np.exp(key).sum(), atol=0.02)


def test_joined_problems_are_played_as_each_alone() -> None:
    """Greedy schedules do not depend on what else is in the batch."""
    cases = [random_placement_problem(seed, 5 + seed, 1 + seed % 3) for seed in range(6)]
    observed = [observe(problem) for problem in cases]
    arrays = disjoint_union([one.arrays for one in observed], NUMBERED)
    features = disjoint_union([one.features for one in observed], NUMBERED)
    rng = np.random.default_rng(0)
    score = rng.standard_normal(len(arrays.time))
    late_weight = np.full(len(score), LATE_WEIGHT)
    both = play(arrays, Policy(features.base_key, score, late_weight), 0.0, 1, rng)
    for g, one in enumerate(observed):
        mine = slice(int(arrays.pair_ptr[g]), int(arrays.pair_ptr[g + 1]))
        alone = play(one.arrays, Policy(one.features.base_key, score[mine], late_weight[mine]), 0.0, 1, rng)
        assert alone.value[0, 0] == both.value[0, g]


def test_features_follow_a_renumbering_of_ops() -> None:
    """Without ties, numbering the ops otherwise permutes the features and leaves HEFT's makespan."""
    problem = random_placement_problem(11, 20, 3, zero_fraction=0.0)
    number = np.random.default_rng(0).permutation(20)
    back = np.argsort(number)
    edges = number[problem.edges]
    other = dataclasses.replace(
        problem,
        time_s=problem.time_s[back],
        tensor_bytes=problem.tensor_bytes[back],
        weight_bytes=problem.weight_bytes[back],
        shard_bytes=problem.shard_bytes[back],
        edges=edges[np.lexsort((edges[:, 1], edges[:, 0]))],
        order=number[problem.order],
        group=np.arange(20),
    )
    a, b = observe(problem), observe(other)
    assert a.value == b.value
    np.testing.assert_allclose(b.features.node[number], a.features.node, atol=1e-9)
    pair = a.features.pair.reshape(20, 3, -1)
    np.testing.assert_allclose(b.features.pair.reshape(20, 3, -1)[number], pair, atol=1e-9)


def test_features_have_no_units() -> None:
    """Seconds in other units change no feature."""
    a = observe(random_placement_problem(5, 15, 3)).features
    b = observe(random_placement_problem(5, 15, 3, scale=1e6)).features
    np.testing.assert_allclose(a.node, b.node, atol=1e-9)
    np.testing.assert_allclose(a.pair, b.pair, atol=1e-9)
