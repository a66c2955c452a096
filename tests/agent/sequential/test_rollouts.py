"""Batched rollouts against stepping the environments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.agent.sequential.rollouts import OrderRollouts, PackedGraphs, PlacementRollouts, placements, ready_steps
from rlinit.env import OneProblem, PlacementEnv, StageEnv
from rlinit.errors import RlinitError
from rlinit.placements.timeline import makespan
from tests.placement_cases import random_placement_problem
from tests.stage_cases import random_problem


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), copies=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_orders_equal_stepping_the_environment(seed: int, sizes: list[int], copies: int) -> None:
    """The same draws are allowed at every step, row by row, as in the stage environment; also through `select`."""
    problems = [random_problem(seed + i, n) for i, n in enumerate(sizes)]
    rng = np.random.default_rng(seed)
    graphs = PackedGraphs.of(problems)
    rollouts = OrderRollouts(graphs, copies)
    envs = [StageEnv(OneProblem(problem)) for problem in problems for _ in range(copies)]
    masks = [env.reset()[1]["action_mask"] for env in envs]
    while rollouts.steps < rollouts.num_steps:
        for row, mask in enumerate(masks):
            assert np.array_equal(rollouts.ready[row, : len(mask)].numpy(), mask.astype(bool))
            assert not rollouts.ready[row, len(mask) :].any()
        nodes = [int(rng.choice(np.flatnonzero(mask))) if mask.any() else -1 for mask in masks]
        masks = [
            env.step(v)[4]["action_mask"] if v >= 0 else mask for env, v, mask in zip(envs, nodes, masks, strict=True)
        ]
        rollouts.take(torch.tensor(nodes))
        rollouts = rollouts.select(torch.arange(len(envs)))
    for env, order in zip(envs, rollouts.orders.numpy(), strict=True):
        assert np.array_equal(env.episodes.order[0], order[order >= 0])
    first = ready_steps(graphs, rollouts.graph_of_row, rollouts.orders).numpy()
    for row, env in enumerate(envs):
        order, problem = env.episodes.order[0].tolist(), env.problem
        for v in range(problem.num_nodes):
            before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
            assert first[row, v] == max((order.index(u) + 1 for u in before), default=0)


@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 4)), min_size=1, max_size=3),
    memory=st.sampled_from([0.7, np.inf]),
    groups=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=20, deadline=None)
def test_placements_equal_stepping_the_environment(
    seed: int, sizes: list[tuple[int, int]], memory: float, groups: float
) -> None:
    """Earliest ends, allowed devices and makespans are those of the placement environment, bit by bit."""
    problems = [
        random_placement_problem(seed + i, n, d, memory_fraction=memory, group_fraction=groups, missing_links=0.1)
        for i, (n, d) in enumerate(sizes)
    ]
    rng = np.random.default_rng(seed)
    rollouts = PlacementRollouts(problems)
    envs = [PlacementEnv(OneProblem(problem)) for problem in problems]
    for env in envs:
        env.reset()
    while rollouts.steps < rollouts.num_steps:
        stuck = torch.tensor([not env.episodes.masks(0).any() for env in envs])
        rollouts.abandon(stuck & rollouts.ready.any(dim=1))
        nodes, devices = [], []
        for env in envs:
            allowed = np.flatnonzero(env.episodes.masks(0))
            action = int(rng.choice(allowed)) if len(allowed) else -1
            nodes.append(action // env.problem.num_devices if action >= 0 else -1)
            devices.append(action % env.problem.num_devices if action >= 0 else -1)
        finish = rollouts.finish_s(torch.tensor(nodes))
        for row, (env, v, i) in enumerate(zip(envs, nodes, devices, strict=True)):
            if v >= 0:
                d = env.problem.num_devices
                assert np.array_equal(finish[row, :d].numpy(), env.episodes.finish_s[0, v])
                assert torch.isinf(finish[row, d:]).all()
                env.step(v * d + i)
        rollouts.place(torch.tensor(nodes), torch.tensor(devices), finish)
    for row, (env, found) in enumerate(zip(envs, placements(problems, rollouts), strict=True)):
        if np.isfinite(env.episodes.value[0]):
            assert found is not None
            assert makespan(env.problem, found) == env.episodes.value[0] == float(rollouts.makespan_s[row])
        else:
            assert found is None


def test_forbidden_device_and_throughput_are_errors() -> None:
    """A rollout refuses a device an op may not run on, and problems whose ops are split."""
    problem = random_placement_problem(0, 3, memory_fraction=np.inf, forbidden_fraction=0.0)
    rollouts = PlacementRollouts([problem])
    finish = torch.full((1, 3), torch.inf)
    with pytest.raises(RlinitError, match="device 1"):
        rollouts.place(torch.tensor([0]), torch.tensor([1]), finish)
    with pytest.raises(RlinitError, match="shards"):
        PlacementRollouts([random_placement_problem(0, 3, shards=2)])
    with pytest.raises(RlinitError, match="no problem"):
        PackedGraphs.of([])
