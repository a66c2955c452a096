"""Stage scheduling as an environment: interface, masks, rewards, values."""

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
from rlinit.env import OneProblem, StageEnv
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
    sliced = slice_order(lowered.problem, np.array(env.episode.order))
    assert sliced is not None
    found = sliced[0]
    stage = {name: int(found.stage[lowered.node_of_op[v]]) for v, name in enumerate(graph.names)}
    devices = [hardware.devices[i].name for i in lowered.devices_of(found)]
    uses = stage_uses(stage, graph, hardware, devices, objective)
    true = max(use.param_bytes if objective == "memory" else use.time_s for use in uses)
    assert info["value"] == pytest.approx(true, rel=1e-12)


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 10))
@settings(max_examples=draws(20), deadline=None)
def test_the_last_reward_is_all(seed: int, nodes: int) -> None:
    """The reward is the improvement on the sliced natural order, given after the last action."""
    problem = random_problem(seed, nodes, objective="memory" if seed % 2 else "pipeline")
    actions, rewards, info = play(StageEnv(OneProblem(problem)), seed)
    found, natural = slice_order(problem, np.array(actions)), slice_order(problem, problem.order)
    assert found is not None
    assert natural is not None
    assert info["value"] == found[1][0]
    assert info["reference"] == natural[1][0]
    assert not any(rewards[:-1])
    assert rewards[-1] == improvement(found[1][0], natural[1][0])


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


def test_many_episodes_side_by_side() -> None:
    """Gymnasium's vector plays several environments, each over episodes of its own."""
    envs = gym.make_vec(rlinit.env.STAGES, num_envs=3, vectorization_mode="sync")
    seen, info = envs.reset(seed=0)
    assert seen["nodes"].shape[:2] == (3, 30)
    over = np.zeros(3, bool)
    for _ in range(30):
        seen, _, over, _, info = envs.step(info["action_mask"].argmax(axis=1))
    assert over.all()
    assert np.isfinite(info["value"]).all()
