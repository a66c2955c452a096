"""Stage scheduling as an environment: interface, masks, rewards, values, and many episodes at once."""

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
from rlinit.checker.stages import stage_uses
from rlinit.env import OneProblem, StageEnv, StageVectorEnv
from rlinit.env.random_problems import SyntheticStages
from rlinit.env.state import improvement
from rlinit.errors import RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.stages.lowering import lower_stages
from rlinit.stages.slicing import slice_order
from tests.draws import draws
from tests.stage_cases import random_problem


def play(env: StageEnv, seed: int) -> tuple[list[int], list[float], dict[str, Any]]:
    """Play an episode of allowed actions drawn from a seed; return actions, rewards and the last info."""
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    actions, rewards, over = [], [], False
    while not over:
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        _, reward, over, cut, info = env.step(actions[-1])
        rewards.append(reward)
        assert not cut
    return actions, rewards, info


def test_passes_the_checker_of_gymnasium() -> None:
    """The environment follows Gymnasium's interface, without a warning."""
    env = gym.make(rlinit.env.STAGES).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 12), zero=st.sampled_from([0.2, 1.0]))
@settings(max_examples=draws(25), deadline=None)
def test_masks_let_only_ready_ops_through(seed: int, nodes: int, zero: float) -> None:
    """At every step the mask allows exactly the ops that are not taken and whose predecessors all are."""
    problem = random_problem(seed, nodes, zero_fraction=zero)
    env = StageEnv(OneProblem(problem))
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    taken: list[int] = []
    over = False
    while not over:
        ready = [
            v
            for v in range(nodes)
            if v not in taken and set(problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]) <= set(taken)
        ]
        assert np.flatnonzero(info["action_mask"]).tolist() == ready
        taken.append(int(rng.choice(ready)))
        _, _, over, _, info = env.step(taken[-1])
    assert len(taken) == nodes


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_value_is_the_checkers(objective: Any) -> None:
    """The value of an episode is what the independent checker computes for its stages."""
    rng = np.random.default_rng(3)
    edges = [(f"op{u}", f"op{v}") for v in range(1, 15) for u in rng.choice(v, min(v, 2), replace=False)]
    costs = {"param_bytes": 1e6, "out_bytes": 1e5, "time_s": 1e-3}
    graph = Graph.build([(f"op{v}", {k: c * (1 + v % 4) for k, c in costs.items()}) for v in range(15)], edges)
    hardware = Hardware.pipeline(3, bandwidth=1e8, cache=1e7)
    lowered = lower_stages(graph, hardware, objective)
    env = StageEnv(OneProblem(lowered.problem))
    _, _, info = play(env, 5)
    sliced = slice_order(lowered.problem, env.episodes.order[0])
    assert sliced is not None
    found = sliced[0]
    stage = {name: int(found.stage[lowered.node_of_op[v]]) for v, name in enumerate(graph.names)}
    devices = [hardware.devices[i].name for i in lowered.devices_of(found)]
    uses = stage_uses(stage, graph, hardware, devices, objective)
    true = max(use.param_bytes if objective == "memory" else use.time_s for use in uses)
    assert info["value"] == pytest.approx(true, rel=1e-12)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 10), tight=st.booleans())
@settings(max_examples=draws(20), deadline=None)
def test_dense_rewards_add_up_to_the_final_one(seed: int, nodes: int, tight: bool) -> None:
    """Dense rewards add up to the final reward, the improvement on the sliced natural order."""
    problem = random_problem(seed, nodes, objective="memory" if seed % 2 else "pipeline")
    source = OneProblem(problem)
    actions, dense, info = play(StageEnv(source, rewards="dense"), seed)
    same, final, _ = play(StageEnv(source, rewards="final"), seed)
    found, natural = slice_order(problem, np.array(actions)), slice_order(problem, problem.order)
    assert found is not None
    assert natural is not None
    assert actions == same
    assert info["value"] == found[1][0]
    assert info["reference"] == natural[1][0]
    assert not any(final[:-1])
    assert final[-1] == improvement(found[1][0], natural[1][0])
    assert sum(dense) == pytest.approx(final[-1], abs=1e-12)


def test_improvement_is_bounded_and_relative() -> None:
    """The reward is the relative improvement, minus it with the parts exchanged for a loss, and finite always."""
    assert improvement(3.0, 4.0) == 0.25
    assert improvement(4.0, 3.0) == -0.25
    assert improvement(0.0, 0.0) == improvement(np.inf, np.inf) == 0.0
    assert improvement(np.inf, 1.0) == -1.0
    assert improvement(1.0, np.inf) == improvement(0.0, 1e-9) == 1.0


def test_masked_actions_cost_and_cut_off() -> None:
    """A masked action changes nothing and costs 1 / n; n of them end the episode, after which a step is an error."""
    env = StageEnv(OneProblem(random_problem(1, 4, density=1.0)))
    with pytest.raises(RlinitError, match="reset"):
        env.step(0)
    before, info = env.reset(seed=0)
    masked = int(np.flatnonzero(info["action_mask"] == 0)[0])
    for turn in range(4):
        seen, reward, over, cut, info = env.step(masked)
        assert (reward, over, cut, info["invalid_action"]) == (-0.25, False, turn == 3, True)
        assert all(np.array_equal(seen[name], before[name]) for name in before)
    with pytest.raises(RlinitError, match="over"):
        env.step(0)


def test_given_problem_and_unknown_options() -> None:
    """`reset` plays a given problem, refuses one that does not fit, and options it does not know."""
    env = StageEnv(OneProblem(random_problem(0, 6, density=1.0)))
    small = random_problem(1, 3)
    env.reset(options={"problem": small})
    assert env.problem is small
    with pytest.raises(RlinitError, match="8 nodes"):
        env.reset(options={"problem": random_problem(1, 8)})
    with pytest.raises(RlinitError, match="'probelm'"):
        env.reset(options={"probelm": small})
    with pytest.raises(RlinitError, match="'dense' or 'final'"):
        StageEnv(rewards="sparse")  # type: ignore[arg-type]


@pytest.mark.parametrize("rewards", ["dense", "final"])
def test_many_episodes_equal_single_ones(rewards: Any) -> None:
    """The native vector gives what Gymnasium's vector of single environments gives, over resets of episodes."""
    source = SyntheticStages(7)
    native = StageVectorEnv(5, source, rewards=rewards)
    single = gym.vector.SyncVectorEnv([lambda: StageEnv(source, rewards=rewards)] * 5)
    rng = np.random.default_rng(0)
    (seen, info), (want, info_want) = native.reset(seed=11), single.reset(seed=11)
    for _ in range(20):
        for name in want:
            assert np.array_equal(seen[name], want[name])
        assert np.array_equal(info["action_mask"], info_want["action_mask"])
        mask = info["action_mask"]
        actions = np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in mask])
        seen, *rest, info = native.step(actions)
        want, *rest_want, info_want = single.step(actions)
        for ours, theirs in zip(rest, rest_want, strict=True):
            assert np.array_equal(ours, theirs)
        if "value" in info_want:
            there = info_want["_value"]
            assert np.array_equal(info["_value"], there)
            assert np.array_equal(info["value"][there], info_want["value"][there])


def test_registered_vector_is_the_native_one() -> None:
    """`gymnasium.make_vec` with the vector entry point gives the native vector."""
    envs = gym.make_vec(rlinit.env.STAGES, num_envs=3, vectorization_mode="vector_entry_point")
    assert isinstance(envs.unwrapped, StageVectorEnv)
    assert envs.reset(seed=0)[0]["nodes"].shape[:2] == (3, 30)
