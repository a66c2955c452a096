"""Batched rollouts against stepping the environments."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.env import OneProblem, StageEnv
from rlinit.stages.batch import StageBatch
from tests.late import late_imports
from tests.stage_cases import random_problem

with late_imports():
    import torch

    from rlinit.agent.sequential.pointer_network import packed
    from rlinit.agent.sequential.rollouts import OrderRollouts, ready_steps


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), copies=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_orders_equal_stepping_the_environment(seed: int, sizes: list[int], copies: int) -> None:
    """The same draws are allowed at every step, row by row, as in the stage environment."""
    problems = [random_problem(seed + i, n) for i, n in enumerate(sizes)]
    rng = np.random.default_rng(seed)
    graphs = packed(StageBatch.join([StageBatch.of_problem(problem) for problem in problems]))
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
    for env, order in zip(envs, rollouts.orders.numpy(), strict=True):
        assert np.array_equal(env.episodes.order[0], order[order >= 0])
    first = ready_steps(graphs, rollouts.graph_of_row, rollouts.orders).numpy()
    for row, env in enumerate(envs):
        order, problem = env.episodes.order[0].tolist(), env.problem
        for v in range(problem.num_nodes):
            before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
            assert first[row, v] == max((order.index(u) + 1 for u in before), default=0)
