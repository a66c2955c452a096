"""Placement as an environment: interface, masks, rewards, values, and many episodes at once."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit.env
from rlinit.checker.placements import check_placement
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.env import OneProblem, PlacementEnv, PlacementVectorEnv
from rlinit.env.random_problems import RandomlyWired
from rlinit.env.state import improvement
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import held_bytes, makespan
from tests.draws import draws
from tests.placement_cases import placement_plan, random_placement_problem


def play(env: PlacementEnv, seed: int) -> tuple[list[float], dict[str, Any]]:
    """Play an episode of allowed actions drawn from a seed; return rewards and the last info."""
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    rewards, over = [], not info["action_mask"].any()
    while not over:
        _, reward, over, cut, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        rewards.append(reward)
        assert not cut
    return rewards, info


def test_passes_the_checker_of_gymnasium() -> None:
    """The environment follows Gymnasium's interface, without a warning."""
    env = gym.make(rlinit.env.PLACEMENT).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(1, 8),
    memory=st.sampled_from([0.5, np.inf]),
    groups=st.sampled_from([0.0, 0.3]),
    links=st.sampled_from([0.0, 0.3]),
    transfers=st.sampled_from(["parallel", "exclusive", "blocking"]),
)
@settings(max_examples=draws(40), deadline=None)
def test_episodes_are_feasible_and_rewards_add_up(
    seed: int, ops: int, memory: float, groups: float, links: float, transfers: Any
) -> None:
    """Allowed actions lead to a placement that the timeline finds feasible, or, where ops are stuck, to value inf."""
    problem = random_placement_problem(
        seed, ops, memory_fraction=memory, group_fraction=groups, missing_links=links, transfers=transfers
    )
    env = PlacementEnv(OneProblem(problem), rewards="dense")
    rewards, info = play(env, seed)
    if not rewards:
        return
    if env.episodes.steps[0] == ops:
        placement = env.episodes.placement(0)
        assert info["value"] == makespan(problem, placement) < np.inf
        assert (held_bytes(problem, placement.device) <= problem.capacity_bytes * (1 + 1e-9)).all()
    else:
        assert info["value"] == np.inf
    assert sum(rewards) == pytest.approx(improvement(info["value"], info["reference"]), abs=1e-9)


@given(seed=st.integers(0, 10_000), ops=st.integers(1, 8))
@settings(max_examples=draws(20), deadline=None)
def test_masks_let_only_ready_ops_through(seed: int, ops: int) -> None:
    """The mask allows exactly the ready ops, each on the devices that may run it."""
    problem = random_placement_problem(seed, ops)
    env = PlacementEnv(OneProblem(problem))
    rng = np.random.default_rng(seed)
    _, info = env.reset()
    done: set[int] = set()
    while len(done) < ops:
        mask = info["action_mask"].reshape(ops, problem.num_devices).astype(bool)
        for v in range(ops):
            ready = v not in done and set(problem.pred_of(v).tolist()) <= done
            assert np.array_equal(mask[v], np.isfinite(problem.op_time_s[v]) if ready else np.zeros_like(mask[v]))
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        done.add(action // problem.num_devices)
        info = env.step(action)[4]


def test_value_is_the_checkers() -> None:
    """The value of an episode is the makespan that the independent checker finds for the plan of its placement."""
    graph, hardware = rwnn("er", seed=3, num_modules=1, nodes_per_module=12), Hardware.preset("cpu-t4-a100")
    problem = lower_placement(graph, hardware, "latency", resident="weights").problem
    env = PlacementEnv(OneProblem(problem))
    _, info = play(env, 1)
    placement = env.episodes.placement(0)
    plan = placement_plan(problem, placement, graph, hardware, method="environment", resident="weights")
    assert plan.value == info["value"]
    assert check_placement(plan, graph, hardware) == pytest.approx(info["value"], rel=1e-12)


def test_observations_show_when_ready_ops_would_end() -> None:
    """`finish` is the earliest end of each ready op over the reference's makespan, 0 elsewhere."""
    problem = random_placement_problem(5, 6, forbidden_fraction=0.0, density=0.5)
    env = PlacementEnv(OneProblem(problem))
    seen, info = env.reset()
    sources = np.flatnonzero(np.diff(problem.pred_indptr) == 0)
    want = np.zeros((6, 3))
    want[sources] = problem.op_time_s[sources] / info["reference"]
    assert seen["finish"] == pytest.approx(want)


def test_stuck_episode_ends_with_the_worst_reward() -> None:
    """An episode ends with reward -1 when no device has room for a ready op, or with none if nothing ever fits."""
    problem = random_placement_problem(0, 4, 1, memory_fraction=0.6, zero_fraction=0.0, forbidden_fraction=0.0)
    roomy = random_placement_problem(0, 4, 1, zero_fraction=0.0, forbidden_fraction=0.0)
    env = PlacementEnv(OneProblem(problem))
    rewards, info = play(env, 0)
    assert info["value"] == np.inf
    assert rewards[-1] == improvement(np.inf, info["reference"]) == 0.0
    env = PlacementEnv(OneProblem(roomy))
    assert np.isfinite(play(env, 0)[1]["value"])


def test_throughput_problem_is_refused() -> None:
    """A problem whose ops are split into shards is an error that says so."""
    with pytest.raises(RlinitError, match="shards"):
        PlacementEnv(OneProblem(random_placement_problem(0, 4, shards=2)))


@pytest.mark.parametrize("rewards", ["dense", "final"])
def test_many_episodes_equal_single_ones(rewards: Any) -> None:
    """The native vector gives what Gymnasium's vector of single environments gives, over resets of episodes."""
    source = RandomlyWired(nodes_per_module=6)
    native = PlacementVectorEnv(4, source, rewards=rewards)
    single = gym.vector.SyncVectorEnv([lambda: PlacementEnv(source, rewards=rewards)] * 4)
    rng = np.random.default_rng(0)
    (seen, info), (want, _) = native.reset(seed=11), single.reset(seed=11)
    for _ in range(20):
        assert all(np.array_equal(seen[name], want[name]) for name in want)
        mask = info["action_mask"]
        actions = np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in mask])
        seen, *rest, info = native.step(actions)
        want, *rest_want, _ = single.step(actions)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(rest, rest_want, strict=True))
